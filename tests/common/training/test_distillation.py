"""The shared prefix against two separate models in memory, with full automatic differentiation."""

import copy

import pytest
import torch
from torch import nn

from common.hooks import attach_patch
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.training.distillation import Distillation, frozen, top_k_divergence
from common.training.teacher_store import TeacherStore
from common.utils.errors import UserError

WINDOWS = torch.randint(3, 320, (5, 12), generator=torch.Generator().manual_seed(5))
K = 7


class Times(nn.Module):
    kind = "test.times"

    def __init__(self, seed=0):
        super().__init__()
        noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(1.2 * torch.eye(64) + 0.05 * noise)

    def forward(self, hidden):
        return (hidden.float() @ self.weight).to(hidden.dtype)


def separate(model, runs, samples, target):
    """Two models: the dense teacher, and a pruned copy that carries the patches; gradients of everything."""
    teacher, student = copy.deepcopy(model), copy.deepcopy(model)
    remove_layers(student, [layer for run in runs for layer in range(*run)])
    gone, patches = 0, []
    for number, (start, stop) in enumerate(runs):
        patches.append(Times(number))
        attach_patch(student, start - gone, patches[-1])
        gone += stop - start
    ids = WINDOWS[samples]
    if target == "logits":
        values, indices = teacher(input_ids=ids, use_cache=False).logits.detach().topk(K, -1)
        p = values.softmax(-1)
        q = student(input_ids=ids, use_cache=False).logits.gather(-1, indices).softmax(-1)
        loss = (p * (p.log() - q.log())).sum() / ids.numel()
    else:
        hidden_states, seen = {}, {}
        dense, pruned = teacher.model.layers, student.model.layers
        for layer, module in enumerate(dense):
            module.register_forward_hook(lambda m, a, out, layer=layer: hidden_states.update({layer + 1: out}))
        for layer, module in enumerate(pruned):
            module.register_forward_pre_hook(lambda m, a, layer=layer: seen.update({layer: a[0]}))
        teacher(input_ids=ids, use_cache=False), student(input_ids=ids, use_cache=False)
        gone, losses = 0, []
        for start, stop in runs:
            losses.append((seen[start - gone] - hidden_states[stop].detach()).square().mean())
            gone += stop - start
        loss = torch.stack(losses).mean()
    loss.backward()
    return loss.detach(), [patch.weight.grad for patch in patches]


@pytest.mark.parametrize("target", ["logits", "output"])
@pytest.mark.parametrize("runs", [[(2, 4)], [(1, 2), (3, 5)]])
def test_loss_and_gradients_are_those_of_two_separate_models(tiny, runs, target):
    samples = [3, 0]
    expected, gradients = separate(tiny, runs, samples, target)
    patches = {run: Times(number) for number, run in enumerate(runs)}
    task = Distillation(Decoder(tiny), patches, WINDOWS, target=target, k=K)
    with frozen(tiny):
        loss = task.loss(samples)
        loss.backward()
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-4, atol=1e-6)
    for patch, gradient in zip(patches.values(), gradients):
        torch.testing.assert_close(patch.weight.grad, gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max().item())
    assert all(parameter.grad is None for parameter in tiny.parameters())


@pytest.mark.parametrize(
    "runs, target, stored, executions",
    [
        ([(2, 4)], "logits", False, 2 * 6 - 2 - 2),
        ([(2, 4)], "logits", True, 6 - 2),
        ([(2, 4)], "output", False, 4),
        ([(1, 2), (3, 5)], "logits", False, 2 * 6 - 3 - 1),
        ([(1, 2), (3, 5)], "output", False, 5 + 1),
    ],
)
def test_layer_executions_are_as_stated(tiny_llama, tmp_path, runs, target, stored, executions):
    decoder = Decoder(tiny_llama)
    store = None
    if stored:
        store = TeacherStore(tmp_path, decoder, WINDOWS, K)
        store.fill()
    task = Distillation(decoder, {run: Times() for run in runs}, WINDOWS, target=target, k=K, store=store)
    before = decoder.executions
    task.loss([1])
    assert decoder.executions - before == executions


def test_a_bfloat16_model_with_a_float32_patch(make_tiny):
    model, patch = make_tiny("llama").bfloat16(), Times()
    with frozen(model):
        loss = Distillation(Decoder(model), {(2, 4): patch}, WINDOWS, k=K).loss([0, 1])
        loss.backward()
    wide = make_tiny("llama").bfloat16().float()  # the same rounded weights
    exact = Times()
    reference = Distillation(Decoder(wide), {(2, 4): exact}, WINDOWS, k=K).loss([0, 1])
    reference.backward()
    assert loss.dtype == patch.weight.grad.dtype == torch.float32
    torch.testing.assert_close(loss, reference, rtol=0.1, atol=0.02)
    cosine = torch.cosine_similarity(patch.weight.grad.flatten(), exact.weight.grad.flatten(), dim=0)
    assert cosine > 0.9


def test_the_divergence_of_a_student_that_agrees_is_zero_and_else_positive():
    logits = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(0))
    values, indices = logits.topk(4, -1)
    agreeing = top_k_divergence(logits + 5.0, values.softmax(-1), indices)  # a shift of all logits changes nothing
    torch.testing.assert_close(agreeing, torch.tensor(0.0), atol=1e-6, rtol=0)
    assert top_k_divergence(-logits, values.softmax(-1), indices) > 0.1
    certain = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]).expand(2, 3, 4)  # zeros, as float16 leaves them, are no NaN
    assert top_k_divergence(logits, certain, indices).isfinite()


def test_frozen_puts_everything_back(tiny_llama):
    tiny_llama.train()
    tiny_llama.model.norm.weight.requires_grad_(False)
    expected = [parameter.requires_grad for parameter in tiny_llama.parameters()]
    with frozen(tiny_llama):
        assert not tiny_llama.training and not any(p.requires_grad for p in tiny_llama.parameters())
    assert tiny_llama.training and expected == [parameter.requires_grad for parameter in tiny_llama.parameters()]


def test_bad_input_is_named(tiny_llama, make_patch):
    decoder = Decoder(tiny_llama)
    with pytest.raises(UserError, match="unknown distillation target"):
        Distillation(decoder, {(2, 4): Times()}, WINDOWS, target="logit")
    attach_patch(tiny_llama, 1, make_patch(0.0))
    with pytest.raises(UserError, match="distillation needs a model without patches"):
        Distillation(decoder, {(2, 4): Times()}, WINDOWS)

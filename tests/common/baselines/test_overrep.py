"""OverRep: what it begins as, its training against a plain loop over the formulas, and that all of it merges."""

import copy
import math
from functools import partial

import pytest
import torch
from heads import streams as streams_of
from torch.nn import functional as F

from common.baselines.overrep import PAPER, RecoveryLayers, annealing, recover
from common.models.decoder import Decoder
from common.pruning.pipeline import context_of, run_recipe
from common.pruning.steps import Given
from common.training.fitting import Fitting
from common.utils.errors import UserError

WINDOWS = torch.randint(3, 320, (6, 16), generator=torch.Generator().manual_seed(5))
FAST = Fitting(learning_rate=1e-3, final_share=0.1, weight_decay=1e-2, clip=1.0, batch_size=2, epochs=5)
OUTWARD = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
streams = partial(streams_of, ids=WINDOWS)
INWARD = ("self_attn.o_proj", "mlp.down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")


def spliced(model, start, stop):
    """The model as OverRep begins: the attention of the layer before the block with the rest of the block's last."""
    copied = copy.deepcopy(model)
    first = copied.model.layers[stop - 1]
    first.self_attn = copied.model.layers[start - 1].self_attn
    copied.model.layers = copied.model.layers[: start - 1] + torch.nn.ModuleList([first]) + copied.model.layers[stop:]
    for place, layer in enumerate(copied.model.layers):
        layer.self_attn.layer_idx = place
    copied.config.num_hidden_layers = len(copied.model.layers)
    return copied


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_it_begins_as_the_neighbours_and_merges_exactly_whatever_was_learnt(kind, make_tiny):
    model = make_tiny(kind)
    x, expected = streams(model), streams(spliced(model, 2, 4))
    layers = RecoveryLayers(Decoder(model), 2, 4)
    with torch.no_grad():
        torch.testing.assert_close(layers(x[1]), expected[3], rtol=1e-4, atol=1e-4)
        generator = torch.Generator().manual_seed(0)
        for parameter in layers.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        learnt = layers(x[1])
        assert not torch.allclose(learnt, expected[3], rtol=1e-2, atol=1e-2)
        plain = spliced(model, 2, 4)
        for layer, merged in zip(plain.model.layers[1:3], layers.merge(), strict=True):
            layer.load_state_dict(merged.state_dict())  # the names and shapes of plain layers
    torch.testing.assert_close(streams(plain)[3], learnt, rtol=1e-3, atol=1e-3)


def test_annealing_falls_rises_and_rests():
    table = annealing(1000)
    assert len(table) == 1000 and table[0] == 1 and table[9] == table[10] == 0 and set(table[-200:]) == {1.0}
    rising = [0.5 * (1 - math.cos(math.pi * step / 789)) for step in range(790)]
    assert table[10:800] == pytest.approx(rising)
    assert annealing(5)[-1] == 1 and len(annealing(1)) == 1


def formula(x, base, added, factor, inward, a):
    """D (P + W) with the activation between, row by row of x."""
    weight = base if added is None else base + added
    if factor is None:
        return x @ weight.T
    inner = x @ factor.T if inward else x @ weight.T
    inner = a * inner + (1 - a) * inner * torch.sigmoid(inner)
    return inner @ (weight if inward else factor).T


def trained(model, start, stop, table):
    """The merged weights of both layers after plain steps on the loss; each linear layer gives what `formula` says."""
    x = streams(model)
    student = spliced(model, start, stop).requires_grad_(False)
    both, learnt, known = student.model.layers[start - 1 : start + 1], [], {}
    now = {"a": 1.0}
    for place, layer in enumerate(both):
        for name in OUTWARD + INWARD:
            linear, attention = layer.get_submodule(name), name.startswith("self_attn")
            inward, out, inner = name in INWARD, *linear.weight.shape
            base = linear.weight.clone().requires_grad_(place == 0)
            added = torch.zeros(out, inner, requires_grad=True) if place or attention else None
            factor = torch.eye(inner if inward else out).requires_grad_() if place or not attention else None
            known[place, name] = (base, added, factor, inward)
            learnt += [p for p in (base, added, factor) if p is not None and p.requires_grad]
            linear.register_forward_hook(lambda m, args, out, own=known[place, name]: formula(args[0], *own, now["a"]))
        for name in NORMS:
            norm = layer.get_submodule(name)
            gain = norm.weight.clone().requires_grad_(place == 0)
            scale, shift = (torch.zeros_like(gain, requires_grad=True) for _ in range(2))
            learnt += [p for p in (gain, scale, shift) if p.requires_grad]
            known[place, name] = (gain, scale, shift)

            def gained(module, args, out, own=known[place, name]):
                rows = args[0] * torch.rsqrt(args[0].square().mean(-1, keepdim=True) + module.variance_epsilon)
                return (own[0] * (1 + own[1]) + own[2]) * rows

            norm.register_forward_hook(gained)
    optimizer = torch.optim.AdamW(learnt, lr=FAST.learning_rate, weight_decay=1e-2)
    seen = []
    student.model.layers[start + 1].register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    for step, now["a"] in enumerate(table):
        rows = slice(2 * (step % 3), 2 * (step % 3) + 2)
        student(WINDOWS[rows], use_cache=False)
        F.mse_loss(seen.pop(), x[stop + 1][rows]).backward()
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = FAST.rate(step, len(table))
        optimizer.step()
        optimizer.zero_grad()
    merged = {}
    for (place, name), own in known.items():
        if name in NORMS:
            merged[place, name] = own[0] * (1 + own[1]) + own[2]
            continue
        base, added, factor, inward = own
        weight = base if added is None else base + added
        weight = weight if factor is None else weight @ factor if inward else factor @ weight
        merged[place, name] = weight
    return {key: value.detach() for key, value in merged.items()}


def test_its_training_is_plain_steps_on_the_formulas(tiny_llama):
    expected = trained(copy.deepcopy(tiny_llama), 2, 4, annealing(15))
    dense = copy.deepcopy(tiny_llama)
    report = recover(tiny_llama, [3, 2], WINDOWS, FAST)
    assert report["status"] == "finished" and report["losses"][-1] < report["losses"][0]
    assert report["replaced"] == [{"run": [2, 4], "position": 1}] and len(tiny_llama.model.layers) == 4
    for (place, name), value in expected.items():
        got = tiny_llama.model.layers[1 + place].get_submodule(name).weight
        torch.testing.assert_close(got, value, rtol=2e-3, atol=2e-4)
    for place, original in ((0, 0), (3, 5)):  # the other layers are as they were
        before = dense.model.layers[original].state_dict()
        assert all(torch.equal(v, before[k]) for k, v in tiny_llama.model.layers[place].state_dict().items())


def test_a_recipe_trains_on_its_own_text_and_gives_a_plain_model(make_tiny, reloaded, monkeypatch):
    model = make_tiny("qwen3")
    repair = {"method": "overrep", "samples": 6, "batch_size": 2, "epochs": 1}
    context = context_of(model, selection=Given((2, 3)), repair=repair)
    monkeypatch.setattr("common.baselines.overrep.OverRep.sequences", lambda self, context: WINDOWS)
    run_recipe(context)
    assert context.details["training"]["steps"] == 3 and context.recipe.step("repair").fitting(PAPER).clip == 1.0
    reloaded(model, WINDOWS)


@pytest.mark.parametrize(
    ("kind", "removed", "message"),
    [
        ("gemma2", [2, 3], "OverRep cannot widen"),
        ("llama", [1, 3], "one contiguous block"),
        ("llama", [0, 1], "one contiguous block"),
        ("llama", [4, 5], "one contiguous block"),
    ],
)
def test_what_has_no_neighbours_is_refused(kind, removed, message, make_tiny):
    model = make_tiny(kind)
    with pytest.raises(UserError, match=message):
        recover(model, removed, WINDOWS, FAST)
    assert len(model.model.layers) == 6

"""LLM-Streamline against direct computations: what trains, what is left, and that it saves, reloads and generates."""

import copy
import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from heads import logits as logits_of
from heads import streams as streams_of
from torch import nn
from weights import changed_weights, weights

from common.baselines.streamline import (
    KIND,
    OFFICIAL,
    FeedForward,
    StreamlineSettings,
    insert_ffn,
    replace_with_ffn,
    replace_with_layer,
)
from common.hooks import patch_parameters, patches
from common.models import checkpoint
from common.models.surgery import remove_layers
from common.training.fitting import Fitting
from common.utils.errors import UserError
from tests.massive_model import FIRST, planted

WINDOWS = torch.randint(3, 320, (10, 16), generator=torch.Generator().manual_seed(5))
FAST = Fitting(learning_rate=3e-3, batch_size=2, epochs=4)


logits = partial(logits_of, ids=WINDOWS)


def streams(model, boundaries, ids=WINDOWS):
    """X[l] of the model as Hugging Face code runs it (before the final norm), after the patches at l."""
    by_boundary = streams_of(model, ids)
    return [by_boundary[b] for b in boundaries]


def regressed(config, loss):
    """A network of the models' size after 20 plain steps on the loss of two windows each, with FAST's settings."""
    network = FeedForward.like(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20, eta_min=3e-3 / 20)
    for step in range(20):
        optimizer.zero_grad()
        loss(network, slice(2 * (step % 5), 2 * (step % 5) + 2)).backward()
        optimizer.step()
        schedule.step()
    return network


def test_the_network_is_the_models_own_gated_one_without_norm_or_residual(tiny_llama):
    network = FeedForward.like(tiny_llama.config, seed=3)
    own = tiny_llama.model.layers[0].mlp
    own.load_state_dict(network.state_dict())  # the same names and shapes, no biases
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(x), own(x))
    weight = network.gate_proj.weight
    assert torch.equal(weight, FeedForward.like(tiny_llama.config, seed=3).gate_proj.weight)
    assert not torch.equal(weight, FeedForward.like(tiny_llama.config, seed=4).gate_proj.weight)
    assert weight.std().item() == pytest.approx(tiny_llama.config.initializer_range, rel=0.1)


def test_the_network_has_the_size_of_opts_mlp_and_its_activation(make_tiny):
    model = make_tiny("opt")
    network = FeedForward.like(model.config)
    assert network.up_proj.weight.shape == model.model.decoder.layers[0].fc1.weight.shape
    assert type(network.activation) is type(model.model.decoder.layers[0].activation_fn)
    assert network.up_proj.weight.std().item() == pytest.approx(model.config.init_std, rel=0.1)


def test_a_training_of_the_network_is_a_plain_regression_on_stored_states(tiny_llama):
    before, after = streams(tiny_llama, [2, 5])
    reference = regressed(
        tiny_llama.config, lambda network, rows: nn.functional.mse_loss(network(before[rows]), after[rows])
    )
    report = replace_with_ffn(tiny_llama, [2, 3, 4], WINDOWS, StreamlineSettings(fitting=FAST))
    (patch,) = patches(tiny_llama)
    assert (patch.kind, patch.position, len(tiny_llama.model.layers)) == (KIND, 2, 3)
    for name, value in reference.named_parameters():
        torch.testing.assert_close(patch.module.get_parameter(name), value, rtol=1e-3, atol=1e-4)
    assert report["losses"][-1] < report["losses"][0] and report["loss"] == "mse"
    assert report["executions"] == 20 * 5  # nothing after the window runs
    assert report["parameters"] == 3 * 64 * 96 == sum(p.numel() for p in patch_parameters(tiny_llama))


def test_massive_tokens_may_pass_as_they_are_and_teach_nothing(tiny_llama, tmp_path):
    """The same regression on the states of the other tokens alone; what is left reloads and spares them still."""
    planted(tiny_llama)
    ids = WINDOWS.clone()
    ids[ids == FIRST] = FIRST + 1
    ids[:, 0] = FIRST
    before, after = streams(tiny_llama, [4, 5], ids)
    norms = before.norm(dim=-1)
    assert (norms[:, 0] > 10 * norms.median(1).values).all() and (norms[:, 1:].amax(1) < norms[:, 0] / 10).all()
    reference = regressed(
        tiny_llama.config,
        lambda network, rows: (network(before[rows, 1:]) - after[rows, 1:]).square().sum() / after[rows].numel(),
    )
    replace_with_ffn(tiny_llama, [4], ids, StreamlineSettings(fitting=FAST, spare_massive=True))
    (patch,) = patches(tiny_llama)
    for name, value in reference.named_parameters():
        torch.testing.assert_close(patch.module.get_parameter(name), value, rtol=1e-3, atol=1e-4)
    checkpoint.save(tiny_llama, None, tmp_path / "spared")
    (left,) = streams(checkpoint.load(tmp_path / "spared")[0], [4], ids)  # behind the network
    assert torch.equal(left[:, 0], before[:, 0]) and not torch.allclose(left[:, 1:], before[:, 1:])


def test_the_official_training_barely_lowers_its_rate():
    """LLM_Streamline/train_lightweightnetwork.py: warm-up over micro-steps x 0.01 x 0.5, cosine over micro-steps x 0.5."""
    steps = OFFICIAL.steps(100_000)
    warm, total = 16 * steps * 0.01 * 0.5, 16 * steps * 0.5

    def official_rate(step):
        if step < warm:
            return 2e-4 * step / warm
        return 5e-5 + (2e-4 - 5e-5) * (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2

    assert OFFICIAL.rate(steps, steps) == pytest.approx(official_rate(steps)) and official_rate(steps) / 2e-4 < 0.98
    for step in range(1, steps):
        assert OFFICIAL.rate(step, steps) == pytest.approx(
            official_rate(step), abs=2.01e-4 / warm if step < warm + 1 else 2e-6
        )
    assert (OFFICIAL.batch_size, OFFICIAL.accumulate, OFFICIAL.clip, OFFICIAL.weight_decay) == (8, 16, 5.0, 1e-3)
    assert OFFICIAL.order == "shuffled"


def test_an_untrained_network_can_be_put_in(tiny_llama):
    assert insert_ffn(tiny_llama, [2, 3]) == [{"run": [2, 4], "position": 2}]
    (patch,) = patches(tiny_llama)
    assert not changed_weights(patch.module, weights(FeedForward.like(tiny_llama.config, 0)))


def test_the_network_may_learn_the_logits_too(tiny_llama):
    report = replace_with_ffn(tiny_llama, [1, 3], WINDOWS, StreamlineSettings("logits", top_k=9, fitting=FAST))
    assert report["losses"][-1] < report["losses"][0] and report["loss"] == "kl"
    assert [p.position for p in patches(tiny_llama)] == [1, 2]


def test_an_untrained_layer_is_the_first_of_its_block(tiny):
    plain = copy.deepcopy(tiny)
    remove_layers(plain, [3, 4])
    report = replace_with_layer(tiny, [2, 3, 4], WINDOWS, StreamlineSettings(fitting=Fitting(1e-12, weight_decay=0.0)))
    torch.testing.assert_close(logits(tiny), logits(plain), rtol=1e-4, atol=1e-4)
    assert len(tiny.model.layers) == 4 and report["replaced"] == [{"run": [2, 5], "position": 2}]
    assert patches(tiny) == []


def test_a_layer_learns_its_block_and_nothing_else_changes(tiny_llama):
    dense = copy.deepcopy(tiny_llama)
    before, after = streams(dense, [2, 5])
    report = replace_with_layer(tiny_llama, [4, 2, 3], WINDOWS, StreamlineSettings(fitting=FAST))
    error = (streams(tiny_llama, [3])[0] - after).square().mean().item()
    assert error < (streams(dense, [3])[0] - after).square().mean().item() and error < report["losses"][0]
    left = [0, 1, 2, 5]
    for position, original in enumerate(left):
        for name, value in tiny_llama.model.layers[position].state_dict().items():
            assert torch.equal(value, dense.model.layers[original].state_dict()[name]) == (original != 2), name
    assert torch.equal(tiny_llama.lm_head.weight, dense.lm_head.weight)


@pytest.mark.parametrize("replace", [replace_with_ffn, replace_with_layer])
def test_the_result_reloads_and_generates_with_and_without_cache(tiny, reloaded, greedy, replace):
    replace(tiny, [2, 3], WINDOWS, StreamlineSettings(fitting=Fitting(learning_rate=1e-3)))
    again = reloaded(tiny, WINDOWS, plain=False)
    assert greedy(again, WINDOWS[:1], True).equal(greedy(again, WINDOWS[:1], False))


def test_a_program_that_never_heard_of_it_can_load_it(tiny_llama, tmp_path):
    replace_with_ffn(tiny_llama, [2, 3], WINDOWS, StreamlineSettings(fitting=Fitting(learning_rate=1e-3)))
    checkpoint.save(tiny_llama, None, tmp_path / "m")
    program = "import sys; from common.models import checkpoint; checkpoint.load(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "m")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("replace", [replace_with_ffn, replace_with_layer])
def test_a_bfloat16_model_stays_one(make_tiny, replace):
    model = make_tiny("llama").bfloat16()
    report = replace(model, [2, 3], WINDOWS, StreamlineSettings(fitting=FAST))
    assert report["losses"][-1] < report["losses"][0]
    assert {p.dtype for p in [*model.parameters(), *patch_parameters(model)]} == {torch.bfloat16}
    assert logits(model).isfinite().all()


def test_bad_input_is_named(tiny_llama):
    for layers in ([2, 4], [2]):
        with pytest.raises(UserError, match="one block of two or more layers"):
            replace_with_layer(tiny_llama, layers, WINDOWS)

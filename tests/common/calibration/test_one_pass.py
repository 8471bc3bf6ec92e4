"""Check one-pass statistics against stored Hugging Face hidden states."""

import pytest
import torch
from heads import streams

from common.calibration import Statistics, collect, default_pairs
from common.calibration.statistics import ESTIMATORS
from common.hadamard import hadamard_matrix
from common.models.decoder import Decoder
from common.utils.errors import UserError


@torch.no_grad()
def stored_states(model, ids) -> list[torch.Tensor]:
    """X[0..N] from Hugging Face, with X[N] taken before the final norm, and the state after it."""
    states = streams(model, ids)
    return [*states, model.model.norm(states[-1])]


@pytest.fixture
def crops():
    return torch.randint(3, 320, (6, 20), generator=torch.Generator().manual_seed(5))


def naive_cosine(kind, x, y):
    x, y = x.double(), y.double()
    if kind == "token":
        return torch.nn.functional.cosine_similarity(x, y, dim=-1).mean()
    if kind == "channel":
        return torch.stack([torch.nn.functional.cosine_similarity(a, b, dim=0).mean() for a, b in zip(x, y)]).mean()
    if kind == "flat-batch":
        return torch.nn.functional.cosine_similarity(x.flatten(), y.flatten(), dim=0)
    return torch.stack(
        [torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in zip(x, y)]
    ).mean()


def test_cosines_are_those_of_stored_states(tiny, crops):
    decoder, states = Decoder(tiny), stored_states(tiny, crops)
    layers = decoder.num_layers
    pairs = [*default_pairs(layers, 3), (layers - 2, layers + 1)]
    kinds = ("token", "channel", "flat-batch", "flat-sentence")
    statistics = collect(decoder, crops, span=3, pairs=pairs, kinds=kinds, batch_size=4)
    for kind in kinds:
        for a, b in pairs:
            expected = naive_cosine(kind, states[a], states[b]).item()
            assert statistics.cosine(kind, a, b) == pytest.approx(expected, abs=2e-5), (kind, a, b)


@pytest.mark.parametrize("rotated", [False, True])
def test_magnitudes_and_ratios_are_those_of_stored_states(tiny, crops, rotated):
    decoder, states = Decoder(tiny), [s.double() for s in stored_states(tiny, crops)[:-1]]
    if rotated:
        states = [s @ hadamard_matrix(s.shape[-1]) for s in states]
    statistics = collect(decoder, crops, span=3, batch_size=4, elementwise=[(1, 4)])
    torch.testing.assert_close(statistics.magnitude(2, rotated), states[2].abs().mean((0, 1)), rtol=1e-4, atol=1e-5)
    for a, b in [(0, 1), (1, 4), (3, 6)]:
        of_means = (states[b].abs().mean(1) / states[a].abs().mean(1)).mean(0)
        pooled = states[b].abs().sum((0, 1)) / states[a].abs().sum((0, 1))
        torch.testing.assert_close(statistics.ratio(a, b, "ratio-of-means", rotated), of_means, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(statistics.ratio(a, b, "pooled-l1", rotated), pooled, rtol=1e-4, atol=1e-5)
    elementwise = (states[4].abs() / states[1].abs()).mean((0, 1))
    # Near-zero denominators dominate Eq. 4, so float32 states give it only roughly.
    torch.testing.assert_close(statistics.ratio(1, 4, "elementwise", rotated), elementwise, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("rotated", [False, True])
def test_a_channel_that_is_zero_before_the_cut_is_left_alone(tiny, crops, rotated, estimator):
    rotation = hadamard_matrix(64) if rotated else torch.eye(64, dtype=torch.float64)
    keeps = rotation @ torch.diag((torch.arange(64) != 5).double()) @ rotation.T  # all but channel 5 of X H
    with torch.no_grad():
        weight = tiny.model.embed_tokens.weight
        weight.copy_(weight.double() @ keeps)
    x, y = (s.double() @ rotation for s in stored_states(tiny, crops)[0:3:2])
    assert x[..., 5].abs().max() < 1e-5 * x.abs().mean()  # rotated: but for rounding
    assert y[..., 5].abs().mean() > 0.1 * y.abs().mean()
    decoder = Decoder(tiny)
    statistics = collect(decoder, crops, span=2, batch_size=4, elementwise=[(0, 2)], moments=[(0, 2)])
    scales = statistics.ratio(0, 2, estimator, rotated)
    assert scales[5] == 1
    others = torch.arange(64) != 5
    assert scales[others].isfinite().all() and not (scales[others] == 1).any()
    if estimator == "ratio-of-means":
        expected = (y.abs().mean(1) / x.abs().mean(1)).mean(0)[others]
        torch.testing.assert_close(scales[others], expected, rtol=1e-4, atol=1e-5)


def test_a_channel_that_is_zero_in_one_sample_counts_as_one_there(tiny_llama, crops):
    crops[2] = 9
    with torch.no_grad():
        tiny_llama.model.embed_tokens.weight[9, 5] = 0
    x, y = (s.double().abs().mean(1)[:, 5] for s in stored_states(tiny_llama, crops)[:2])
    rest = torch.arange(len(crops)) != 2
    expected = ((y[rest] / x[rest]).sum() + 1) / len(crops)
    assert collect(Decoder(tiny_llama), crops).ratio(0, 1)[5].item() == pytest.approx(expected.item(), rel=1e-4)


def test_batch_size_changes_nothing_and_each_batch_costs_one_pass(tiny_llama, crops):
    decoder = Decoder(tiny_llama)
    in_one_batch = collect(decoder, crops, span=2, batch_size=6)
    assert decoder.executions == decoder.num_layers
    two = collect(decoder, crops, span=2, batch_size=1)
    assert decoder.executions == decoder.num_layers * 7
    assert in_one_batch.cosine("token", 1, 3) == pytest.approx(two.cosine("token", 1, 3), abs=1e-7)
    torch.testing.assert_close(in_one_batch.ratio(1, 3, rotated=True), two.ratio(1, 3, rotated=True), rtol=1e-5, atol=0)


def test_statistics_do_not_grow_with_samples(tiny_llama, crops):
    def held(statistics: Statistics) -> int:
        tensors = [*statistics.magnitudes.values(), *statistics.ratios.values()]
        return sum(t.numel() for t in tensors) + len(statistics.cosines)

    few = collect(Decoder(tiny_llama), crops[:2], span=2)
    many = collect(Decoder(tiny_llama), crops.repeat(5, 1), span=2)
    assert held(few) == held(many)


def test_unknown_cosines_and_distances_are_refused(tiny_llama, crops):
    with pytest.raises(UserError, match="unknown cosine"):
        collect(Decoder(tiny_llama), crops, kinds=("tokens",))
    with pytest.raises(UserError, match="up to 1 layers, not 3"):
        collect(Decoder(tiny_llama), crops).ratio(0, 3)

"""Least squares from moments against numpy's, on stored hidden states; sigma_d against its definition."""

import numpy as np
import pytest
import torch
from heads import streams

from common.calibration import collect, least_squares
from common.calibration.least_squares import Moments, Regression, RowRegression, silent
from common.hadamard import hadamard_matrix, hadamard_transform
from common.models.decoder import Decoder
from common.utils.errors import UserError


@pytest.fixture
def states(make_tiny, crops):
    """X[1] and X[4] of a tiny model as rows, float64, and its statistics."""
    decoder = Decoder(make_tiny("llama"))
    hidden = streams(decoder.model, crops)
    options = {"span": 3, "batch_size": 4, "elementwise": [(1, 4)], "moments": [(2, 3)], "matrices": [(1, 4)]}
    return hidden[1].double().flatten(0, 1), hidden[4].double().flatten(0, 1), collect(decoder, crops, **options)


def weighted(x, y):
    """Rows divided by the norms of x: unweighted least squares on them is weighted least squares on x and y."""
    norm = x.norm(dim=-1, keepdim=True)
    return x / norm, y / norm


def test_scalar_and_channel_factors_are_those_of_lstsq(states):
    x, y, statistics = states
    moments = statistics.least_squares(1, 4)
    for rotated in (False, True):
        rotation = hadamard_matrix(64) if rotated else torch.eye(64, dtype=torch.float64)
        x_w, y_w = weighted(x @ rotation, y @ rotation)
        scalar = np.linalg.lstsq(x_w.reshape(-1, 1).numpy(), y_w.flatten().numpy(), rcond=None)[0].item()
        assert moments.scalar() == pytest.approx(scalar, rel=1e-5)
        channels = [np.linalg.lstsq(x_w[:, [k]].numpy(), y_w[:, k].numpy(), rcond=None)[0].item() for k in range(64)]
        got = statistics.ratio(1, 4, "least-squares", rotated)
        np.testing.assert_allclose(got.numpy(), channels, rtol=1e-4, atol=1e-6)


def test_unexplained_is_the_weighted_error_left(states):
    x, y, statistics = states
    moments = statistics.least_squares(1, 4)
    x_w, y_w = weighted(x, y)

    def left(mapped):
        return ((mapped - y_w).square().sum() / (x_w - y_w).square().sum()).item()

    rotation = hadamard_matrix(64)
    d, matrix = moments.channels(True), moments.matrix()
    assert moments.unexplained(moments.scalar()) == pytest.approx(left(x_w * moments.scalar()), rel=1e-5)
    assert moments.unexplained(d, rotated=True) == pytest.approx(left(x_w @ rotation * d @ rotation.T), rel=1e-5)
    assert moments.unexplained(matrix) == pytest.approx(left(x_w @ matrix), rel=1e-4)
    assert moments.unexplained(1.0) == pytest.approx(1.0, rel=1e-9)
    assert moments.unexplained(matrix) < moments.unexplained(d, rotated=True) < moments.unexplained(moments.scalar())


def test_layers_that_change_nothing_leave_nothing_to_explain():
    moments, states = Moments(), torch.eye(4)
    moments.add(states, states)
    assert moments.unexplained(1.0) == moments.unexplained(moments.scalar()) == 1.0


def test_zero_tokens_and_zero_channels_are_left_as_they_are():
    x = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 2.0]])
    moments = Moments(matrices=True)
    moments.add(x, 3 * x + 1)
    assert moments.tokens == 1
    assert moments.channels()[0] == 1
    assert torch.isfinite(moments.matrix()).all()


def test_silence_is_seen_from_the_mean_channel_and_never_beside_overflow():
    assert silent(torch.tensor([0.0, 1e-9, 1e-4, 1.0])).tolist() == [True, True, False, False]
    assert silent(torch.tensor([[0.0, 0.0], [1e-40, 1e-40]])).tolist() == [[True, True], [False, False]]
    for bad in (float("inf"), float("nan")):  # scales are then not finite, which is refused
        assert not silent(torch.tensor([0.0, 1.0, bad])).any()


def test_sigma_d_is_the_standard_deviation_of_elementwise_ratios(states):
    x, y, statistics = states
    for rotated in (False, True):
        rotation = hadamard_matrix(64) if rotated else torch.eye(64, dtype=torch.float64)
        ratio = (y @ rotation).abs() / (x @ rotation).abs()
        expected = ratio.std(0, correction=0).mean().item()
        # float32 states: entries near zero decide, so they agree roughly
        assert statistics.spread(1, 4, rotated) == pytest.approx(expected, rel=0.05)


def test_what_a_rotation_rounds_in_place_of_a_zero_has_no_part_in_ratios(make_tiny, crops):
    """Three channels that cancel wherever their signs in H are alike; in float32 some of these sums are not quite zero."""
    model = make_tiny("llama")
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        ends = torch.rand(len(embedding), 2, generator=torch.Generator().manual_seed(1)) + 0.1
        embedding.zero_()
        for first, triple in enumerate(([1, 2, 7], [3, 4, 9])):  # others for every second token
            embedding[first::2, triple] = torch.cat([ends, -ends.sum(1, keepdim=True)], 1)[first::2]
    decoder = Decoder(model)
    statistics = collect(decoder, crops, span=2, elementwise=[(0, 2)])
    with torch.no_grad():
        x = decoder.embed_tokens(crops)
        y = decoder.run(x, 0, 2).double() @ hadamard_matrix(64)
    in_float32, x = hadamard_transform(x), x.double() @ hadamard_matrix(64)
    zero = x.abs() < 1e-6 * x.abs().mean(-1, keepdim=True)
    assert ((in_float32 != 0) & zero).any()  # else nothing is tried
    ratio = torch.where(zero, torch.nan, y.abs() / x.abs())
    expected, channels = ratio.nanmean((0, 1)), ~zero.all(0).all(0)
    got = statistics.ratio(0, 2, "elementwise", True)
    assert channels.sum() > 20
    torch.testing.assert_close(got[channels], expected[channels], rtol=1e-3, atol=1e-4)


def test_what_was_not_collected_is_named(states):
    *_, statistics = states
    with pytest.raises(UserError, match=r"no moments of X\[0\] and X\[1\]"):
        statistics.least_squares(0, 1)
    with pytest.raises(UserError, match="no C x C moments"):
        statistics.least_squares(2, 3).matrix()
    with pytest.raises(UserError, match="ridge must be a positive number, not -1"):
        statistics.least_squares(1, 4).matrix(-1)
    with pytest.raises(UserError, match="no element-wise ratio"):
        statistics.spread(0, 1)


def test_what_is_not_positive_definite_is_told():
    gram = torch.diag(torch.tensor([1.0, 2.0, 3.0, -1.0, 5.0], dtype=torch.float64))
    with pytest.raises(UserError, match="do not determine a matrix of 5 inputs"):
        Regression(lower=gram, cross=torch.ones(5, 2).double()).consumed(1e-6)


@pytest.mark.parametrize("intercept", [False, True])
def test_a_regression_in_the_memory_of_its_sums_is_the_same(intercept, monkeypatch):
    monkeypatch.setattr(least_squares, "WIDE_BYTES", 8 * 12 * 5)  # five rows at a time
    monkeypatch.setattr(least_squares, "SYMMETRIC_BLOCK", 5)
    generator = torch.Generator().manual_seed(3)
    inputs, missing, target = (torch.randn(2, 24, n, generator=generator) for n in (12, 6, 6))
    sums = Regression(intercept=intercept)
    sums.add(inputs, missing + 1, target)
    rows, lacks = (value.flatten(0, 1).double() for value in (inputs, missing + 1))
    if intercept:
        rows = torch.cat([rows, torch.ones(48, 1).double()], 1)
    r = 0.01 * rows[:, :12].square().sum() / 12
    damping = r.sqrt() * torch.eye(rows.shape[1]).double()
    damping[12:] = 0
    stacked = torch.cat([rows, damping]), torch.cat([lacks, torch.zeros(len(damping), 6).double()])
    best = torch.linalg.lstsq(*stacked).solution
    left = (lacks - rows @ best).square().sum().item()
    torch.testing.assert_close(sums.solved(0.01), best, rtol=1e-6, atol=1e-8)
    assert sums.residual(best) == pytest.approx(left, rel=1e-6)
    torch.testing.assert_close(sums.gram, rows.T @ rows)
    assert sums.fitted(0.01)[1] == pytest.approx(left, rel=1e-6)
    change, rest = sums.consumed(0.01)
    torch.testing.assert_close(change, best, rtol=1e-6, atol=1e-8)
    assert rest == pytest.approx(left, rel=1e-6) and sums.lower is None


def test_fewer_tokens_than_features_are_solved_by_their_rows(monkeypatch):
    monkeypatch.setattr(least_squares, "WIDE_BYTES", 8 * 40 * 5)
    monkeypatch.setattr(least_squares, "SYMMETRIC_BLOCK", 7)
    generator = torch.Generator().manual_seed(3)
    parts, rows = [RowRegression() for _ in range(2)], []
    for part, tokens in zip(parts, (24, 11), strict=True):
        batch = [torch.randn(tokens, size, generator=generator) for size in (40, 6, 6)]
        part.add(*batch)
        rows.append([value.double() for value in batch[:2]])

    def best(inputs, missing, ridge):
        penalty = (ridge * inputs.square().sum() / 40).sqrt() * torch.eye(40, dtype=torch.float64)
        stacked = torch.cat([inputs, penalty]), torch.cat([missing, missing.new_zeros(40, 6)])
        return torch.linalg.lstsq(*stacked).solution

    def rest(inputs, missing, change):
        return (missing - inputs @ change).square().sum().item()

    lefts = parts[0].residuals(parts[1], [1e-4, 1.0, float("inf")])
    expected = {ridge: rest(*rows[1], best(*rows[0], ridge)) for ridge in (1e-4, 1.0)}
    assert lefts == pytest.approx(expected | {float("inf"): rest(*rows[1], 0 * best(*rows[0], 1.0))}, rel=1e-6)
    for sums, (inputs, missing) in (
        (parts[0], rows[0]),
        (parts[0].with_(parts[1]), [torch.cat(both) for both in zip(*rows, strict=True)]),
    ):
        for ridge in (1e-4, 1.0):
            change, left = sums.fitted(ridge)
            torch.testing.assert_close(change, best(inputs, missing, ridge), rtol=1e-6, atol=1e-9)
            assert left == pytest.approx(rest(inputs, missing, change), rel=1e-6)
        assert sums.error == pytest.approx(missing.square().sum().item()) and sums.tokens == len(inputs)


def test_rows_that_are_not_finite_are_refused():
    """As by `Regression`: a float16 residual stream that overflows in the removed layers, of finite inputs."""
    inputs, missing = torch.ones(3, 40), torch.ones(3, 6)
    good, bad = RowRegression(), RowRegression()
    good.add(inputs + torch.eye(3, 40), missing, missing)
    bad.add(inputs, missing / 0, missing)
    for refused in (
        lambda: bad.fitted(1.0),
        lambda: good.residuals(bad, [1.0]),
        lambda: good.residuals(bad, [float("inf")]),
    ):
        with pytest.raises(UserError, match="states are not finite"):
            refused()

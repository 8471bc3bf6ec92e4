"""Least squares from moments against numpy's, on stored hidden states; sigma_d against its definition."""

import numpy as np
import pytest
import torch

from common.calibration import collect
from common.decoder import Decoder
from common.errors import UserError
from common.hadamard import hadamard_matrix
from common.moments import Moments, silent


@pytest.fixture
def crops():
    return torch.randint(3, 320, (6, 40), generator=torch.Generator().manual_seed(5))


@pytest.fixture
def states(make_tiny, crops):
    """X[1] and X[4] of a tiny model as rows, float64, and its statistics."""
    decoder = Decoder(make_tiny("llama"))
    with torch.no_grad():
        hidden = [decoder.embed_tokens(crops)]
        for layer in range(decoder.num_layers):
            hidden.append(decoder.run(hidden[-1], layer, layer + 1))
    options = {"span": 3, "batch_size": 4, "elementwise": [(1, 4)], "moments": [(2, 3)], "matrices": [(1, 4)]}
    return hidden[1].double().flatten(0, 1), hidden[4].double().flatten(0, 1), collect(decoder, crops, **options)


def weighted(x, y):
    """Rows divided by the norms of x: unweighted least squares on them is weighted least squares on x and y."""
    norm = x.norm(dim=-1, keepdim=True)
    return x / norm, y / norm


def test_scalar_and_channel_factors_are_those_of_lstsq(states):
    x, y, found = states
    moments = found.least_squares(1, 4)
    for rotated in (False, True):
        rotation = hadamard_matrix(64) if rotated else torch.eye(64, dtype=torch.float64)
        one, two = weighted(x @ rotation, y @ rotation)
        scalar = np.linalg.lstsq(one.reshape(-1, 1).numpy(), two.flatten().numpy(), rcond=None)[0].item()
        assert moments.scalar() == pytest.approx(scalar, rel=1e-5)
        channels = [np.linalg.lstsq(one[:, [k]].numpy(), two[:, k].numpy(), rcond=None)[0].item() for k in range(64)]
        got = found.ratio(1, 4, "least-squares", rotated)
        np.testing.assert_allclose(got.numpy(), channels, rtol=1e-4, atol=1e-6)


def test_the_matrix_is_ridge_regression_towards_the_identity(states):
    x, y, found = states
    one, two = weighted(x, y)
    penalty = 0.05 * len(one) / 64  # the Gram matrix of unit rows has as many rows as trace
    rows = torch.cat([one, penalty**0.5 * torch.eye(64, dtype=torch.float64)])
    change = torch.cat([two - one, torch.zeros(64, 64, dtype=torch.float64)])
    solved = np.eye(64) + np.linalg.lstsq(rows.numpy(), change.numpy(), rcond=None)[0]
    np.testing.assert_allclose(found.least_squares(1, 4).matrix(0.05).numpy(), solved, rtol=1e-3, atol=1e-5)
    nothing = found.least_squares(1, 4).matrix(1e12)
    torch.testing.assert_close(nothing, torch.eye(64, dtype=torch.float64), rtol=0, atol=1e-9)


def test_unexplained_is_the_weighted_error_left(states):
    x, y, found = states
    moments = found.least_squares(1, 4)
    one, two = weighted(x, y)

    def left(mapped):
        return ((mapped - two).square().sum() / (one - two).square().sum()).item()

    rotation = hadamard_matrix(64)
    d, matrix = moments.channels(True), moments.matrix()
    assert moments.unexplained(moments.scalar()) == pytest.approx(left(one * moments.scalar()), rel=1e-5)
    assert moments.unexplained(d, rotated=True) == pytest.approx(left(one @ rotation * d @ rotation.T), rel=1e-5)
    assert moments.unexplained(matrix) == pytest.approx(left(one @ matrix), rel=1e-4)
    assert moments.unexplained(1.0) == pytest.approx(1.0, rel=1e-9)
    assert moments.unexplained(matrix) < moments.unexplained(d, rotated=True) < moments.unexplained(moments.scalar())


def test_a_massive_token_counts_as_one():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 8, generator=generator)
    small, large = Moments(matrices=True), Moments(matrices=True)
    small.add(x, 2 * x)
    massive = x.clone()
    massive[7] *= 1e4
    y = 2 * massive
    y[7] = 3 * massive[7]
    large.add(massive, y)
    assert small.scalar() == pytest.approx(2)
    assert large.scalar() == pytest.approx(2 + 1 / 50)


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
    x, y, found = states
    for rotated in (False, True):
        rotation = hadamard_matrix(64) if rotated else torch.eye(64, dtype=torch.float64)
        ratio = (y @ rotation).abs() / (x @ rotation).abs()
        expected = ratio.std(0, correction=0).mean().item()
        # float32 states: entries near zero decide, so they agree roughly
        assert found.spread(1, 4, rotated) == pytest.approx(expected, rel=0.05)


def test_what_was_not_collected_is_named(states):
    *_, found = states
    with pytest.raises(UserError, match=r"no moments of X\[0\] and X\[1\]"):
        found.least_squares(0, 1)
    with pytest.raises(UserError, match="no C x C moments"):
        found.least_squares(2, 3).matrix()
    with pytest.raises(UserError, match="ridge must be a positive number, not -1"):
        found.least_squares(1, 4).matrix(-1)
    with pytest.raises(UserError, match="no element-wise ratio"):
        found.spread(0, 1)

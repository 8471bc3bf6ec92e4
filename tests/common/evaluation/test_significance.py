"""Paired statistics against closed forms, a naive bootstrap, and simulated pairs whose difference is known."""

import numpy as np
import pytest
from scipy import stats

from common.evaluation import significance


def pairs(rng, items, gain):
    """Two models on items of which most are easy or hard for both; the second is right `gain` more often."""
    hard = rng.random(items)
    return rng.random(items) < np.clip(hard, 0, 1 - gain), rng.random(items) < np.clip(hard, 0, 1 - gain) + gain


def test_a_replicate_draws_as_many_items_as_there_are_and_the_same_for_every_model():
    drawn = significance.draws("task", 37)
    assert drawn.shape == (significance.REPLICATES, 37) and (drawn.sum(axis=1) == 37).all()
    assert drawn.mean() == 1 and abs(drawn.var() - (1 - 1 / 37)) < 0.02  # multinomial
    assert not np.array_equal(significance.draws("another task", 37), drawn)
    values = np.arange(37.0)
    wide = stats.t.ppf(0.975, 36) / stats.norm.ppf(0.975) * np.sqrt(37 / 36)
    assert np.allclose(significance.resampled_means("task", values) - 18, wide * (drawn @ values / 37 - 18))
    means, higher = (significance.resampled_means("task", values + added) for added in (0, 5))
    assert np.allclose(higher - means, 5)


def interval_of_difference(first, second):
    return significance.interval(significance.resampled_means("t", second) - significance.resampled_means("t", first))


def test_the_interval_is_a_plain_bootstraps():
    """By scipy, with other random numbers: both ends agree within the noise of 2000 draws."""
    rng = np.random.default_rng(0)
    first, second = pairs(rng, 400, 0.06)
    interval = interval_of_difference(first, second)
    differences = second.astype(float) - first
    naive = stats.bootstrap((differences,), np.mean, n_resamples=2000, method="percentile", rng=rng)
    assert interval == pytest.approx(naive.confidence_interval, abs=0.25 * np.std(differences) / 20)


def test_of_few_items_the_interval_is_students():
    """24 windows: as wide as the t interval, and 95 % of those of simulated means hold the mean."""
    rng, inside, widths = np.random.default_rng(0), 0, []
    for _ in range(400):
        values = rng.standard_normal(24)
        low, high = significance.interval(significance.resampled_means("t", values))
        inside += low <= 0 <= high
        widths.append((high - low) / (2 * stats.t.ppf(0.975, 23) * stats.sem(values)))
    assert np.mean(widths) == pytest.approx(1, abs=0.03)
    assert 365 <= inside <= 393  # 380 expected, standard deviation 4.4


def test_the_interval_holds_the_known_difference_as_often_as_it_says():
    """200 simulated pairs of models whose true difference is 0.05: 95 % of the intervals hold it."""
    inside = 0
    for trial in range(200):
        rng = np.random.default_rng(trial)
        hard = rng.random(300)
        first, second = rng.random(300) < 0.9 * hard, rng.random(300) < 0.9 * hard + 0.05
        low, high = interval_of_difference(first, second)
        inside += low <= 0.05 <= high
    assert 180 <= inside <= 199  # 190 expected, standard deviation 3.1


def test_pairing_narrows_the_interval_where_models_agree():
    rng = np.random.default_rng(1)
    first = rng.random(1000) < 0.6
    two = np.where(rng.random(1000) < 0.05, ~first, first)  # they differ on a twentieth of the items
    same = significance.resampled_means("t", two) - significance.resampled_means("t", first)
    apart = significance.resampled_means("u", two) - significance.resampled_means("t", first)
    assert np.std(same) < 0.4 * np.std(apart)
    closed = np.std(two.astype(float) - first, ddof=1) / np.sqrt(1000)
    assert np.std(same) == pytest.approx(closed, rel=0.06)


def test_of_two_runs_the_replicates_spread_as_a_mean_of_two_does():
    assert significance.of_two("orders", 2.0, 5.0) == 3.5
    rng = np.random.default_rng(5)
    first, second = 4 + rng.normal(0, 0.1, (2, significance.REPLICATES))
    drawn = significance.of_two("orders", first, second + 1)
    assert set(drawn) <= {*first, *(second + 1)}
    assert drawn.mean() == pytest.approx(4.5, abs=0.03)
    assert drawn.var() == pytest.approx(0.1**2 + 1 / 4, rel=0.05)  # the items', and (one - other)^2 / 4
    again = significance.of_two("orders of another", first, second + 1)
    assert np.corrcoef(drawn, again)[0, 1] < 0.15
    assert np.array_equal(drawn, significance.of_two("orders", first, second + 1))


def test_what_has_only_an_error_is_normal_and_independent():
    first, second = significance.normal_means("a", 60.0, 3.0), significance.normal_means("b", 58.0, 4.0)
    assert np.std(first - second) == pytest.approx(5, rel=0.06)
    assert np.mean(first - second) == pytest.approx(2, abs=0.35)
    assert np.array_equal(first, significance.normal_means("a", 60.0, 3.0))
    low, high = significance.interval(first)
    assert low == pytest.approx(60 - 1.96 * 3, abs=0.5) and high == pytest.approx(60 + 1.96 * 3, abs=0.5)


@pytest.mark.parametrize("first, second", [(0, 0), (5, 0), (3, 9), (10, 10), (40, 61), (700, 800)])
def test_mcnemar_is_the_binomial_test_of_the_items_that_differ(first, second):
    one = np.array([True] * first + [False] * second + [True] * 20 + [False] * 30)
    two = np.array([False] * first + [True] * second + [True] * 20 + [False] * 30)
    expected = stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert significance.mcnemar(one, two) == pytest.approx(expected) == significance.mcnemar(two, one)

"""Compare two models on the same items: is their difference beyond chance?

Items are drawn with replacement, the same ones for every model (Efron, 1979; paired: Koehn, 2004), so that the items'
difficulty cancels in the difference. Each replicate is a vector of how often every item was drawn. For few items such
replicates are too close together; they are widened about the mean to Student's t (the expanded percentile interval of
Hesterberg, 2015).
"""

import math
import zlib
from collections.abc import Iterable
from functools import cache, lru_cache

import numpy as np
from scipy.special import ndtri, stdtrit
from threadpoolctl import ThreadpoolController

REPLICATES = 20000
LEVEL = 0.95
_AT_ONCE = 1 << 16  # draws that are counted at a time, in the processor's cache
_IN_CACHE = 1 << 18  # draws that become floats at a time
REMEMBERED = 2048  # replicates of means that a process keeps, 160 kB each
_resampled: dict[tuple[str, str, bytes], np.ndarray] = {}


def seed_of(name: str) -> int:
    """Return a seed that belongs to a name, so that the draws for one task do not depend on other tasks."""
    return zlib.crc32(name.encode())


@lru_cache(maxsize=64)
def draws(name: str, items: int) -> np.ndarray:
    """Return how often each item of the data set ``name`` is drawn in each replicate, [REPLICATES, items].

    Rows sum to `items`.
    """
    rng = np.random.default_rng(seed_of(f"{name}/{items}"))
    counts = np.zeros((REPLICATES, items), np.uint8 if items < 1 << 16 else np.uint16)
    step = max(1, _AT_ONCE // items)
    for first in range(0, REPLICATES, step):
        rows = min(step, REPLICATES - first)
        drawn = rng.integers(0, items, (rows, items))
        drawn += items * np.arange(rows)[:, None]
        counts[first : first + rows] = np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items)
    return counts


def spread(items: int) -> float:
    """Return the factor that widens bootstrap replicates of a mean of so many items to Student's interval at LEVEL.

    It is 1.005 for 500 items and 1.08 for 24.
    """
    if items < 2:
        return 1.0
    quantile = 0.5 + LEVEL / 2
    return math.sqrt(items / (items - 1)) * float(stdtrit(items - 1, quantile) / ndtri(quantile))


def student(differences: np.ndarray) -> tuple[float, float]:
    """Return Student's interval of the mean of two or more independent values."""
    values = np.asarray(differences, np.float64)
    half = stdtrit(len(values) - 1, 0.5 + LEVEL / 2) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def resampled_means(name: str, outcomes: np.ndarray, beside: Iterable[np.ndarray] = ()) -> np.ndarray:
    """Compute bootstrap replicates of the mean of one model's outcomes, widened to Student's interval (`spread`).

    Outcomes are right or wrong, or losses, [items]. Other models on the data of the same ``name`` get the same draws.
    Replicates of right or wrong are computed with those of other models ``beside`` that are likely to be needed: one
    product of matrices costs a sixth of as many products with one vector.

    Returns:
        Means [REPLICATES], read-only: tables that share a result share its replicates.
    """
    key = _key(name, outcomes)
    if key not in _resampled:
        batch = {key: outcomes}
        if outcomes.dtype == bool:
            similar = (other for other in beside if other.dtype == bool and len(other) == len(outcomes))
            batch |= {place: other for other in similar if (place := _key(name, other)) not in _resampled}
        _resampled.update(zip(batch, _means(name, list(batch.values())), strict=True))
        for oldest in list(_resampled)[:-REMEMBERED]:
            if oldest != key:
                del _resampled[oldest]
    return _resampled[key]


def _key(name: str, outcomes: np.ndarray) -> tuple[str, str, bytes]:
    return name, outcomes.dtype.str, outcomes.tobytes()


@cache
def _libraries() -> ThreadpoolController:
    """Return what sets the threads of numpy's matrix products. Looking for the loaded libraries takes milliseconds."""
    return ThreadpoolController()


def _means(name: str, models: list[np.ndarray]) -> list[np.ndarray]:
    """Return the replicates of each model's mean: of one model, or of several with outcomes right or wrong.

    One thread multiplies: the products are small, more threads mostly wait for one another, and sums of floats would
    depend on their number.
    """
    right = models[0].dtype == bool
    # counts of right answers are whole numbers, which single precision holds exactly in any order and adds up faster
    values = np.stack(models, axis=1).astype(np.float32) if right else models[0].astype(np.float64)
    drawn, items = draws(name, len(values)), len(values)
    step = max(1, _IN_CACHE // items)
    with _libraries().limit(limits=1, user_api="blas"):
        sums = np.concatenate([drawn[i : i + step] @ values for i in range(0, REPLICATES, step)])
    replicates = []
    for outcomes, column in zip(models, sums.reshape(REPLICATES, -1).T, strict=True):
        mean, means = outcomes.mean(dtype=np.float64), column.astype(np.float64) / items
        means = mean + spread(items) * (means - mean)
        means.setflags(write=False)
        replicates.append(means)
    return replicates


def of_two(name: str, first: float | np.ndarray, second: float | np.ndarray) -> float | np.ndarray:
    """Return the mean of two runs' values; each replicate is drawn from one of the runs.

    Between the runs that spreads replicates by (first - second)^2 / 4, the unbiased estimate of the variance of a mean of
    two. If runs differ more than their items vary, the interval is still too narrow: it spans the two, and the mean of
    all runs lies between two of them half of the time. Draws of other names are independent.
    """
    if np.ndim(first) == np.ndim(second) == 0:
        return (first + second) / 2
    return np.where(np.random.default_rng(seed_of(name)).integers(0, 2, REPLICATES) == 0, first, second)


def normal_means(name: str, value: float, error: float) -> np.ndarray:
    """Return [REPLICATES] of a value whose standard error alone is known; draws of other names are independent."""
    return value + error * np.random.default_rng(seed_of(name)).standard_normal(REPLICATES)


def interval(replicates: np.ndarray) -> tuple[float, float]:
    """Return the percentile interval that holds the LEVEL of the replicates."""
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(replicates, (tail, 100 - tail))
    return float(low), float(high)


def equivalent(replicates: np.ndarray, margin: float) -> bool:
    """Return whether a difference is within ``margin`` on either side, by two one-sided tests at the 5 % level each.

    Both reject where the percentile interval of 90 % of the replicates lies within the margin (Schuirmann, 1987).
    """
    low, high = np.percentile(replicates, (100 * (1 - LEVEL), 100 * LEVEL))
    return bool(-margin < low and high < margin)


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Return the exact two-sided p of McNemar's test (1947) for two models' right answers, bool [items].

    Only items that one model alone answers correctly distinguish the two. Under the null hypothesis each such item is a
    fair coin.
    """
    first_only, second_only = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    items = first_only + second_only
    tail = sum(math.comb(items, k) for k in range(min(first_only, second_only) + 1))
    return min(1.0, tail / 2 ** (items - 1)) if items else 1.0

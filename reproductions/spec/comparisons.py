"""The vocabulary of claims: comparisons of one side's numbers, as tables of every paper declare them.

A check lists the comparisons that a claim is made of. It is given numbers, or arrays of replicates of them
(`reproductions.claims.verdicts`), and treats both alike; None stands where there is no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from reproductions.spec.registry import Lookup

Pairs = list[tuple[str, str]]  # group and sparsity, as rows have them
Key = tuple[str, str, str, str]  # group, sparsity, method, column's id


class Named(NamedTuple):
    """An id in a text, in whose place people read a label. kind: ``group``, ``method`` or ``column``."""

    kind: str
    id: str


Words = tuple[str | Named, ...]  # a text whose labels are not filled in yet


def told(words: Words, labels: Mapping[Named, str]) -> str:
    """Return a text with its labels; an id without a label stands for itself."""
    return "".join(labels.get(part, part.id) if isinstance(part, Named) else part for part in words)


def _method(key: Key) -> Named:
    return Named("method", key[2])


Number = float | np.ndarray
# Units: differences in points or percent; a share of the dense model's number; a quotient; "" is a plain number.
POINTS, PERCENT, OF_DENSE, TIMES = "points", "%", "% of dense", "times"


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim: a difference, and the range in which the claim has it.

    what: in words, ids in the place of labels (see `told`). difference: in `unit`.
    low, high: the range; ``closed``: its ends belong to it; ``inside``: the claim has
    the difference in it, else out of it. cells: those that it is of; of two of one column, the first against the second.
    each: of one number against several, every one of these comparisons; by the numbers as they are it is the one against the
    best of them, which is what is shown here.
    """

    what: Words
    difference: Number
    unit: str
    cells: tuple[Key, ...]
    low: float = -math.inf
    high: float = math.inf
    closed: bool = False
    inside: bool = True
    each: tuple[Comparison, ...] = ()

    @property
    def slack(self) -> float:
        """Return the distance of the difference from where the claim would change; negative where it does not hold."""
        inner = float(min(self.difference - self.low, self.high - self.difference))
        return inner if self.inside else -inner

    @property
    def middle(self) -> float:
        """The slack of replicates' mean, or of a plain number: by which one of several is told to be nearest."""
        return replace(self, difference=float(np.mean(self.difference))).slack

    @property
    def holds(self) -> bool:
        """Return whether the numbers as they are support the claim."""
        return self.slack >= 0 if self.closed == self.inside else self.slack > 0

    def verdict(self, least: float, most: float) -> bool | None:
        """Of a difference between two numbers: whether the claim holds for all of these; None: for some of them."""
        within = self.low <= least and most <= self.high if self.closed else self.low < least and most < self.high
        beyond = most < self.low or least > self.high
        if within or beyond:
            return within == self.inside
        return None


Check = Callable[[Lookup, Pairs], list[Comparison]]


def where(group: str, sparsity: str) -> Words:
    """Return a setting in words."""
    return (Named("group", group), *([f" {sparsity}"] if sparsity else []))


def against(
    setting: tuple[str, str],
    ours: tuple[Key, Number],
    theirs: list[tuple[Key, Number]],
    *,
    lower: bool = False,
    within: float = 0.0,
    unit: str = POINTS,
) -> Comparison:
    """Compare one number with the best of others, in `unit` or, where less is better (`lower`), in percent of it.

    within: it may be worse by so many of the unit; where less is better, by so large a share.
    """
    each = tuple(_against_one(setting, ours, other, lower, within, unit) for other in theirs)
    if len(each) == 1:
        return each[0]
    nearest = min(each, key=lambda one: -math.inf if np.isnan(one.difference).any() else one.middle)
    return replace(nearest, each=each)


def _against_one(
    setting: tuple[str, str], ours: tuple, theirs: tuple, lower: bool, within: float, unit: str
) -> Comparison:
    (key, value), (other, number) = ours, theirs
    names = (_method(key), " against ", _method(other))
    if key[2] == other[2]:
        names = (_method(key), f" {key[1]} against {other[1]}")
    what = (*where(*setting), ": ", *names)
    if lower:
        return Comparison(what, 100 * (value / number - 1), PERCENT, (key, other), high=100 * within)
    return Comparison(what, value - number, unit, (key, other), low=-within)


def alike_within(what: Words, difference: Number, unit: str, cells: tuple[Key, ...], most: float) -> Comparison:
    """Return a difference of at most so much, either way."""
    return Comparison(what, difference, unit, cells, -most, most, closed=True)


def per_setting(compare: Callable[[Lookup, tuple[str, str]], Iterable[Comparison]]) -> Check:
    """Return the comparisons that a function makes of each setting."""
    return lambda cell, settings: [one for setting in settings for one in compare(cell, setting)]


def beats(
    method: str, *others: str, column: str = "RP", lower: bool = False, within: float = 0.0, unit: str = POINTS
) -> Check:
    """In every setting, ``method`` is above each of ``others`` that has a number; ``lower``: below. within: see `against`."""

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        key = (*setting, method, column)
        ours = cell(*key)
        theirs = [(k, v) for o in others if (v := cell(*(k := (*setting, o, column)))) is not None]
        if ours is not None and theirs:
            yield against(setting, (key, ours), theirs, lower=lower, within=within, unit=unit)

    return check


def ahead_by(
    setting: tuple[str, str], ours: str, theirs: str, column: str, least: float, lower: bool = False, unit: str = POINTS
) -> Check:
    """In one setting, ours is at least so many points above theirs, or percent of theirs; ``lower``: percent below."""

    def check(cell: Lookup, settings: Pairs) -> list[Comparison]:
        keys = tuple((*setting, method, column) for method in (ours, theirs))
        one, other = (cell(*key) for key in keys)
        if one is None or other is None:
            return []
        what = (*where(*setting), ": ", Named("method", ours), " against ", Named("method", theirs))
        if lower:
            return [Comparison(what, 100 * (one / other - 1), PERCENT, keys, high=-least, closed=True)]
        ahead = one - other if unit == POINTS else 100 * (one / other - 1)
        return [Comparison(what, ahead, unit, keys, low=least, closed=True)]

    return check


def every(*checks: Check) -> Check:
    """Return the comparisons of several checks."""
    return lambda cell, settings: [comparison for one in checks for comparison in one(cell, settings)]


def ladder(methods: Iterable[str], column: str, lower: bool = False) -> Check:
    """Return each method of a ladder is better than the one before it."""
    steps = list(methods)
    return every(*(beats(b, a, column=column, lower=lower) for a, b in zip(steps, steps[1:], strict=False)))


def ratio_of(group: str, numerator: str, denominator: str, column: str, least: float) -> Check:
    """In the first setting of a model, one method's number is at least ``least`` times another's."""

    def check(cell: Lookup, settings: Pairs) -> list[Comparison]:
        for setting in settings or [(group, "")]:
            keys = [(*setting, method, column) for method in (numerator, denominator)]
            above, below = (cell(*key) for key in keys)
            if above is not None and below:
                what = (*where(*setting), ": ", Named("column", column), ", ")
                what += (Named("method", numerator), " over ", Named("method", denominator))
                return [Comparison(what, above / below, TIMES, tuple(keys), low=least, closed=True)]
        return []

    return check


def steady(methods: Iterable[str], columns: Iterable[str], within: float) -> Check:
    """In every setting the numbers of several methods differ by no more than a share ``within`` of the first one's."""
    methods, columns = list(methods), list(columns)

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        for column in columns:
            keys = [(*setting, method, column) for method in methods]
            if any(cell(*key) is None for key in keys):
                continue
            for key in keys[1:]:
                change = 100 * (cell(*key) / cell(*keys[0]) - 1)
                what = (*where(*setting), ", ", Named("column", column), ": ")
                what += (_method(key), " against ", _method(keys[0]))
                yield alike_within(what, change, PERCENT, (key, keys[0]), 100 * within)

    return check


def best_of(ours: Iterable[str], others: Iterable[str], column: str, lower: bool = False) -> Check:
    """In every setting the best of ``ours`` is better than the best of ``others``."""
    ours, others = list(ours), list(others)

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        sides = [
            [(k, v) for m in methods if (v := cell(*(k := (*setting, m, column)))) is not None]
            for methods in (ours, others)
        ]
        if all(sides):
            sign = 1 if lower else -1
            best = min(sides[0], key=lambda found: sign * float(np.mean(found[1])))
            yield against(setting, best, sides[1], lower=lower)

    return check


def chosen(ours: Iterable[str], others: Iterable[str], column: str, *, by: str, lower: bool = False) -> Check:
    """In every setting that one of ``ours`` which is lowest in the column ``by`` is better than each of ``others``.

    Nothing is said where that one has no number in the column that is judged. Choose by another column than that, since the
    best of several is flattered by the items it was chosen on, or expect margins far beyond what they vary by.
    """
    ours, others = list(ours), list(others)

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        known = [m for m in ours if cell(*setting, m, by) is not None]
        if known:
            best = min(known, key=lambda method: float(np.mean(cell(*setting, method, by))))
            yield from beats(best, *others, column=column, lower=lower)(cell, [setting])

    return check


def without_number(method: str, column: str, beside: str, run: str) -> Check:
    """In every setting where ``beside`` has a number in ``column``, ``method`` has none, or one that is not a number.

    run: a column in which ``method`` has a number where it was run at all; elsewhere nothing is said.
    """

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        key = (*setting, method, column)
        if cell(*setting, beside, column) is not None and cell(*setting, method, run) is not None:
            there = (value := cell(*key)) is not None and not np.isnan(value).any()
            what = (*where(*setting), ": numbers for ", Named("column", column), " of ", _method(key))
            what += (" (none: it diverged)",)
            yield Comparison(what, float(there), "", (key,), high=0, closed=True)

    return check


def alike(method: str, other: str, columns: Iterable[str]) -> Check:
    """In a setting two methods have the same number in every column that either has one in."""
    columns = list(columns)

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        one, two = ([cell(*setting, name, column) for column in columns] for name in (method, other))
        if any(value is not None for value in one) and any(value is not None for value in two):
            same = sum(a == b for a, b in zip(one, two, strict=True))
            what = (*where(*setting), ": columns alike of ", Named("method", method))
            what += (" and ", Named("method", other))
            keys = ((*setting, method, columns[0]),)
            yield Comparison(what, float(same), "", keys, low=len(columns), closed=True)

    return check


def column_below(column: str, other: str, method: str = "observed") -> Check:
    """In every setting one column of a figure's row is below another."""

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        keys = tuple((*setting, method, name) for name in (column, other))
        one, two = (cell(*key) for key in keys)
        if one is not None and two is not None:
            what = (*where(*setting), ": ", Named("column", column), " against ", Named("column", other))
            yield Comparison(what, 100 * (one / two - 1), PERCENT, keys, high=0)

    return check


def between(column: str, low: float, high: float, method: str = "observed", *, strict: bool = False) -> Check:
    """In every setting a column of a figure's row lies in a range, its ends included (`strict`: not included)."""

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        key = (*setting, method, column)
        if (value := cell(*key)) is not None:
            what = (*where(*setting), ": ", Named("column", column))
            yield Comparison(what, value, "", (key,), low, high, not strict)

    return check


def in_most(holding: int, comparisons: int) -> bool:
    """Return whether more than half of a claim's comparisons hold."""
    return 2 * holding > comparisons

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
    """An id in a text, which is replaced by a label for people. kind: ``group``, ``method`` or ``column``."""

    kind: str
    id: str


Words = tuple[str | Named, ...]  # a text whose labels are not filled in yet


def told(words: Words, labels: Mapping[Named, str]) -> str:
    """Return a text with its labels filled in; an id without a label stands for itself."""
    return "".join(labels.get(part, part.id) if isinstance(part, Named) else part for part in words)


def _method(key: Key) -> Named:
    return Named("method", key[2])


Number = float | np.ndarray
# Units: differences in points or percent; a share of the dense model's number; a quotient; "" is a plain number.
POINTS, PERCENT, OF_DENSE, TIMES = "points", "%", "% of dense", "times"


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim: a difference, and the range in which the claim places it.

    Attributes:
        what: Description, with ids in place of labels (see `told`).
        difference: The difference in ``unit``, or replicates of it.
        unit: `POINTS`, `PERCENT`, `OF_DENSE`, `TIMES` or "".
        cells: Cells that it compares; of two in one column, the first with the second.
        low: Lower end of the range.
        high: Upper end of the range.
        closed: The ends belong to the range.
        inside: The claim places the difference inside the range; otherwise outside.
        each: If one number is compared with several, each of these comparisons; this one is then with the best of them.
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
        """Return the distance of the difference from the end of the claim's range; negative if the claim does not hold."""
        inner = float(min(self.difference - self.low, self.high - self.difference))
        return inner if self.inside else -inner

    @property
    def middle(self) -> float:
        """The slack of the replicates' mean, or of a plain number, which decides the nearest of several comparisons."""
        return replace(self, difference=float(np.mean(self.difference))).slack

    @property
    def holds(self) -> bool:
        """Return whether the numbers themselves support the claim."""
        return self.slack >= 0 if self.closed == self.inside else self.slack > 0

    def verdict(self, least: float, most: float) -> bool | None:
        """Return whether the claim is true for all differences from ``least`` to ``most``; None if for some of them."""
        within = self.low <= least and most <= self.high if self.closed else self.low < least and most < self.high
        beyond = most < self.low or least > self.high
        if within or beyond:
            return within == self.inside
        return None


Check = Callable[[Lookup, Pairs], list[Comparison]]


def numbers(cell: Lookup, keys: Iterable[Key]) -> list[tuple[Key, Number]]:
    """Return the keys that have a number, each with it."""
    return [(key, value) for key in keys if (value := cell(*key)) is not None]


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

    Args:
        setting: Group and sparsity.
        ours: Key and number of the one.
        theirs: Keys and numbers of the others.
        lower: Less is better.
        within: Tolerance, in ``unit``; with ``lower``, as a share.
        unit: Unit of the difference.
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
    """Return a comparison whose difference may be at most ``most`` either way."""
    return Comparison(what, difference, unit, cells, -most, most, closed=True)


def per_setting(compare: Callable[[Lookup, tuple[str, str]], Iterable[Comparison]]) -> Check:
    """Return a check that makes a function's comparisons in each setting."""
    return lambda cell, settings: [one for setting in settings for one in compare(cell, setting)]


def beats(
    method: str, *others: str, column: str = "RP", lower: bool = False, within: float = 0.0, unit: str = POINTS
) -> Check:
    """Return a check that ``method`` is above each of ``others`` that has a number, in every setting.

    ``lower``: below. ``within``: see `against`.
    """

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        key = (*setting, method, column)
        ours = cell(*key)
        theirs = numbers(cell, [(*setting, other, column) for other in others])
        if ours is not None and theirs:
            yield against(setting, (key, ours), theirs, lower=lower, within=within, unit=unit)

    return check


def ahead_by(
    setting: tuple[str, str], ours: str, theirs: str, column: str, least: float, lower: bool = False, unit: str = POINTS
) -> Check:
    """Return a check that, in one setting, ours is at least ``least`` points above theirs.

    With the unit percent it is at least so many percent of theirs above; with ``lower``, at least so many percent
    below.
    """

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
    """Return a check that makes the comparisons of several checks."""
    return lambda cell, settings: [comparison for one in checks for comparison in one(cell, settings)]


def each_beats(rivals: Iterable[tuple[str, ...]], **how) -> Check:
    """Return a check that the first method of each tuple is better than its others; ``how``: options of `beats`."""
    return every(*(beats(*methods, **how) for methods in rivals))


def ladder(methods: Iterable[str], column: str, lower: bool = False) -> Check:
    """Return a check that each method of a ladder is better than the one before it."""
    steps = list(methods)
    return each_beats(zip(steps[1:], steps), column=column, lower=lower)


def ratio_of(group: str, numerator: str, denominator: str, column: str, least: float) -> Check:
    """Return a check that one method's number is at least ``least`` times another's, in the first setting of a model."""

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
    """Return a check that in every setting several methods differ from the first by at most a share ``within``."""
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
    """Return a check that the best of ``ours`` is better than the best of ``others``, in every setting."""
    ours, others = list(ours), list(others)

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        sides = [numbers(cell, [(*setting, method, column) for method in methods]) for methods in (ours, others)]
        if all(sides):
            sign = 1 if lower else -1
            best = min(sides[0], key=lambda found: sign * float(np.mean(found[1])))
            yield against(setting, best, sides[1], lower=lower)

    return check


def chosen(ours: Iterable[str], others: Iterable[str], column: str, *, by: str, lower: bool = False) -> Check:
    """Return a check that the one of ``ours`` that is lowest in column ``by`` is better than each of ``others``.

    It covers every setting in which that method has a number in ``column``. Use two different columns: the best of
    several is flattered by the items that it was chosen on, unless margins are far beyond their variation.
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
    """Return a check that ``method`` has no number in ``column`` in every setting where ``beside`` has one.

    NaN counts as no number. run: a column in which ``method`` has a number wherever it was run; other settings are left
    out.
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
    """Return a check that two methods have the same number in every column in which either has one."""
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
    """Return a check that one column of a figure's row is below another, in every setting."""

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        keys = tuple((*setting, method, name) for name in (column, other))
        one, two = (cell(*key) for key in keys)
        if one is not None and two is not None:
            what = (*where(*setting), ": ", Named("column", column), " against ", Named("column", other))
            yield Comparison(what, 100 * (one / two - 1), PERCENT, keys, high=0)

    return check


def between(column: str, low: float, high: float, method: str = "observed", *, strict: bool = False) -> Check:
    """Return a check that a column of a figure's row lies in a range, in every setting.

    The ends are included, or with ``strict`` excluded.
    """

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

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


def fill_labels(words: Words, labels: Mapping[Named, str]) -> str:
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
        what: Description, with ids in place of labels (see `fill_labels`).
        difference: The difference in ``unit``, or replicates of it.
        unit: `POINTS`, `PERCENT`, `OF_DENSE`, `TIMES` or "".
        cells: Cells that it compares; of two in one column, the first with the second.
        low: Lower end of the range.
        high: Upper end of the range.
        closed: The ends belong to the range.
        inside: The claim places the difference inside the range; otherwise outside.
        parts: If one number is compared with several, each of these comparisons; this one is then with the best of them.
    """

    what: Words
    difference: Number
    unit: str
    cells: tuple[Key, ...]
    low: float = -math.inf
    high: float = math.inf
    closed: bool = False
    inside: bool = True
    parts: tuple[Comparison, ...] = ()

    @property
    def slack(self) -> float:
        """Return the distance of the difference from the end of the claim's range; negative if the claim does not hold."""
        inner = float(min(self.difference - self.low, self.high - self.difference))
        return inner if self.inside else -inner

    @property
    def middle(self) -> float:
        """Return the slack of the replicates' mean, or of a plain number; it decides the nearest of several comparisons."""
        return replace(self, difference=float(np.mean(self.difference))).slack

    @property
    def holds(self) -> bool:
        """Return whether the numbers themselves support the claim."""
        return self.slack >= 0 if self.closed == self.inside else self.slack > 0

    def verdict(self, lowest: float, highest: float) -> bool | None:
        """Return whether the claim is true for all differences from ``lowest`` to ``highest``; None if for some of them."""
        if highest < self.low or lowest > self.high:
            return not self.inside
        if self.low < lowest and highest < self.high or self.closed and self.low <= lowest and highest <= self.high:
            return self.inside
        return None


Check = Callable[[Lookup, Pairs], list[Comparison]]


def numbers(cell: Lookup, keys: Iterable[Key]) -> list[tuple[Key, Number]]:
    """Return the keys that have a number, each with it."""
    return [(key, value) for key in keys if (value := cell(*key)) is not None]


def setting_words(group: str, sparsity: str) -> Words:
    """Return a setting in words."""
    return (Named("group", group), *([f" {sparsity}"] if sparsity else []))


def against(
    setting: tuple[str, str],
    own: tuple[Key, Number],
    rivals: list[tuple[Key, Number]],
    *,
    lower: bool = False,
    within: float = 0.0,
    unit: str = POINTS,
) -> Comparison:
    """Compare one number with the best of others, in `unit` or, where less is better (`lower`), in percent of it.

    own, rivals: keys and numbers. within: tolerance, in ``unit``; with ``lower``, as a share.
    """
    comparisons = tuple(_against_one(setting, own, rival, lower, within, unit) for rival in rivals)
    if len(comparisons) == 1:
        return comparisons[0]
    nearest = min(comparisons, key=lambda c: -math.inf if np.isnan(c.difference).any() else c.middle)
    return replace(nearest, parts=comparisons)


def _against_one(
    setting: tuple[str, str], own: tuple, rival: tuple, lower: bool, within: float, unit: str
) -> Comparison:
    (own_key, own_value), (rival_key, rival_value) = own, rival
    sides = (_method(own_key), " against ", _method(rival_key))
    if own_key[2] == rival_key[2]:
        sides = (_method(own_key), f" {own_key[1]} against {rival_key[1]}")
    words = (*setting_words(*setting), ": ", *sides)
    if lower:
        return Comparison(words, 100 * (own_value / rival_value - 1), PERCENT, (own_key, rival_key), high=100 * within)
    return Comparison(words, own_value - rival_value, unit, (own_key, rival_key), low=-within)


def alike_within(words: Words, difference: Number, unit: str, cells: tuple[Key, ...], limit: float) -> Comparison:
    """Return a comparison whose difference may be at most ``limit`` either way."""
    return Comparison(words, difference, unit, cells, -limit, limit, closed=True)


def per_setting(compare: Callable[[Lookup, tuple[str, str]], Iterable[Comparison]]) -> Check:
    """Return a check that makes a function's comparisons in each setting."""
    return lambda cell, settings: [comparison for setting in settings for comparison in compare(cell, setting)]


def beats(
    method: str, *others: str, column: str = "RP", lower: bool = False, within: float = 0.0, unit: str = POINTS
) -> Check:
    """Return a check that ``method`` is above each of ``others`` that has a number, in every setting.

    ``lower``: below. ``within``: see `against`.
    """

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        key = (*setting, method, column)
        value = cell(*key)
        rivals = numbers(cell, [(*setting, other, column) for other in others])
        if value is not None and rivals:
            yield against(setting, (key, value), rivals, lower=lower, within=within, unit=unit)

    return check


def ahead_by(
    setting: tuple[str, str],
    method: str,
    rival: str,
    column: str,
    least: float,
    lower: bool = False,
    unit: str = POINTS,
) -> Check:
    """Return a check that, in one setting, ``method`` is at least ``least`` points above ``rival``.

    With the unit percent it is at least so many percent of its number above; with ``lower``, at least so many percent
    below.
    """

    def check(cell: Lookup, settings: Pairs) -> list[Comparison]:
        keys = tuple((*setting, name, column) for name in (method, rival))
        value, rival_value = (cell(*key) for key in keys)
        if value is None or rival_value is None:
            return []
        words = (*setting_words(*setting), ": ", Named("method", method), " against ", Named("method", rival))
        if lower:
            return [Comparison(words, 100 * (value / rival_value - 1), PERCENT, keys, high=-least, closed=True)]
        ahead = value - rival_value if unit == POINTS else 100 * (value / rival_value - 1)
        return [Comparison(words, ahead, unit, keys, low=least, closed=True)]

    return check


def all_of(*checks: Check) -> Check:
    """Return a check that makes the comparisons of several checks."""
    return lambda cell, settings: [comparison for check in checks for comparison in check(cell, settings)]


def each_beats(rivals: Iterable[tuple[str, ...]], **how) -> Check:
    """Return a check that the first method of each tuple is better than its others; ``how``: options of `beats`."""
    return all_of(*(beats(*methods, **how) for methods in rivals))


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
                words = (*setting_words(*setting), ": ", Named("column", column), ", ")
                words += (Named("method", numerator), " over ", Named("method", denominator))
                return [Comparison(words, above / below, TIMES, tuple(keys), low=least, closed=True)]
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
                words = (*setting_words(*setting), ", ", Named("column", column), ": ")
                words += (_method(key), " against ", _method(keys[0]))
                yield alike_within(words, change, PERCENT, (key, keys[0]), 100 * within)

    return check


def best_of(candidates: Iterable[str], rivals: Iterable[str], column: str, lower: bool = False) -> Check:
    """Return a check that the best of ``candidates`` is better than the best of ``rivals``, in every setting."""
    candidates, rivals = list(candidates), list(rivals)

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        sides = [numbers(cell, [(*setting, method, column) for method in methods]) for methods in (candidates, rivals)]
        if all(sides):
            sign = 1 if lower else -1
            best = min(sides[0], key=lambda pair: sign * float(np.mean(pair[1])))
            yield against(setting, best, sides[1], lower=lower)

    return check


def lowest_beats(
    candidates: Iterable[str], rivals: Iterable[str], column: str, *, by: str, lower: bool = False
) -> Check:
    """Return a check that the one of ``candidates`` that is lowest in column ``by`` is better than each of ``rivals``.

    It covers every setting in which that method has a number in ``column``. Use two different columns: the best of
    several is flattered by the items that it was chosen on, unless margins are far beyond their variation.
    """
    candidates, rivals = list(candidates), list(rivals)

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        measured = [method for method in candidates if cell(*setting, method, by) is not None]
        if measured:
            best = min(measured, key=lambda method: float(np.mean(cell(*setting, method, by))))
            yield from beats(best, *rivals, column=column, lower=lower)(cell, [setting])

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
            has_number = (value := cell(*key)) is not None and not np.isnan(value).any()
            words = (
                *setting_words(*setting),
                ": settings with a number for ",
                Named("column", column),
                " of ",
                _method(key),
            )
            words += (" (0 if it diverged)",)
            yield Comparison(words, float(has_number), "", (key,), high=0, closed=True)

    return check


def alike(method: str, other: str, columns: Iterable[str]) -> Check:
    """Return a check that two methods have the same number in every column in which either has one."""
    columns = list(columns)

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        values, others = ([cell(*setting, name, column) for column in columns] for name in (method, other))
        if any(value is not None for value in values) and any(value is not None for value in others):
            equal = sum(a == b for a, b in zip(values, others, strict=True))
            words = (*setting_words(*setting), ": equal columns of ", Named("method", method))
            words += (" and ", Named("method", other))
            keys = ((*setting, method, columns[0]),)
            yield Comparison(words, float(equal), "", keys, low=len(columns), closed=True)

    return check


def column_below(column: str, other: str, method: str = "observed") -> Check:
    """Return a check that one column of a figure's row is below another, in every setting."""

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        keys = tuple((*setting, method, name) for name in (column, other))
        value, other_value = (cell(*key) for key in keys)
        if value is not None and other_value is not None:
            words = (*setting_words(*setting), ": ", Named("column", column), " against ", Named("column", other))
            yield Comparison(words, 100 * (value / other_value - 1), PERCENT, keys, high=0)

    return check


def between(column: str, low: float, high: float, method: str = "observed", *, strict: bool = False) -> Check:
    """Return a check that a column of a figure's row lies in a range, in every setting.

    The ends are included, or with ``strict`` excluded.
    """

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        key = (*setting, method, column)
        if (value := cell(*key)) is not None:
            words = (*setting_words(*setting), ": ", Named("column", column))
            yield Comparison(words, value, "", (key,), low, high, not strict)

    return check


def in_most(holding: int, comparisons: int) -> bool:
    """Return whether more than half of a claim's comparisons hold."""
    return 2 * holding > comparisons

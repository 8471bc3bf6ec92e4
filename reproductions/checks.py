"""The vocabulary of claims: checks on one side's numbers, as tables of every paper declare them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from reproductions.registry import Lookup

Pairs = list[tuple[str, str]]  # a model's label and the share of it that is removed, as rows have them
Check = Callable[[Lookup, Pairs], bool | None]


def beats(method: str, *others: str, column: str = "RP", lower: bool = False, within: float = 0.0) -> Check:
    """In every setting, ``method`` is above each of ``others`` that has a number (``lower``: below; by a share ``within``).

    None where there is no setting with both.
    """

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        verdicts = []
        for setting in settings:
            ours = cell(*setting, method, column)
            theirs = [value for other in others if (value := cell(*setting, other, column)) is not None]
            if ours is not None and theirs:
                verdicts.append(ours < min(theirs) * (1 + within) if lower else ours > max(theirs) * (1 - within))
        return all(verdicts) if verdicts else None

    return check


def every(*checks: Check) -> Check:
    """All of several checks; None where none of them can be made."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        verdicts = [verdict for one in checks if (verdict := one(cell, settings)) is not None]
        return all(verdicts) if verdicts else None

    return check


def ladder(methods: Iterable[str], column: str, lower: bool = False) -> Check:
    """Each method of a ladder is better than the one before it."""
    steps = list(methods)
    return every(*(beats(b, a, column=column, lower=lower) for a, b in zip(steps, steps[1:], strict=False)))


def ratio_of(label: str, numerator: str, denominator: str, column: str, least: float) -> Check:
    """In the first setting of a model, one method's number is at least ``least`` times another's."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        for setting in settings or [(label, "")]:
            above, below = (cell(*setting, method, column) for method in (numerator, denominator))
            if above is not None and below:
                return above / below >= least
        return None

    return check


def steady(methods: Iterable[str], columns: Iterable[str], within: float) -> Check:
    """In every setting the numbers of several methods differ by no more than a share ``within`` of the first one's."""
    methods, columns = list(methods), list(columns)

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        verdicts = []
        for setting in settings:
            for column in columns:
                values = [cell(*setting, method, column) for method in methods]
                if None not in values:
                    verdicts.append(all(abs(value - values[0]) <= within * values[0] for value in values))
        return all(verdicts) if verdicts else None

    return check


def best_of(ours: Iterable[str], others: Iterable[str], column: str, lower: bool = False) -> Check:
    """In every setting the best of ``ours`` is better than the best of ``others``."""
    ours, others = list(ours), list(others)
    best = min if lower else max

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        verdicts = []
        for setting in settings:
            sides = [[v for m in methods if (v := cell(*setting, m, column)) is not None] for methods in (ours, others)]
            if all(sides):
                one, other = map(best, sides)
                verdicts.append(one < other if lower else one > other)
        return all(verdicts) if verdicts else None

    return check


def without_number(method: str, column: str, beside: str) -> Check:
    """In every setting where ``beside`` has a number in ``column``, ``method`` has none, or one that is not a number."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        measured = [setting for setting in settings if cell(*setting, beside, column) is not None]
        values = [cell(*setting, method, column) for setting in measured]
        return all(value is None or math.isnan(value) for value in values) if values else None

    return check


def mostly_alike(method: str, other: str, columns: Iterable[str]) -> Check:
    """In more than half of the settings two methods have the same number in every column that either has one in."""
    columns = list(columns)

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        verdicts = []
        for setting in settings:
            one, two = ([cell(*setting, name, column) for column in columns] for name in (method, other))
            if any(value is not None for value in one) and any(value is not None for value in two):
                verdicts.append(one == two)
        return 2 * sum(verdicts) > len(verdicts) if verdicts else None

    return check


def column_below(column: str, other: str, method: str = "observed") -> Check:
    """In every setting one column of a figure's row is below another."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        pairs = [[cell(*setting, method, name) for name in (column, other)] for setting in settings]
        verdicts = [one < two for one, two in pairs if one is not None and two is not None]
        return all(verdicts) if verdicts else None

    return check


def between(column: str, low: float, high: float, method: str = "observed") -> Check:
    """In every setting a column of a figure's row lies in a range."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        values = [value for setting in settings if (value := cell(*setting, method, column)) is not None]
        return all(low <= value <= high for value in values) if values else None

    return check

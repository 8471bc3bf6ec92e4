"""What Reassessing's text claims of its tables, as checks on one side's numbers."""

from __future__ import annotations

from collections.abc import Iterable

from reproductions.linearpatch.claims import Check, Settings
from reproductions.reassessing.columns import AVERAGE
from reproductions.registry import Lookup


def highest(ours: str, others: Iterable[str], column: str = AVERAGE, lower: bool = False) -> Check:
    """In every setting that has both, ``ours`` is above (``lower``: below) every one of ``others`` with a number."""
    others = list(others)

    def check(cell: Lookup, settings: Settings) -> bool | None:
        verdicts = []
        for setting in settings:
            one = cell(*setting, ours, column)
            rest = [value for other in others if (value := cell(*setting, other, column)) is not None]
            if one is not None and rest:
                verdicts.append(one < min(rest) if lower else one > max(rest))
        return all(verdicts) if verdicts else None

    return check


def somewhere(*checks: Check) -> Check:
    """All of the checks that can be made; None where none can."""

    def check(cell: Lookup, settings: Settings) -> bool | None:
        verdicts = [verdict for one in checks if (verdict := one(cell, settings)) is not None]
        return all(verdicts) if verdicts else None

    return check


def mean_gain(ours: str, other: str, points: float, column: str = AVERAGE) -> Check:
    """Over all settings with both, the mean gain is at least ``points``, to the last printed digit."""

    def check(cell: Lookup, settings: Settings) -> bool | None:
        pairs = [(cell(*setting, ours, column), cell(*setting, other, column)) for setting in settings]
        gains = [one - two for one, two in pairs if one is not None and two is not None]
        return sum(gains) / len(gains) >= points - 5e-5 if gains else None

    return check


def within(one: str, other: str, points: float, column: str = AVERAGE) -> Check:
    """In every setting with both, the two differ by at most ``points``."""

    def check(cell: Lookup, settings: Settings) -> bool | None:
        pairs = [(cell(*setting, one, column), cell(*setting, other, column)) for setting in settings]
        gaps = [abs(a - b) for a, b in pairs if a is not None and b is not None]
        return all(gap <= points for gap in gaps) if gaps else None

    return check


def spread(methods: Iterable[str], points: float, column: str = AVERAGE) -> Check:
    """In every setting with at least two of ``methods``, the largest and the smallest lie at least ``points`` apart."""
    methods = list(methods)

    def check(cell: Lookup, settings: Settings) -> bool | None:
        verdicts = []
        for setting in settings:
            values = [value for method in methods if (value := cell(*setting, method, column)) is not None]
            if len(values) > 1:
                verdicts.append(max(values) - min(values) >= points)
        return any(verdicts) if verdicts else None

    return check


def of_dense(column: str, test) -> Check:
    """A test of one number of the dense model."""
    dense = (("stand-in", "0/16"), ("LLaMA-3.1-8B-It", "0/32"))

    def check(cell: Lookup, settings: Settings) -> bool | None:
        found = [number for setting in dense if (number := cell(*setting, "Dense", column)) is not None]
        return all(map(test, found)) if found else None

    return check

"""What Reassessing's text claims of its tables, as checks on one side's numbers."""

from __future__ import annotations

from collections.abc import Iterable

from reproductions.linearpatch.claims import Check, Settings
from reproductions.reassessing.columns import AVERAGE
from reproductions.registry import Lookup


def points(accuracy: float) -> float:
    """An accuracy in percent: the paper prints shares, the stand-in's columns are in percent."""
    return accuracy * 100 if accuracy <= 1 else accuracy


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


def mean_gain(ours: str, other: str, least: float, column: str = AVERAGE) -> Check:
    """Over all settings with both, the mean gain is at least so many points, to the last printed digit."""

    def check(cell: Lookup, settings: Settings) -> bool | None:
        pairs = [(cell(*setting, ours, column), cell(*setting, other, column)) for setting in settings]
        gains = [points(one) - points(two) for one, two in pairs if one is not None and two is not None]
        return sum(gains) / len(gains) >= least - 5e-3 if gains else None

    return check


def within(one: str, other: str, most: float, column: str = AVERAGE) -> Check:
    """In every setting with both, the two differ by at most so many points."""

    def check(cell: Lookup, settings: Settings) -> bool | None:
        pairs = [(cell(*setting, one, column), cell(*setting, other, column)) for setting in settings]
        gaps = [abs(points(a) - points(b)) for a, b in pairs if a is not None and b is not None]
        return all(gap <= most for gap in gaps) if gaps else None

    return check


def of_dense(column: str, test) -> Check:
    """A test of one number of the dense model."""
    dense = (("stand-in", "0/16"), ("LLaMA-3.1-8B-It", "0/32"))

    def check(cell: Lookup, settings: Settings) -> bool | None:
        found = [number for setting in dense if (number := cell(*setting, "Dense", column)) is not None]
        return all(map(test, found)) if found else None

    return check

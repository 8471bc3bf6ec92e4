"""What the paper concludes from its tables, as checks of either side's numbers."""

from __future__ import annotations

from reproductions.prunecomp.columns import PERPLEXITY_LABELS
from reproductions.prunecomp.recipes import ABLATION, METRICS
from reproductions.registry import Claim, Lookup


def _compensated_is_better(column: str, lower: bool, metric: str):
    """In every setting with numbers, the metric with Prune&Comp is better than the metric alone."""

    def check(cell: Lookup, settings: list[tuple[str, str]]) -> bool | None:
        pairs = [(cell(*s, metric, column), cell(*s, f"{metric} +Prune&Comp", column)) for s in settings]
        pairs = [(plain, better) for plain, better in pairs if plain is not None and better is not None]
        return all((better < plain) == lower and better != plain for plain, better in pairs) if pairs else None

    return check


def consistent(column: str, lower: bool = False) -> tuple[Claim, ...]:
    return tuple(
        Claim(f"{metric}: better with Prune&Comp in every setting", _compensated_is_better(column, lower, metric))
        for metric in METRICS
    )


def each_part_helps(column: str, lower: bool):
    """Each ingredient alone beats neither, and both together beat each alone."""

    def check(cell: Lookup, settings: list[tuple[str, str]]) -> bool | None:
        verdicts = []
        for setting in settings:
            values = [cell(*setting, method, column) for method in ABLATION]
            if None not in values:
                none, iterated, compensated, both = (value if lower else -value for value in values)
                verdicts.append(both < min(iterated, compensated) and max(iterated, compensated) < none)
        return all(verdicts) if verdicts else None

    return check


def sizes_agree(cell: Lookup, settings: list[tuple[str, str]]) -> bool | None:
    """Within 2 % of one another."""
    verdicts = []
    for setting in settings:
        names = [f"CosSim(BI) +Prune&Comp {n} samples" for n in (16, 32, 64, 128, 256)]
        for column in (*PERPLEXITY_LABELS["paper"], "AVG"):
            values = [v for name in names if (v := cell(*setting, name, column)) is not None]
            if len(values) > 1:
                verdicts.append(max(values) <= 1.02 * min(values))
    return all(verdicts) if verdicts else None


def each_better(pairs: list[tuple[str, str]], column: str = "AVG"):
    """In every setting, the second row of each pair has the lower number; pairs without both numbers do not count."""

    def check(cell: Lookup, settings: list[tuple[str, str]]) -> bool | None:
        found = [(cell(*s, a, column), cell(*s, b, column)) for s in settings for a, b in pairs]
        found = [(a, b) for a, b in found if a is not None and b is not None]
        return all(b < a for a, b in found) if found else None

    return check

"""Compare either side's numbers as the paper's conclusions do."""

from collections.abc import Iterator

import numpy as np

from reproductions.prunecomp.columns import PROTOCOLS
from reproductions.prunecomp.recipes import ABLATION, METRICS, RepairSpec
from reproductions.spec.comparisons import (
    PERCENT,
    Check,
    Comparison,
    Named,
    Pairs,
    against,
    ahead_by,
    alike_within,
    beats,
    numbers,
    per_setting,
    setting_words,
)
from reproductions.spec.registry import Claim, Lookup


def consistent(column: str, lower: bool = False) -> tuple[Claim, ...]:
    """Return a claim for each metric: it is better with Prune&Comp than alone."""
    return tuple(
        Claim(
            f"{name.replace('+', '')}-better-with-prunecomp",
            f"{metric}: better with Prune&Comp in every setting",
            beats(f"{metric} +Prune&Comp", metric, column=column, lower=lower),
        )
        for metric, name in METRICS.items()
    )


def abstracts(words: str, column: str, least: float, lower: bool = False) -> Claim:
    """Return the abstract's claim about one setting."""
    check = ahead_by(("LLaMA-3-8B", "5/32"), "CosSim(BI) +Prune&Comp", "CosSim(BI)", column, least, lower)
    return Claim("abstract-llama-3-8b", f"LLaMA-3-8B, 5/32 by BI: {words} (abstract)", check, only_reported=True)


def each_part_helps(column: str, lower: bool) -> Check:
    """Return a check that each part alone is better than neither, and that both are better than each alone."""
    none, iterated, compensated, both = ABLATION

    def check(cell: Lookup, settings: Pairs) -> list[Comparison]:
        complete = [s for s in settings if not any(cell(*s, method, column) is None for method in ABLATION)]
        comparisons = []
        for method, rivals in ((iterated, (none,)), (compensated, (none,)), (both, (iterated, compensated))):
            comparisons += beats(method, *rivals, column=column, lower=lower)(cell, complete)
        return comparisons

    return check


@per_setting
def sizes_agree(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
    """Compare the numbers of all calibration sizes with the lowest; they may differ by 2 %."""
    names = [RepairSpec("CosSim(BI)", "+Prune&Comp", n).method for n in (16, 32, 64, 128, 256)]
    for column in (*PROTOCOLS["paper"], "AVG"):
        if len(measured := numbers(cell, [(*setting, name, column) for name in names])) > 1:
            keys, values = zip(*measured, strict=True)
            lowest = min(range(len(keys)), key=lambda i: np.mean(values[i]))
            for key, value in zip(keys, values, strict=True):
                if key != keys[lowest]:
                    words = (*setting_words(*setting), ", ", Named("column", column), ": ", Named("method", key[2]))
                    words += (" against the least",)
                    change = 100 * (value / values[lowest] - 1)
                    yield alike_within(words, change, PERCENT, (key, keys[lowest]), 2)


def each_better(pairs: list[tuple[str, str]]) -> Check:
    """Return a check that in every setting the second row of each pair has the lower number.

    Pairs without both numbers do not count.
    """

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        for names in pairs:
            (first, a), (second, b) = ((key := (*setting, name, "AVG"), cell(*key)) for name in names)
            if a is not None and b is not None:
                yield against(setting, (second, b), [(first, a)], lower=True)

    return check

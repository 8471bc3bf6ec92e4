"""What Reassessing's text claims of its tables, as checks on one side's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reproductions import reported
from reproductions.checks import Check, Pairs, beats, every
from reproductions.reassessing.columns import AVERAGE, STANDIN_TEXT
from reproductions.reassessing.recipes import FASTER
from reproductions.reassessing.rows import HEAD, LAST1, LAST2, LAST3, LORA, NONE, QLORA, REVERSE, SEVEN
from reproductions.registry import Claim, Lookup
from reproductions.reported import row_name


def points(accuracy: float) -> float:
    """An accuracy in percent: the paper prints shares, the stand-in's columns are in percent."""
    return accuracy * 100 if accuracy <= 1 else accuracy


def highest(ours: str, others: Iterable[str], column: str = AVERAGE, lower: bool = False) -> Check:
    """In every setting that has both, ``ours`` is above (``lower``: below) every one of ``others`` with a number."""
    return beats(ours, *others, column=column, lower=lower)


def leads(
    table: str, ours: Iterable[str], column: str = AVERAGE, *, lower: bool = False, here: Iterable[str] = ()
) -> Check:
    """Each of ``ours`` is better than every other printed method of the table on the same model, at the nearest rate.

    Pruning rates are rarely the same there. here: methods that stand for the others on the stand-in.
    """
    ours = set(ours)

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        printed = {name for number in reported.numbers("reassessing", table) for _, name in reported.row_names(number)}
        others = ({*printed, *here} - ours) - {"Dense"}
        verdicts = []
        for model in dict.fromkeys(model for model, _ in settings):
            rates = [sparsity for name, sparsity in settings if name == model]
            mine, theirs = (
                [(rate(s), value) for s in rates for m in methods if (value := cell(model, s, m, column)) is not None]
                for methods in (ours, others)
            )
            for at, value in theirs if mine else ():
                nearest = min(mine, key=lambda pair: abs(pair[0] - at))[1]
                verdicts.append(nearest < value if lower else nearest > value)
        return all(verdicts) if verdicts else None

    return check


def rate(sparsity: str) -> float:
    """The share that a printed rate means: ``8/32`` of the layers, or ``25%``."""
    removed, slash, layers = sparsity.partition("/")
    return int(removed) / int(layers) if slash else float(sparsity.rstrip("%")) / 100


def mean_gain(ours: str, other: str, least: float, column: str = AVERAGE) -> Check:
    """Over all settings with both, the mean gain is at least so many points, to the last printed digit."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        pairs = [(cell(*setting, ours, column), cell(*setting, other, column)) for setting in settings]
        gains = [points(one) - points(two) for one, two in pairs if one is not None and two is not None]
        return sum(gains) / len(gains) >= least - 5e-3 if gains else None

    return check


def within(one: str, other: str, most: float, column: str = AVERAGE) -> Check:
    """In every setting with both, the two differ by at most so many points."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        pairs = [(cell(*setting, one, column), cell(*setting, other, column)) for setting in settings]
        gaps = [abs(points(a) - points(b)) for a, b in pairs if a is not None and b is not None]
        return all(gap <= most for gap in gaps) if gaps else None

    return check


def apart(one: str, other: str, least: float, column: str = AVERAGE) -> Check:
    """In every setting with both, the two differ by at least so many points."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        pairs = [(cell(*setting, one, column), cell(*setting, other, column)) for setting in settings]
        gaps = [abs(points(a) - points(b)) for a, b in pairs if a is not None and b is not None]
        return all(gap >= least for gap in gaps) if gaps else None

    return check


def saves(share: float, before: str, after: str, columns: Iterable[str]) -> Check:
    """In every setting and column with both, ``after`` is smaller than ``before`` by more than so large a share."""
    columns = list(columns)

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        sides = [(cell(*s, before, column), cell(*s, after, column)) for s in settings for column in columns]
        saved = [1 - small / large for large, small in sides if large is not None and small is not None]
        return all(one > share for one in saved) if saved else None

    return check


def of_dense(column: str, test) -> Check:
    """A test of one number of the dense model, in a table that has no other."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        found = [number for setting in settings if (number := cell(*setting, "Dense", column)) is not None]
        return all(map(test, found)) if found else None

    return check


def of_metrics() -> tuple[Claim, ...]:
    """Insight 1 where the paper has it (with LoRA), and without training."""
    others = [metric for metric in SEVEN if metric != REVERSE]
    return (
        Claim(
            "Reverse-order has the highest average of the metrics, fine-tuned with LoRA (insight 1)",
            highest(row_name(REVERSE, LORA), [row_name(metric, LORA) for metric in others]),
        ),
        Claim(
            "the same without fine-tuning (ours)",
            highest(row_name(REVERSE, NONE), [row_name(metric, NONE) for metric in others]),
        ),
    )


def of_arms(metric: str) -> tuple[Claim, ...]:
    """Insight 2: partial-layer fine-tuning against LoRA, and LoRA against QLoRA."""
    lora, qlora = row_name(metric, LORA), row_name(metric, QLORA)
    partial = [row_name(metric, arm) for arm in (HEAD, LAST1, LAST2, LAST3)]
    return (
        Claim(
            "every partial-layer fine-tuning is above LoRA (insight 2)",
            every(*(highest(arm, [lora, qlora]) for arm in partial)),
        ),
        Claim("QLoRA is below LoRA", highest(lora, [qlora])),
    )


def of_faster_arms(metric: str) -> tuple[Claim, ...]:
    """Insight 2 at the learning rate that the paper did not try."""
    faster, last3 = row_name(metric, LORA + FASTER), row_name(metric, LAST3)
    return (
        Claim("lm_head & last 3 is above LoRA at ten times the rate (ours)", highest(last3, [faster])),
        Claim(
            "lm_head & last 3 is above LoRA, both at ten times the rate (ours)",
            highest(last3 + FASTER, [faster]),
        ),
        Claim(
            "by perplexity: lm_head & last 3 is below LoRA, both at ten times the rate (ours)",
            highest(last3 + FASTER, [faster], STANDIN_TEXT, lower=True),
        ),
    )


def of_iterating(schedules: Mapping[str, tuple[str, ...]]) -> tuple[Claim, ...]:
    """Section B: iterative pruning has no benefit. schedules: those of each way to fine-tune."""
    checks = [
        highest(row_name(metric, f"one-shot {arm}"), [row_name(metric, f"{head} {arm}") for head in heads])
        for metric in (REVERSE, "Taylor")
        for arm, heads in schedules.items()
    ]
    return (Claim("one-shot is above iterative pruning for every metric and way to fine-tune", every(*checks)),)

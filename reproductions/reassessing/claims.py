"""Compare one side's numbers as Reassessing's text does."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from reproductions.reassessing import neighbours
from reproductions.reassessing.columns import AVERAGE, HELD_OUT, TOY_TEXT
from reproductions.reassessing.rows import REVERSE, SEVEN
from reproductions.reassessing.specs import (
    AT_INTERFACE,
    HEAD,
    LAST1,
    LAST2,
    LAST3,
    LORA,
    QLORA,
    Arm,
    again,
    faster,
    method,
)
from reproductions.spec import reported
from reproductions.spec.comparisons import (
    PERCENT,
    POINTS,
    Check,
    Comparison,
    Named,
    Number,
    Pairs,
    Words,
    against,
    alike_within,
    all_of,
    beats,
    numbers,
    per_setting,
    setting_words,
)
from reproductions.spec.registry import Claim, Lookup


def points(accuracy: Number) -> Number:
    """Convert an accuracy to percent: the paper prints shares, the toy model's columns are in percent."""
    return accuracy * 100 if np.max(accuracy) <= 1 else accuracy


def _in_points(cell: Lookup) -> Lookup:
    """Return the same numbers, the averages in percent."""

    def in_points(*key: str) -> Number | None:
        value = cell(*key)
        return value if value is None or key[-1] != AVERAGE else points(value)

    return in_points


def highest(method: str, rivals: Iterable[str], column: str = AVERAGE, lower: bool = False, within: float = 0) -> Check:
    """Return a check that ``method`` is above every one of ``rivals`` in every setting that has both (``lower``: below).

    within: points by which it may be behind; with ``lower``, a share.
    """
    check = beats(method, *rivals, column=column, lower=lower, within=within)
    return lambda cell, settings: check(_in_points(cell), settings)


def leads(
    table: str,
    methods: Iterable[str],
    column: str = AVERAGE,
    *,
    lower: bool = False,
    here: Iterable[str] = (),
    without: str = "",
) -> Check:
    """Return a check that each of ``methods`` is better than every other method of the table on the same model.

    Others are the printed ones and those beside them (`neighbours`), at the nearest rate, since their rates are rarely
    the same. lower: less is better. here: methods that replace the others on models that are not the paper's. without:
    mark of printed rows that are left out.
    """
    methods = set(methods)

    def check(cell: Lookup, settings: Pairs) -> list[Comparison]:
        cell = _in_points(cell)
        printed = reported.numbers("reassessing", table)
        printed = [number for number in printed if not (without and number.method.endswith(without))]
        rivals = {name for number in printed for _, name in reported.row_names(number)}
        rivals |= set(map(neighbours.beside, printed))
        rivals = sorted((rivals | {*here}) - methods - {"Dense"})
        comparisons = []
        for model in dict.fromkeys(model for model, _ in settings):
            rates = [sparsity for group, sparsity in settings if group == model]
            own, others = (
                numbers(cell, [(model, sparsity, name, column) for sparsity in rates for name in names])
                for names in (sorted(methods), rivals)
            )
            for key, value in others if own else ():
                nearest = min(own, key=lambda pair: abs(rate(pair[0][1]) - rate(key[1])))
                comparisons.append(against((model, nearest[0][1]), nearest, [(key, value)], lower=lower))
        return comparisons

    return check


def rate(sparsity: str) -> float:
    """Return a printed rate as a share: ``8/32`` of the layers, or ``25%``."""
    removed, slash, layers = sparsity.partition("/")
    return int(removed) / int(layers) if slash else float(sparsity.rstrip("%")) / 100


def _gaps(method: str, rival: str, cell: Lookup, settings: Pairs) -> list[tuple]:
    """Return (setting, both keys, difference of the averages in points) wherever both have one."""
    gaps = []
    for setting in settings:
        keys = tuple((*setting, name, AVERAGE) for name in (method, rival))
        a, b = (cell(*key) for key in keys)
        if a is not None and b is not None:
            gaps.append((setting, keys, points(a) - points(b)))
    return gaps


def _against(setting: tuple[str, str], method: str, rival: str) -> Words:
    return (*setting_words(*setting), ": ", Named("method", method), " against ", Named("method", rival))


def mean_gain(method: str, rival: str, least: float) -> Check:
    """Return a check that the mean gain of ``method`` over ``rival`` is at least ``least`` points, to the last printed digit.

    The mean is over all settings that have both.
    """

    def check(cell: Lookup, settings: Pairs) -> list[Comparison]:
        gaps = _gaps(method, rival, cell, settings)
        if not gaps:
            return []
        mean = sum(gap for *_, gap in gaps) / len(gaps)
        keys = tuple(key for _, both, _ in gaps for key in both)
        words = (Named("method", method), " against ", Named("method", rival))
        words += (f", mean of {len(gaps)}",) if len(gaps) > 1 else ()
        return [Comparison(words, mean, POINTS, keys, low=least - 5e-3, closed=True)]

    return check


def within(method: str, rival: str, limit: float) -> Check:
    """Return a check that two methods differ by at most ``limit`` points in every setting that has both."""
    return lambda cell, settings: [
        alike_within(_against(s, method, rival), gap, POINTS, keys, limit)
        for s, keys, gap in _gaps(method, rival, cell, settings)
    ]


def apart(method: str, rival: str, least: float) -> Check:
    """Return a check that two methods differ by at least ``least`` points in every setting that has both."""
    return lambda cell, settings: [
        Comparison(_against(s, method, rival), gap, POINTS, keys, -least, least, inside=False)
        for s, keys, gap in _gaps(method, rival, cell, settings)
    ]


def saves(share: float, before: str, after: str, columns: Iterable[str]) -> Check:
    """Return a check that ``after`` is smaller than ``before`` by more than a share.

    It compares them in every setting and column with both.
    """
    columns = list(columns)

    @per_setting
    def check(cell: Lookup, setting: tuple[str, str]) -> Iterator[Comparison]:
        for column in columns:
            keys = tuple((*setting, name, column) for name in (before, after))
            large, small = (cell(*key) for key in keys)
            if large is not None and small is not None:
                words, saved = (*setting_words(*setting), ", ", Named("column", column), ": saved"), 1 - small / large
                yield Comparison(words, 100 * saved, PERCENT, keys, low=100 * share)

    return check


def of_metrics() -> tuple[Claim, ...]:
    """Return the claims of insight 1, with LoRA as in the paper, and without training."""
    others = [metric for metric in SEVEN if metric != REVERSE]
    return (
        Claim(
            "reverse-order-best",
            "Reverse-order has the highest average of the metrics, fine-tuned with LoRA (insight 1)",
            highest(method(REVERSE, LORA), [method(metric, LORA) for metric in others]),
        ),
        Claim(
            "reverse-order-best-untrained",
            "reverse-order has the highest average of the metrics without fine-tuning (extension)",
            highest(method(REVERSE), [method(metric) for metric in others]),
        ),
    )


def over_orders(check: Check, metric: str, arms: Iterable[Arm]) -> Check:
    """Return the check on means over both orders of rows, if a training was run in two."""
    second_orders = {method(metric, arm): method(metric, again(arm)) for arm in arms}

    def of_means(cell: Lookup, settings: Pairs) -> list[Comparison]:
        from common.evaluation import significance  # loads scipy, which `list` does without

        def mean(model: str, sparsity: str, name: str, column: str) -> Number | None:
            first = cell(model, sparsity, name, column)
            second = cell(model, sparsity, second_orders[name], column) if name in second_orders else None
            return first if first is None or second is None else significance.of_two(f"{name}, orders", first, second)

        return check(mean, settings)

    return of_means


def of_arms(metric: str) -> tuple[Claim, ...]:
    """Return the claims of insight 2: partial-layer fine-tuning against LoRA, and LoRA against QLoRA."""
    lora, qlora = method(metric, LORA), method(metric, QLORA)
    partial = [method(metric, arm) for arm in (LAST1, LAST2, LAST3)]

    def both(check: Check) -> Check:
        return over_orders(check, metric, (LORA, QLORA, HEAD, LAST1, LAST2, LAST3))

    return (
        Claim(
            "partial-beats-lora",
            "lm_head with the last one, two and three layers is above LoRA (insight 2)",
            both(all_of(*(highest(arm, [lora]) for arm in partial))),
        ),
        Claim("head-beats-lora", "lm_head alone is above LoRA, too", both(highest(method(metric, HEAD), [lora]))),
        Claim("lora-beats-qlora", "QLoRA is below LoRA", both(highest(lora, [qlora]))),
        Claim(
            "partial-beats-lora-by-loss",
            "by held-out loss: lm_head with one, two and three layers is below LoRA (extension)",
            both(all_of(*(highest(arm, [lora], HELD_OUT.id, lower=True) for arm in partial))),
        ),
    )


def behind_the_interface(metric: str) -> Claim:
    """Return the claim that three layers trained at the pruning interface have a lower loss than the other arms.

    These are LoRA, QLoRA, and the last three layers.
    """
    others = [method(metric, arm) for arm in (LORA, QLORA, LAST3, again(LORA), again(LAST3))]
    return Claim(
        "at-cut-beats-others-by-loss",
        "by held-out loss: lm_head & 3 layers at the pruning interface is below LoRA, QLoRA and lm_head & last 3 (extension)",
        highest(method(metric, AT_INTERFACE), others, HELD_OUT.id, lower=True),
    )


def of_faster_arms(metric: str) -> tuple[Claim, ...]:
    """Return the claims of insight 2 at a learning rate that the paper did not try."""
    lora, last3, faster_last3 = (method(metric, arm) for arm in (faster(LORA), LAST3, faster(LAST3)))
    return (
        Claim(
            "partial-beats-faster-lora",
            "lm_head & last 3 is above LoRA at ten times the rate (extension)",
            highest(last3, [lora]),
        ),
        Claim(
            "faster-partial-beats-faster-lora",
            "lm_head & last 3 is above LoRA, both at ten times the rate (extension)",
            highest(faster_last3, [lora]),
        ),
        Claim(
            "faster-partial-beats-faster-lora-by-perplexity",
            "by perplexity: lm_head & last 3 is below LoRA, both at ten times the rate (extension)",
            highest(faster_last3, [lora], TOY_TEXT, lower=True),
        ),
    )


def of_iterating(schedules: Mapping[Arm, tuple[tuple[int, int], ...]]) -> tuple[Claim, ...]:
    """Return the claim of section B that iterative pruning has no benefit.

    The paper does not say how much would be a benefit; one point is this project's reading. schedules: of each way to
    fine-tune, as `specs.ArmSpec.schedule`.
    """
    checks = [
        highest(method(metric, arm, one_shot=True), [method(metric, arm, schedule=s) for s in of_arm], within=1.0)
        for metric in (REVERSE, "Taylor")
        for arm, of_arm in schedules.items()
    ]
    return (
        Claim(
            "iterating-has-no-benefit",
            "iterative pruning is less than a point above one-shot pruning in every comparison: it has no benefit",
            all_of(*checks),
        ),
    )

"""Compare the numbers of either side as the paper's conclusions do."""

from reproductions.laco.recipes import AGAIN, AT_ONCE, CODE, DENSE, LACO, LEFT_OUT, PAPERS, PRUNER, SLICEGPT, TRAINED
from reproductions.spec import comparisons as compare
from reproductions.spec import reported
from reproductions.spec.columns import LACO_CATEGORIES
from reproductions.spec.comparisons import OF_DENSE, Check, Comparison, Named, Pairs, against, in_most
from reproductions.spec.registry import Claim, Lookup
from reproductions.spec.subjects import TOY

BASELINES = (PRUNER, SLICEGPT)


def dense(cell: Lookup, settings: Pairs, model: str, column: str) -> tuple | None:
    """Return (key, number) of the Dense* row, whatever its sparsity is printed as."""
    depths = dict.fromkeys(f"0/{s.partition('/')[2]}" for _, s in settings)
    keys = [(model, sparsity, DENSE, column) for sparsity in ("0%", "", *depths)]
    return next(iter(compare.numbers(cell, keys)), None)


def _labels(settings: Pairs) -> list[str]:
    toy = any(group == TOY.group for group, _ in settings)
    return [label for category in LACO_CATEGORIES["standin" if toy else "paper"].values() for label in category]


def above(method: str, others: tuple[str, ...], column: str) -> Check:
    """Return a check that `method` is above each of `others` in a column in every setting, with as many layers removed.

    A baseline without such a row (the paper prints each at its own sparsity) is compared in all its rows.
    """

    def check(cell: Lookup, settings: Pairs) -> list[Comparison]:
        comparisons = []
        for model, sparsity in settings:
            key, rivals = (model, sparsity, method, column), []
            for other in others:
                rows = compare.numbers(cell, [(m, s, other, column) for m, s in settings if m == model])
                rivals += [row for row in rows if row[0][1] == sparsity] or rows * (other in BASELINES)
            if (value := cell(*key)) is not None and rivals:
                comparisons.append(against((model, sparsity), (key, value), rivals))
        return comparisons

    return check


def best_on_each(cell: Lookup, settings: Pairs) -> list[Comparison]:
    """Compare LaCo with both baselines, score by score."""
    return [comparison for label in _labels(settings) for comparison in above(LACO, BASELINES, label)(cell, settings)]


def _above(limit: float, key: compare.Key, value: compare.Number) -> Comparison:
    """Compare a percentage of the dense model's number with a limit."""
    words = (*compare.setting_words(*key[:2]), ": ", Named("column", key[3]))
    return Comparison(words, value, OF_DENSE, (key,), low=limit)


def four_models_above_80(cell: Lookup, settings: Pairs) -> list[Comparison]:
    """Compare Per. of each model with 80 %; no comparison for fewer than four models."""
    averages = compare.numbers(cell, [(*setting, LACO, "Per.") for setting in settings])
    return [_above(80, key, value) for key, value in averages] if len(averages) >= 4 else []


def above_80_at_25_to_30(cell: Lookup, settings: Pairs) -> list[Comparison]:
    """Compare models of pruning ratio 25 to 30 % (Table 1) with the abstract's sentence: Per. above 80 %."""
    printed = reported.cells("laco", "1").items()
    ratios = {row[0]: number.value for row, number in printed if row[2:] == (LACO, "ratio %")}
    compared = []
    for model, sparsity in settings:
        key = (model, sparsity, LACO, "Per.")
        if (retained := cell(*key)) is None or model not in ratios:
            continue
        if 25 <= ratios[model] <= 30:
            compared.append(Comparison(f"{model}: Per.", retained, OF_DENSE, (key,), low=80))
        else:
            words = f"{model}: pruning ratio"
            compared.append(Comparison(words, ratios[model], "%", (key,), low=25, high=30, closed=True))
    return compared


def four_categories(cell: Lookup, settings: Pairs) -> list[Comparison]:
    """Compare LaCo with the baselines in each of Lang., Know., Exam. and Unde., on every model.

    No comparison unless all four categories have numbers.
    """
    by_category = [above(LACO, BASELINES, column)(cell, settings) for column in ("Lang.", "Know.", "Exam.", "Unde.")]
    return [comparison for column in by_category for comparison in column] if all(by_category) else []


def percentages(limit: float) -> Check:
    """Return a check that LaCo's percentages of the original model's scores are above a limit."""

    def check(cell: Lookup, settings: Pairs) -> list[Comparison]:
        keys = [(*setting, LACO, label) for setting in settings for label in _labels(settings)]
        return [_above(limit, key, value) for key, value in compare.numbers(cell, keys)]

    return check


def post_training_helps(cell: Lookup, settings: Pairs) -> list[Comparison]:
    """Compare the average after post-training with the one before, on the model that is pruned again (LLaMA-2-7B)."""
    compared = []
    for model, sparsity in settings:
        if any(cell(model, s, AGAIN, "Avg.") is not None for m, s in settings if m == model):
            averages = compare.numbers(cell, [(model, sparsity, method, "Avg.") for method in (TRAINED, LACO)])
            if len(averages) == 2:
                compared.append(against((model, sparsity), averages[0], averages[1:]))
    return compared


def _share_kept(key: tuple, value, dense_value: tuple, share: float) -> Comparison:
    """Return what is left of the dense model's number, against a share of it."""
    difference = 100 * value / dense_value[1]
    words = (*compare.setting_words(*key[:2]), ": ", Named("method", key[2]), ", of the dense model's")
    return Comparison(words, difference, OF_DENSE, (key, dense_value[0]), low=100 * share, closed=True)


def retains(method: str, share: float, half: bool = False) -> Check:
    """Return a check that a method keeps about `share` of the original average.

    half: only where about half of the layers or more are removed.
    """

    def check(cell: Lookup, settings: Pairs) -> list[Comparison]:
        compared = []
        for model, sparsity in settings:
            key, dense_value = (model, sparsity, method, "Avg."), dense(cell, settings, model, "Avg.")
            layers, every_layer = cell(model, sparsity, method, "layers"), dense(cell, settings, model, "layers")
            counts = not half or None not in (layers, every_layer) and layers <= 0.56 * every_layer[1]
            if counts and cell(*key) is not None and dense_value is not None:
                compared.append(_share_kept(key, cell(*key), dense_value, share))
        return compared

    return check


def falls_with_size(cell: Lookup, settings: Pairs) -> list[Comparison]:
    """Compare each average with the one at the next smaller number of removed layers, per model."""
    compared = []
    for model in dict.fromkeys(model for model, _ in settings):
        rows = {}
        for m, s in settings:
            layers, key = cell(m, s, LACO, "layers"), (m, s, LACO, "Avg.")
            if m == model and layers is not None and cell(*key) is not None:
                rows[layers] = key
        keys = [key for _, key in sorted(rows.items(), reverse=True)]
        for more, fewer in zip(keys, keys[1:], strict=False):
            compared.append(against(more[:2], (more, cell(*more)), [(fewer, cell(*fewer))]))
    return compared


def _accepts(cell: Lookup, settings: Pairs) -> list[Comparison]:
    keys = [(*setting, method, "merges") for setting in settings for method in (LACO, LACO + PAPERS)]
    return [
        Comparison(
            (*compare.setting_words(*key[:2]), ": merges of ", Named("method", key[2])), merges, "", (key,), low=0
        )
        for key, merges in compare.numbers(cell, keys)
    ]


ABOVE_BASELINES = Claim(
    "beats-both-baselines", "LaCo's average is above both baselines' on every model", above(LACO, BASELINES, "Avg.")
)
SOME_70 = 0.65  # what rounds to 70 % where tens are given
WORTH = "retains more than leaving out the layers that it merges away"
AGAINST_LEFT_OUT = (
    Claim("equation-beats-leaving-out", f"extension: Eq. 1 {WORTH}", above(LACO, (LEFT_OUT[LACO],), "Avg.")),
    Claim(
        "code-beats-leaving-out",
        f"extension: the code's merge {WORTH}",
        above(LACO + CODE, (LEFT_OUT[LACO + CODE],), "Avg."),
    ),
)
EQUATION = Claim(
    "equation-beats-code",
    "extension: Eq. 1 retains more than the code's merge of as many layers",
    above(LACO, (LACO + CODE,), "Avg."),
)
CLAIMS = {
    "1": (
        Claim(
            "best-on-most-benchmarks",
            "LaCo is the best of the three on most benchmarks",
            best_on_each,
            exclude_chance_tasks=True,
            enough=in_most,
        ),
    ),
    "2": (
        ABOVE_BASELINES,
        Claim(
            "over-80-percent-kept",
            "Per. surpasses 80 % on three of four models",
            four_models_above_80,
            enough=lambda holding, _: holding >= 3,
        ),
        Claim(
            "abstract-over-80-percent",
            "over 80 % retained at pruning ratios of 25-30 % (abstract), on each model",
            above_80_at_25_to_30,
            only_reported=True,
        ),
        Claim(
            "ahead-in-four-categories",
            "ahead of the baselines in language, knowledge, examination and understanding, on most models",
            four_categories,
            enough=in_most,
        ),
        EQUATION,
        *AGAINST_LEFT_OUT,
    ),
    "3": (
        Claim(
            "post-training-helps",
            "post-training raises the average of the model that is pruned again (LLaMA-2-7B)",
            post_training_helps,
        ),
        Claim(
            "pruned-again-keeps-70-percent",
            "pruned again, 55 % of its parameters left, it keeps some 70 % of the dense average (65 % or more)",
            retains(AGAIN, SOME_70),
        ),
        Claim(
            "two-steps-beat-one",
            "extension: two collapses with training in between retain more than one collapse to as many layers",
            above(AGAIN, (AT_ONCE,), "Avg."),
        ),
        Claim(
            "two-steps-beat-one-code",
            "extension: by the code's merge, two collapses with training in between retain more than one",
            above(AGAIN + CODE, (AT_ONCE + CODE,), "Avg."),
        ),
    ),
    "4": (
        Claim(
            "falls-with-size",
            "the average falls as more layers are removed, at most steps",
            falls_with_size,
            enough=in_most,
        ),
        Claim(
            "half-keeps-70-percent",
            "near 50 % some 70 % of the performance is kept (65 % or more)",
            retains(LACO, SOME_70, half=True),
        ),
        EQUATION,
    ),
    "5": (Claim("some-merge-accepted", "extension: with every setting some merge is accepted under Eq. 1", _accepts),),
    "7": (
        Claim(
            "above-70-percent",
            "LaCo stays above 70 % of the dense score on most benchmarks",
            percentages(70),
            exclude_chance_tasks=True,
            enough=in_most,
        ),
        Claim(
            "none-below-30-percent",
            "no benchmark crashes below 30 % of the dense score",
            percentages(30),
            exclude_chance_tasks=True,
        ),
    ),
}

"""What the paper concludes from its tables, checked on the reported and on the reproduced side."""

from __future__ import annotations

from collections.abc import Callable

from reproductions.checks import Pairs
from reproductions.columns import LACO_CATEGORIES
from reproductions.laco.recipes import AGAIN, AT_ONCE, CODE, DENSE, LACO, TRAINED
from reproductions.registry import Claim, Lookup

BASELINES = ("LLMPru.", "SliceGPT")
PAPERS = ", the paper's C and T (ours)"


def dense(cell: Lookup, settings: Pairs, model: str, column: str) -> float | None:
    """The cell of the Dense* row, whatever its sparsity is printed as."""
    depths = dict.fromkeys(f"0/{s.partition('/')[2]}" for _, s in settings)
    found = (cell(model, sparsity, DENSE, column) for sparsity in ("0%", "", *depths))
    return next((value for value in found if value is not None), None)


def _labels(cell: Lookup, settings: Pairs) -> list[str]:
    standin = any(model == "stand-in" for model, _ in settings)
    return [label for category in LACO_CATEGORIES["standin" if standin else "paper"].values() for label in category]


def _every(settings: Pairs, verdict: Callable[[str, str], bool | None]) -> bool | None:
    verdicts = [found for setting in settings if (found := verdict(*setting)) is not None]
    return all(verdicts) if verdicts else None


def above(method: str, others: tuple[str, ...], column: str) -> Callable:
    """In every setting `method` is above each of `others` in a column."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        def verdict(model: str, sparsity: str) -> bool | None:
            ours = cell(model, sparsity, method, column)
            # A baseline is printed with a sparsity of its own.
            theirs = [v for m, s in settings if m == model for o in others if (v := cell(m, s, o, column)) is not None]
            return None if ours is None or not theirs else ours > max(theirs)

        return _every(settings, verdict)

    return check


def best_on_most(cell: Lookup, settings: Pairs) -> bool | None:
    """LaCo is above both baselines on more than half of all scores."""
    wins, count = 0, 0
    for label in _labels(cell, settings):
        for model, sparsity in settings:
            ours = cell(model, sparsity, LACO, label)
            theirs = [
                v for m, s in settings if m == model for o in BASELINES if (v := cell(m, s, o, label)) is not None
            ]
            if ours is not None and theirs:
                wins, count = wins + (ours > max(theirs)), count + 1
    return wins > count / 2 if count else None


def three_of_four_above_80(cell: Lookup, settings: Pairs) -> bool | None:
    values = [v for setting in settings if (v := cell(*setting, LACO, "Per.")) is not None]
    return sum(v > 80 for v in values) >= 3 if len(values) >= 4 else None


def four_categories(cell: Lookup, settings: Pairs) -> bool | None:
    """Ahead of the baselines in all of Lang., Know., Exam. and Unde., on every model."""
    verdicts = [above(LACO, BASELINES, column)(cell, settings) for column in ("Lang.", "Know.", "Exam.", "Unde.")]
    return None if None in verdicts else all(verdicts)


def percentages(limit: float, share: float) -> Callable:
    """More than `share` of LaCo's percentages are above `limit` (share 1: all of them)."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        labels = _labels(cell, settings)
        values = [v for s in settings for label in labels if (v := cell(*s, LACO, label)) is not None]
        return None if not values else sum(v > limit for v in values) >= share * len(values)

    return check


def post_training_helps(cell: Lookup, settings: Pairs) -> bool | None:
    """On the model that is pruned again (LLaMA-2-7B): the average rises."""

    def verdict(model: str, sparsity: str) -> bool | None:
        if not any(cell(model, s, AGAIN, "Avg.") is not None for m, s in settings if m == model):
            return None
        before, after = cell(model, sparsity, LACO, "Avg."), cell(model, sparsity, TRAINED, "Avg.")
        return None if before is None or after is None else after > before

    return _every(settings, verdict)


def again_retains(share: float) -> Callable:
    """Pruned again, the model keeps about `share` of the dense average."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        def verdict(model: str, sparsity: str) -> bool | None:
            left, whole = cell(model, sparsity, AGAIN, "Avg."), dense(cell, settings, model, "Avg.")
            return None if left is None or whole is None else left >= share * whole

        return _every(settings, verdict)

    return check


def falls_with_size(cell: Lookup, settings: Pairs) -> bool | None:
    """Per model, the average falls whenever more layers go."""

    def verdict(model: str, sparsity: str) -> bool | None:
        rows = {cell(m, s, LACO, "layers"): cell(m, s, LACO, "Avg.") for m, s in settings if m == model}
        rows = {layers: value for layers, value in rows.items() if layers is not None and value is not None}
        ordered = [value for _, value in sorted(rows.items(), reverse=True)]
        return all(a > b for a, b in zip(ordered, ordered[1:])) if len(ordered) > 1 else None

    return _every(list(dict(settings).items()), verdict)


def half_retains(share: float) -> Callable:
    """With about half of the layers gone, `share` of the dense average is kept."""

    def check(cell: Lookup, settings: Pairs) -> bool | None:
        def verdict(model: str, sparsity: str) -> bool | None:
            ours, whole = cell(model, sparsity, LACO, "Avg."), dense(cell, settings, model, "Avg.")
            layers, all_of_them = cell(model, sparsity, LACO, "layers"), dense(cell, settings, model, "layers")
            if None in (ours, whole, layers, all_of_them) or layers > 0.56 * all_of_them:
                return None
            return ours >= share * whole

        return _every(settings, verdict)

    return check


def _accepts(cell: Lookup, settings: Pairs) -> bool | None:
    merges = [v for s in settings for m in (LACO, LACO + PAPERS) if (v := cell(*s, m, "merges (ours)")) is not None]
    return all(v > 0 for v in merges) if merges else None


ABOVE_BASELINES = Claim("LaCo's average is above both baselines' on every model", above(LACO, BASELINES, "Avg."))
EQUATION = Claim("ours: Eq. 1 keeps more than the code's merge of as many layers", above(LACO, (LACO + CODE,), "Avg."))
CLAIMS = {
    "1": (Claim("LaCo is the best of the three on most benchmarks", best_on_most),),
    "2": (
        ABOVE_BASELINES,
        Claim("Per. surpasses 80 % on three of four models", three_of_four_above_80),
        Claim("ahead of the baselines in language, knowledge, examination and understanding", four_categories),
        EQUATION,
    ),
    "3": (
        Claim("post-training raises the average of the model that is pruned again (LLaMA-2-7B)", post_training_helps),
        Claim(
            "pruned again, half its size, it keeps some 70 % of the dense average (two thirds)", again_retains(2 / 3)
        ),
        Claim(
            "ours: pruning in two steps with training between beats pruning as far at once",
            above(AGAIN, (AT_ONCE,), "Avg."),
        ),
        Claim("ours: so it does under the code's merge", above(AGAIN + CODE, (AT_ONCE + CODE,), "Avg.")),
    ),
    "4": (
        Claim("the average falls as more layers are removed", falls_with_size),
        Claim("near 50 % some 70 % of the performance is kept (here: 60 % or more)", half_retains(0.6)),
    ),
    "5": (Claim("ours: with every setting some merge is accepted under Eq. 1", _accepts),),
    "7": (
        Claim("LaCo stays above 70 % of the dense score on most benchmarks", percentages(70, 0.5)),
        Claim("no benchmark crashes below 30 % of the dense score", percentages(30, 1.0)),
    ),
}

"""The paper's settings as recipes: what a printed row, or a row of the toy model, stands for."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from common.models.registry import REGISTRY
from common.records.results import Recipe
from reproductions.spec import printed_rows, reported, shape_recipes
from reproductions.spec.registry import Row
from reproductions.spec.shared_recipes import (
    collapse,
    llm_pruner,
    merged_at_once,
    pruner_can,
    sentences,
    slicegpt,
    without_training,
)
from reproductions.spec.statuses import REFUSED, REPORTED
from reproductions.spec.subjects import PAPER, Subject, recipe

DENSE, LACO, TRAINED, AGAIN = "Dense*", "LaCo", "LaCo +post train", "LaCo +post train +re prune"
CODE = "/code"  # what every row of LaCo gets a neighbour with: the code's merge
PAPERS = "/papers-settings"  # with the paper's C and T
UNMERGED, SHORTGPT = "LaCo/unmerged", "ShortGPT"
# The layers that each search merges away, left out instead: a merge's worth, by the same choice of layers.
LEFT_OUT = {LACO: "LaCo/left-out", LACO + CODE: "LaCo/code/left-out"}
AT_ONCE = "LaCo/at-once"
# The labels of rows that the paper does not have.
NAMES = {
    UNMERGED: "LaCo, nothing merged (extension)",
    SHORTGPT: "ShortGPT (extension)",
    LEFT_OUT[LACO]: "LaCo, its layers left out (extension)",
    LEFT_OUT[LACO + CODE]: "LaCo, code's merge, its layers left out (extension)",
    AT_ONCE: "LaCo, as small at once (extension)",
    LACO + PAPERS: "LaCo, the paper's C and T (extension)",
}
NAMES |= {
    name + CODE: f"{NAMES.get(name, name)}, code's merge (extension)"
    for name in (LACO, TRAINED, AGAIN, AT_ONCE, LACO + PAPERS)
}
STATUSES = {"Dense": dataclasses.replace(REPORTED, reason="OpenCompass's own numbers")}
PRUNER, SLICEGPT = "LLMPru.", "SliceGPT"
# The paper gives their shares of parameters alone. LLM-Pruner's flags are fitted to theirs (27.0, 24.4 and 24.2 %).
# SliceGPT's width is the one whose share is nearest, shortcuts counted.
BASELINES = {
    (PRUNER, "llama-2-7b"): 0.3465,
    (PRUNER, "llama-2-13b"): 0.299,
    (SLICEGPT, "llama-2-7b"): 0.264,
    (SLICEGPT, "llama-2-13b"): 0.236,
    (PRUNER, "baichuan2-7b"): 0.346,
    (SLICEGPT, "baichuan2-7b"): 0.222,
}
LAYERS = {"llama-2-7b": 32, "llama-2-13b": 40, "baichuan2-7b": 32, "baichuan2-13b": 40}
# Tables 5 and 6: layers left -> C and T; L = 1, H = all layers, I = 2 throughout.
SETTINGS = {
    "llama-2-7b": {28: (5, 0.85), 23: (4, 0.65), 17: (6, 0.45)},
    "llama-2-13b": {34: (7, 0.85), 30: (6, 0.75), 20: (7, 0.45)},
    "baichuan2-7b": {23: (4, 0.70)},
    "baichuan2-13b": {30: (6, 0.70)},
}
MAIN = {"llama-2-7b": 23, "llama-2-13b": 30, "baichuan2-7b": 23, "baichuan2-13b": 30}
LEFT = {"12.0%": 28, "27.1%": 23, "45.0%": 17, "14.6%": 34, "24.6%": 30, "24.7%": 30, "49.7%": 20}
# The toy model: three layers at a time (C = 3), and thresholds at which merges are accepted, by merge and layers left. With
# the paper's own (C = 4, T = .65) Eq. 1 merges nothing there, which is Table 5's to show.
TOY_C = 3
TOY_T = {"paper": {14: 0.91, 12: 0.55, 8: 0.18}, "code": {14: 0.96, 12: 0.89, 8: 0.77}}
# LLaMA-2-7B's (n of 32, C). Any other model loses these shares, rounded to whole merges of C - 1 layers, by the highest
# threshold that leaves as many: the paper's thresholds are its own models'.
SHARES = ((4, 5), (9, 4), (15, 6))

# Appendix B; "the English dataset" of about 1.0 B tokens is not named, ours is C4 (its first shard holds fewer).
TRAINING = {
    "paper": {"corpus": "c4-train", "validation": "c4-validation", "tokens": 1_000_000_000, "length": 4096, "seed": 0},
    "standin": {"corpus": "standin-train", "validation": "standin-valid", "tokens": 98_304, "length": 256, "seed": 0},
}
TRAINING["small"] = TRAINING["paper"] | {"tokens": 245_760, "length": 256}
# Short runs: 240 steps of four sequences, on the toy model 48 of eight. Its own rate was 1.5e-3; 2e-4 barely moves it there.
TRAINED_WITH = {
    "paper": {"save_every": 250, "evaluate_every": 250},
    "small": {"batch": 4, "micro_batch": 4, "save_every": 40, "evaluate_every": 40},
    "standin": {"batch": 8, "micro_batch": 8, "learning_rate": 1e-3, "save_every": 16, "evaluate_every": 16},
}  # Baichuan 2: five English and five Chinese sentences, and a text that is half Chinese, of which ours is Wikipedia.
CHINESE = {"baichuan2-7b": ("wikipedia-en+wikipedia-zh", {"corpus": "c4-train+wikipedia-zh", "tokens": 1_250_000_000})}
# Layers left by pruning again. The paper gives no settings for it: C and I as before, the threshold is searched.
AGAIN_LEFT = {"llama-2-7b": 17}


def lefts(subject: Subject) -> dict[int, int]:
    """Return layers left -> C, for the shares of Tables 4, 6 and 10 on one model; ``REMOVE=`` replaces the shares."""
    if subject.remove:
        removed = subject.counts(toy=())
        return {subject.layers - n: merged_at_once(n) for n in removed}
    if subject.toy:
        return dict.fromkeys((14, 12, 8), TOY_C)
    merges = [(C, max(1, round(n * subject.layers / 32 / (C - 1)))) for n, C in SHARES]
    return {subject.layers - count * (C - 1): C for C, count in merges}


def main_left(subject: Subject) -> int:
    """Return the layers left in the main results: of several shares the middle one, as in the paper."""
    descending = sorted(lefts(subject), reverse=True)
    return descending[min(1, len(descending) - 1)]


def again_left(subject: Subject) -> int:
    """Return the layers left when the main results' model is pruned again: about half."""
    return min(lefts(subject))


def collapsed(
    model: str, subject: Subject, limit: int | None, left: int, merge: str = "paper", left_out: bool = False, **fields
) -> Recipe:
    """Return the recipe of a collapse to `left` layers: by Tables 5 and 6, or by the toy model's settings.

    left_out: the layers that would be merged are left out instead.
    """
    if subject.printed:
        C, T = SETTINGS[model][left]
        selection = collapse(merge, C, LAYERS[model], T)
    else:
        T = TOY_T[merge].get(left) if subject.toy else None
        selection = collapse(merge, lefts(subject)[left], subject.layers, T, left if T is None else None)
    selection |= {"left_out": True} if left_out else {}
    calibration = sentences(subject.profile)
    if subject.printed and model in CHINESE:
        calibration |= {"corpus": CHINESE[model][0]}
    return recipe(model, subject, limit, selection=selection, calibration=calibration, fidelity=merge, **fields)


def trained(model: str, subject: Subject, limit: int | None, merge: str = "paper", again: bool = False) -> Recipe:
    """Return the main collapse, post-trained; again: and collapsed once more."""
    data, settings = TRAINING[subject.size], TRAINED_WITH[subject.size]
    if subject.printed and model in CHINESE:
        data = data | CHINESE[model][1]
    training = {"method": "laco-posttrain", "data": data, "settings": settings}
    left = MAIN[model] if subject.printed else main_left(subject)
    if again:
        C = SETTINGS[model][left][0] if subject.printed else lefts(subject)[left]
        layers = AGAIN_LEFT[model] if subject.printed else again_left(subject)
        selection = collapse(merge, C, 0, layers=layers)
        training["reprune"] = {key: value for key, value in selection.items() if key not in ("method", "H")}
    return collapsed(model, subject, limit, left, merge, training=training)


def unmerged(subject: Subject, limit: int | None) -> Recipe:
    """Return one model by Algorithm 1 with followers that just go, to as many layers."""
    left = main_left(subject)
    selection = collapse("drop", lefts(subject)[left], subject.layers, layers=left)
    return recipe(subject.model, subject, limit, selection=selection, calibration=sentences(subject.profile))


def shortgpt(subject: Subject, limit: int | None) -> Recipe:
    """Return the recipe that removes as many layers of lowest block influence from one model (LinearPatch's row)."""
    count = subject.layers - main_left(subject)
    return recipe(subject.model, subject, limit, **without_training("ShortGPT", count, subject.profile))


def baselines(subject: Subject, limit: int | None) -> list[tuple[int, str, Recipe]]:
    """Return the recipes of LLM-Pruner and SliceGPT on one model.

    They remove as many parameters as the layers of the main results have.
    """
    left = main_left(subject)
    count = subject.layers - left
    fields_by_name = [(PRUNER, llm_pruner(subject.profile, layers=count))] if pruner_can(count, subject.layers) else []
    fields_by_name.append((SLICEGPT, slicegpt(subject.profile, layers=count)))
    return [(left, name, recipe(subject.model, subject, limit, **fields)) for name, fields in fields_by_name]


def of_printed(row: Row, limit: int | None, merge: str) -> Recipe | None:
    """Return the recipe behind a printed row, None for one that is only reported."""
    if row.method == DENSE:
        return recipe(row.model, PAPER, limit)
    if row.method == LACO:
        return collapsed(row.model, PAPER, limit, LEFT.get(row.sparsity, MAIN[row.model]), merge)
    if (row.method, row.model) in BASELINES:
        ratio = BASELINES[row.method, row.model]
        fields = llm_pruner("paper", ratio=ratio) if row.method == PRUNER else slicegpt("paper", ratio=ratio)
        return recipe(row.model, PAPER, limit, **fields)
    if row.method in (TRAINED, AGAIN):
        return trained(row.model, PAPER, limit, merge, again=row.method == AGAIN)
    return None


def printed(table: str, shape: Callable | None = None) -> Callable[[int | None], Iterator[Row]]:
    """Return the rows of a printed table with their recipes; each of LaCo's is followed by one with the code's merge.

    The rows of a model that cannot be loaded have no recipe.
    """

    def rows(limit: int | None) -> Iterator[Row]:
        for row in printed_rows.rows("laco", table, shape=shape, statuses=STATUSES):
            row = dataclasses.replace(row, dense=row.method == DENSE)
            if row.method in STATUSES:
                yield row
                continue
            if REGISTRY[row.model].refused:
                yield dataclasses.replace(row, status=REFUSED)
                continue
            yield dataclasses.replace(row, recipe=of_printed(row, limit, "paper"))
            if row.method not in (DENSE, PRUNER, SLICEGPT):
                code = of_printed(row, limit, "code")
                yield of_ours(row, row.method + CODE, recipe=code)

    return rows


def of_ours(row: Row, method: str, recipe: Recipe | None) -> Row:
    """Return an extension's row beside a printed one, by its id."""
    labels = {"name": NAMES[method], "extension": True, "printed": None}
    return dataclasses.replace(row, method=method, recipe=recipe, shapes=None, **labels)


def one_model(subject: Subject, entries: Iterable[tuple[int | None, str, Recipe]]) -> list[Row]:
    """Return one model's rows of (layers left, method, recipe); None: the search decides how many are left."""
    N = subject.layers
    return [
        Row(
            subject.model,
            subject.group,
            "" if left is None else f"{N - left}/{N}",
            method,
            row_recipe,
            dense=method == DENSE,
            name=NAMES.get(method, ""),
            extension=method in NAMES,
        )
        for left, method, row_recipe in entries
    ]


def _dense(subject: Subject, limit: int | None) -> tuple[int, str, Recipe]:
    return subject.layers, DENSE, recipe(subject.model, subject, limit)


def main_rows(subject: Subject, limit: int | None) -> list[Row]:
    """Return one model's rows of Tables 1, 2 and 7.

    They are the baselines, both merges, the layers of both left out, the algorithm without a merge, and ShortGPT.
    """
    left = main_left(subject)
    merges = {LACO: "paper", LACO + CODE: "code"}
    return one_model(
        subject,
        [
            _dense(subject, limit),
            *baselines(subject, limit),
            *((left, name, collapsed(subject.model, subject, limit, left, merge)) for name, merge in merges.items()),
            *(
                (left, LEFT_OUT[name], collapsed(subject.model, subject, limit, left, merge, left_out=True))
                for name, merge in merges.items()
            ),
            (left, UNMERGED, unmerged(subject, limit)),
            (left, SHORTGPT, shortgpt(subject, limit)),
        ],
    )


def training_rows(subject: Subject, limit: int | None) -> list[Row]:
    """Return one model's rows of Tables 3 and 9; the model pruned again is next to as many layers removed at once."""
    model, left, again = subject.model, main_left(subject), again_left(subject)
    rows = [_dense(subject, limit)]
    for merge, name in (("paper", ""), ("code", CODE)):
        rows += [
            (left, LACO + name, collapsed(model, subject, limit, left, merge)),
            (left, TRAINED + name, trained(model, subject, limit, merge)),
            (again, AGAIN + name, trained(model, subject, limit, merge, again=True)),
            (again, AT_ONCE + name, collapsed(model, subject, limit, again, merge)),
        ]
    return one_model(subject, rows)


def ratio_rows(subject: Subject, limit: int | None) -> list[Row]:
    """Return one model's rows of Tables 4, 6 and 10."""
    rows = [_dense(subject, limit)]
    for left in sorted(lefts(subject), reverse=True):
        for merge, name in (("paper", ""), ("code", CODE)):
            rows.append((left, LACO + name, collapsed(subject.model, subject, limit, left, merge)))
    return one_model(subject, rows)


def shape(model: str, number: reported.Number) -> Recipe | None:
    """Return the shape recipe of a printed number; None for the baselines.

    LaCo's merged layers have the shape of one layer, so only the number of layers left counts.
    """
    layers = reported.cells("laco", number.table).get(
        (number.model, number.sparsity, reported.row_name(number.method, number.variant), "layers")
    )
    if number.method in (PRUNER, SLICEGPT) or layers is None:
        return None
    removed = LAYERS[model] - int(layers.value)
    return shape_recipes.recipe(model, removed)

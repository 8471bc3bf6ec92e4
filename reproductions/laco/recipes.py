"""The paper's settings as recipes: what a printed row, or a row of the stand-in, stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from common.results import Recipe
from reproductions import declare, reported, shapes
from reproductions.linearpatch.recipes import REFUSED, made, recipe
from reproductions.registry import Row

DENSE, LACO, TRAINED, AGAIN = "Dense*", "LaCo", "LaCo +post train", "LaCo +post train +re prune"
CODE = ", code's merge (ours)"  # what every row of LaCo gets a neighbour with
UNMERGED, SHORTGPT = "LaCo, nothing merged (ours)", "ShortGPT (ours)"
AT_ONCE = "LaCo, as small at once (ours)"
STATUSES = {
    "Dense": "as reported only: OpenCompass's own numbers",
    "LLMPru.": "as reported only",
    "SliceGPT": "as reported only",
}
LAYERS = {"llama-2-7b": 32, "llama-2-13b": 40, "baichuan2-7b": 32, "baichuan2-13b": 40, "standin": 16}
# Tables 5 and 6: layers left -> C and T; L = 1, H = all layers, I = 2 throughout.
SETTINGS = {
    "llama-2-7b": {28: (5, 0.85), 23: (4, 0.65), 17: (6, 0.45)},
    "llama-2-13b": {34: (7, 0.85), 30: (6, 0.75), 20: (7, 0.45)},
    "baichuan2-7b": {23: (4, 0.70)},
    "baichuan2-13b": {30: (6, 0.70)},
}
MAIN = {"llama-2-7b": 23, "llama-2-13b": 30, "baichuan2-7b": 23, "baichuan2-13b": 30, "standin": 12}
LEFT = {"12.0%": 28, "27.1%": 23, "45.0%": 17, "14.6%": 34, "24.6%": 30, "24.7%": 30, "49.7%": 20}
# The stand-in: three layers at a time (C = 3), and thresholds at which merges are accepted, by merge and layers left. With
# the paper's own (C = 4, T = .65) Eq. 1 merges nothing there, which is Table 5's to show.
STANDIN_C = 3
STANDIN_T = {"paper": {14: 0.91, 12: 0.55, 8: 0.18}, "code": {14: 0.96, 12: 0.89, 8: 0.77}}
STANDIN_LEFT = (14, 12, 8)

# Section 3.4: ten sentences of English Wikipedia. The stand-in's are sentences of its own training text.
CORPUS = {"paper": "wikipedia-en", "standin": "standin-calibration"}
# Appendix B; "the English dataset" of about 1.0 B tokens is not named, ours is C4 (its first shard holds fewer).
TRAINING = {
    "paper": {"corpus": "c4-train", "validation": "c4-validation", "tokens": 1_000_000_000, "length": 4096, "seed": 0},
    "standin": {"corpus": "standin-train", "validation": "standin-valid", "tokens": 98_304, "length": 256, "seed": 0},
}
# 48 steps of eight windows: a short run. The stand-in's own rate was 1.5e-3; 2e-4 barely moves it in so few steps.
TRAINED_WITH = {
    "paper": {"save_every": 250, "evaluate_every": 250},
    "standin": {"batch": 8, "micro_batch": 8, "learning_rate": 1e-3, "save_every": 16, "evaluate_every": 16},
}
# Layers left by pruning again. The paper gives no settings for it: C and I as before, the threshold is searched.
AGAIN_LEFT = {"llama-2-7b": 17, "standin": 8}


def calibration(profile: str, sentences: int = 10) -> dict:
    """Which sentences similarity is measured on."""
    return {"corpus": CORPUS[profile], "sentences": sentences, "seed": 0}


def selection(model: str, merge: str, C: int, T: float | None = None, layers: int | None = None) -> dict:
    """A collapse with a given threshold, or with the highest one that leaves so many `layers`."""
    wanted = {"T": T} if layers is None else {"layers": layers}
    fixed = {"method": "laco", "C": C, "L": 1, "H": LAYERS[model], "I": 2, "cosine": "flat-sentence"}
    return fixed | {"merge": merge} | wanted


def collapsed(model: str, profile: str, limit: int | None, left: int, merge: str = "paper", **fields) -> Recipe:
    """The recipe of a collapse to `left` layers by the settings of Tables 5 and 6 (the stand-in: its own)."""
    C, T = (STANDIN_C, STANDIN_T[merge][left]) if model == "standin" else SETTINGS[model][left]
    wanted = selection(model, merge, C, T)
    return recipe(model, profile, limit, selection=wanted, calibration=calibration(profile), fidelity=merge, **fields)


def trained(model: str, profile: str, limit: int | None, merge: str = "paper", again: bool = False) -> Recipe:
    """The main collapse, post-trained; again: and collapsed once more."""
    training = {"method": "laco-posttrain", "data": TRAINING[profile], "settings": TRAINED_WITH[profile]}
    if again:
        C = STANDIN_C if model == "standin" else SETTINGS[model][MAIN[model]][0]
        next_one = selection(model, merge, C, layers=AGAIN_LEFT[model])
        training["reprune"] = {k: v for k, v in next_one.items() if k not in ("method", "H")}
    return collapsed(model, profile, limit, MAIN[model], merge, training=training)


def unmerged(profile: str, limit: int | None) -> Recipe:
    """The stand-in by Algorithm 1 with followers that just go, to as many layers."""
    wanted = selection("standin", "drop", STANDIN_C, layers=MAIN["standin"])
    return recipe("standin", profile, limit, selection=wanted, calibration=calibration(profile))


def shortgpt(profile: str, limit: int | None) -> Recipe:
    """As many layers of lowest block influence removed from the stand-in (LinearPatch's row)."""
    return recipe("standin", profile, limit, **made("ShortGPT", LAYERS["standin"] - MAIN["standin"], profile))


def of_printed(row: Row, profile: str, limit: int | None, merge: str) -> Recipe | None:
    """The recipe behind a printed row, None for what is only reported."""
    if row.method == DENSE:
        return recipe(row.model, profile, limit)
    if row.method == LACO:
        return collapsed(row.model, profile, limit, LEFT.get(row.sparsity, MAIN[row.model]), merge)
    if row.method in (TRAINED, AGAIN):
        return trained(row.model, profile, limit, merge, again=row.method == AGAIN)
    return None


def printed(table: str, shape: Callable | None = None) -> Callable[[int | None], list[Row]]:
    """Rows of a printed table with their recipes; each of LaCo's with a neighbour that merges as the code does.

    Baichuan2's rows have no recipe: its weights cannot be loaded without running its repository's code.
    """

    def rows(limit: int | None) -> list[Row]:
        found = []
        for row in declare.rows("laco", table, shape=shape, statuses=STATUSES):
            row = dataclasses.replace(row, dense=row.method == DENSE)
            if row.method in STATUSES:
                found.append(row)
                continue
            if row.model.startswith("baichuan"):
                found.append(dataclasses.replace(row, status=REFUSED))
                continue
            found.append(dataclasses.replace(row, recipe=of_printed(row, "paper", limit, "paper")))
            if row.method != DENSE:
                code = of_printed(row, "paper", limit, "code")
                found.append(dataclasses.replace(row, method=row.method + CODE, recipe=code, shapes=None))
        return found

    return rows


def standin(entries: Iterable[tuple[int, str, Recipe]]) -> list[Row]:
    """Rows of the stand-in from (layers left, method, recipe)."""
    return [
        Row("standin", "stand-in", f"{16 - left}/16", method, wanted, dense=method == DENSE)
        for left, method, wanted in entries
    ]


def main_rows(profile: str, limit: int | None) -> list[Row]:
    """The stand-in's rows of Tables 1, 2 and 7: both merges, the same search without merging, and ShortGPT."""
    left = MAIN["standin"]
    return standin(
        [
            (16, DENSE, recipe("standin", profile, limit)),
            (left, LACO, collapsed("standin", profile, limit, left)),
            (left, LACO + CODE, collapsed("standin", profile, limit, left, "code")),
            (left, UNMERGED, unmerged(profile, limit)),
            (left, SHORTGPT, shortgpt(profile, limit)),
        ]
    )


def training_rows(profile: str, limit: int | None) -> list[Row]:
    """The stand-in's rows of Tables 3 and 9; pruned again beside as many layers removed at once."""
    left, again = MAIN["standin"], AGAIN_LEFT["standin"]
    rows = [(16, DENSE, recipe("standin", profile, limit))]
    for merge, name in (("paper", ""), ("code", CODE)):
        rows += [
            (left, LACO + name, collapsed("standin", profile, limit, left, merge)),
            (left, TRAINED + name, trained("standin", profile, limit, merge)),
            (again, AGAIN + name, trained("standin", profile, limit, merge, again=True)),
            (again, AT_ONCE + name, collapsed("standin", profile, limit, again, merge)),
        ]
    return standin(rows)


def ratio_rows(profile: str, limit: int | None) -> list[Row]:
    """The stand-in's rows of Tables 4, 6 and 10."""
    rows = [(16, DENSE, recipe("standin", profile, limit))]
    for left in STANDIN_LEFT:
        for merge, name in (("paper", ""), ("code", CODE)):
            rows.append((left, LACO + name, collapsed("standin", profile, limit, left, merge)))
    return standin(rows)


def shape(model: str, number: reported.Number) -> Recipe | None:
    """LaCo's merged layers have the shape of one: what counts is how many are left."""
    layers = reported.cells("laco", number.table).get(
        (number.model, number.sparsity, reported.row_name(number.method, number.variant), "layers")
    )
    if number.method in ("LLMPru.", "SliceGPT") or layers is None:
        return None
    removed = LAYERS[model] - int(layers.value)
    return shapes.recipe(model, removed)

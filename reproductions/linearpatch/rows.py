"""The rows of LinearPatch's tables other than the comparison of training-free methods (`recipes.training_free`)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from reproductions.linearpatch import columns, trained
from reproductions.linearpatch.recipes import PAPER_MODELS, TOP_K, models_of, shape_of
from reproductions.spec import shape_recipes
from reproductions.spec.registry import Row
from reproductions.spec.shared_recipes import (
    CALIBRATION,
    PATCH,
    PLAIN,
    contiguous_block,
    least_squares,
    lowest_bi,
    without_training,
)
from reproductions.spec.subjects import TOY, Subject, recipe

# Table 5: the paper's ladder, and ours beside it.
LADDER = ("Vanilla", "+d", "+A", "+FT")
REFIT, ONE_RATIO = "refit", "one-factor"
SCALAR, CHANNELS, SPECTRUM, MATRIX = (f"least-squares-{name}" for name in ("one-factor", "d", "a", "matrix"))
TRAINING_FREE = ("Vanilla", "+d", "+A", ONE_RATIO, SCALAR, CHANNELS, SPECTRUM)
_SCALAR_RATIO = {"method": "linearpatch", "kind": "scalar", "estimator": "ratio-of-means"}
_REPAIRS = {
    "Vanilla": None,
    "+d": PLAIN,
    "+A": PATCH,
    ONE_RATIO: _SCALAR_RATIO,
    SCALAR: least_squares("scalar"),
    CHANNELS: least_squares("diagonal"),
    SPECTRUM: least_squares("hadamard"),
    MATRIX: least_squares("matrix"),
    REFIT: {"method": "refit", "following": 3, "ridge": 1e-3},
}

# Tables 2 and 3.
MATRIX_L, NO_REPAIR = "linearpatch-l-least-squares", "cut"

# Tables 6 and 7: the inserted network alone; nothing is removed.
INSERTED_SHAPES = {
    "LLM-Streamline(FFN)": {"method": "streamline-ffn"},
    "LinearPatch": {"method": "linearpatch", "top_k": TOP_K},
}

STORED_SHAPES = {
    "LLM-Streamline": INSERTED_SHAPES["LLM-Streamline(FFN)"],
    "LinearPatch": INSERTED_SHAPES["LinearPatch"],
}
QUOTIENT = "ffn-over-patch"

# Table 10: what the paper tried, and fewer.
SAMPLES = (64, 128, 256, 512)
FEWER = (8, 16)
TEXTS = tuple(label for profile in columns.PROTOCOLS.values() for label in profile)

# Table 9's choices by another cosine.
_COSINES = {
    "linearpatch-l-code": "LinearPatch[L], channel cosine, ends kept: the code (extension)",
    "linearpatch-l-batch-cosine": "LinearPatch[L], cosine of the batch (extension)",
    "linearpatch-l-sample-cosine": "LinearPatch[L], cosine of the sample (extension)",
    "linearpatch-s-channel-cosine": "LinearPatch[S], channel cosine (extension)",
}
# The labels of rows that the paper does not have.
NAMES = (
    trained.NAMES
    | _COSINES
    | {
        REFIT: "refit around the interface (extension)",
        SCALAR: "least squares: one factor (extension)",
        CHANNELS: "least squares: +d (extension)",
        SPECTRUM: "least squares: +A (extension)",
        MATRIX: "least squares: any matrix (extension)",
        ONE_RATIO: "one factor, mean of d (extension)",
        MATRIX_L: "LinearPatch[L], least-squares matrix (extension)",
        NO_REPAIR: "the same layers removed, no repair (extension)",
        QUOTIENT: "FFN / LinearPatch on this CPU (extension)",
        **{f"LinearPatch[{count} samples]": f"LinearPatch[{count} samples] (extension)" for count in FEWER},
    }
)


def model_settings(subject: Subject, counts: Mapping[str, int]) -> list[tuple[str, str, int, int]]:
    """Return (registry name, group, layers, number removed) of the models a table shows, one number each.

    ``counts`` has the numbers for the paper's models and the toy model; any other model loses the first one's share.
    """
    if subject.printed:
        return [(name, group, layers, counts[name]) for name, group, layers, _ in models_of(subject) if name in counts]
    first, count = next(iter(counts.items()))
    removed = subject.counts((count, PAPER_MODELS[first][1]), toy=counts[TOY.model])
    return [(subject.model, subject.group, subject.layers, n) for n in removed]


def _dense(model: str, group: str, layers: int, subject: Subject, limit: int | None) -> Row:
    return Row(model, group, f"0/{layers}", "Dense", recipe(model, subject, limit), dense=True)


def _row(setting: tuple, subject: Subject, limit: int | None, method: str, fields: dict, shaped: bool = True) -> Row:
    model, group, layers, count = setting
    row_recipe = recipe(model, subject, limit, **fields)
    shape = shape_of(model, method, count, fields) if subject.printed and shaped else None
    labels = {"name": NAMES.get(method, ""), "extension": method in NAMES}
    return Row(model, group, f"{count}/{layers}", method, row_recipe, shapes=shape, **labels)


def variants(subject: Subject, count: int) -> dict[str, dict]:
    """Return the selections of layers in a table: the block and, on other models than the paper's, the lowest BI."""
    return {"": contiguous_block(count)} if subject.printed else {"L": contiguous_block(count), "S": lowest_bi(count)}


def of_variant(row: Row, variant: str) -> Row:
    """Return the row with its selection of layers ('': the paper's single one); the second one has a separate group."""
    group = f"{row.group}/{variant}" if variant == "S" else row.group
    return replace(row, group=group, label="", variant=variant)


def post_training(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return the rows of Tables 2 and 3: original model, LLM-Streamline(FFN) +FT, LinearPatch[L] without and with training.

    Extensions are the matrix, variants that spare massive tokens, and no repair: a rival that is worse than no repair
    shows nothing.
    """
    for setting in model_settings(subject, {"llama-2-7b": 7, "llama-3-8b": 5, "standin": 4}):
        model, group, layers, count = setting
        yield _dense(model, group, layers, subject, limit)
        fields_by_method = {
            NO_REPAIR: without_training("LLM-Streamline(None)", count, subject.profile),
            "LLM-Streamline(FFN) +FT": trained.fields(trained.FFN_MSE, count, subject),
            trained.FFN_SPARED: trained.fields(trained.FFN_SPARED, count, subject),
            "LinearPatch[L]": without_training("LinearPatch[L]", count, subject.profile),
            MATRIX_L: without_training("LinearPatch[L]", count, subject.profile) | {"repair": least_squares("matrix")},
            "LinearPatch[L +FT]": trained.fields(trained.FULL, count, subject),
            trained.SPARED: trained.fields(trained.SPARED, count, subject),
        }
        yield from (_row(setting, subject, limit, method, fields) for method, fields in fields_by_method.items())


def what_is_trained(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return the rows of Table 4: the trained part, its target and its loss."""
    for setting in model_settings(subject, {"llama-2-7b": 9, "standin": 5}):
        yield _dense(*setting[:3], subject, limit)
        for method in trained.METHODS:
            yield _row(setting, subject, limit, method, trained.fields(method, setting[3], subject))


def ingredients(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return the rows of Table 5 and extensions.

    The paper's [S] and [L] are the same there. On other models they may differ, so both are shown.
    """
    for setting in model_settings(subject, {"llama-2-7b": 9, "standin": 5}):
        *_, count = setting
        yield _dense(*setting[:3], subject, limit)
        for variant, selection in variants(subject, count).items():
            choice = {"selection": selection, "calibration": CALIBRATION[subject.profile]}
            rows = [
                _row(setting, subject, limit, method, choice | ({"repair": repair} if repair else {}), shaped=False)
                for method, repair in _REPAIRS.items()
            ]
            if variant != "S":
                fields = trained.fields(trained.FULL, count, subject)
                rows.append(_row(setting, subject, limit, "+FT", fields, shaped=False))
            yield from (of_variant(row, variant) for row in rows)


def inserted(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return the rows of Table 6: the part that replaces the removed layers, timed where it is inserted."""
    for model, group, _, count in model_settings(subject, {"llama-2-7b": 7, "standin": 4}):
        ffn = {"selection": contiguous_block(count), "calibration": CALIBRATION[subject.profile], "repair": trained.FFN}
        for method, fields in {
            "LLM-Streamline(FFN)": ffn,
            "LinearPatch": without_training("LinearPatch[L]", count, subject.profile),
        }.items():
            shape = shape_recipes.recipe(model, 0, INSERTED_SHAPES[method]) if subject.printed else None
            yield Row(model, group, "", method, recipe(model, subject, limit, **fields), shapes=shape)
        if subject.printed:
            quotient = shape_recipes.recipe(model, 0, {"method": "streamline-ffn", "over": "linearpatch"})
            yield Row(model, group, "", QUOTIENT, quotient, shapes=quotient, name=NAMES[QUOTIENT], extension=True)


def stored(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return the rows of Table 7: numbers stored per training token.

    They follow from the model's width and K alone.
    """
    for model, group, _, _ in model_settings(subject, {"llama-2-7b": 7, "standin": 4}):
        for method, inserted_shape in STORED_SHAPES.items():
            shape = shape_recipes.recipe(model, 0, inserted_shape)
            yield Row(model, group, "", method, shape, shapes=shape)


def settings(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return the rows of Table 9: [S] and [L] at every sparsity.

    Extensions select by the other cosines (the official code's is per channel).
    """
    for baichuan in (False, True) if subject.printed else (False,):
        for model, group, layers, counts in models_of(subject, baichuan):
            for count in counts:
                setting = (model, group, layers, count)
                for method in ("LinearPatch[S]", "LinearPatch[L]"):
                    fields = without_training(method, count, subject.profile)
                    yield _row(setting, subject, limit, method, fields)
                selections = (
                    contiguous_block(count, "channel", True),
                    contiguous_block(count, "flat-batch"),
                    contiguous_block(count, "flat-sentence"),
                    lowest_bi(count, "channel"),
                )
                for method, selection in zip(_COSINES, selections, strict=True):
                    fields = {"selection": selection, "calibration": CALIBRATION[subject.profile]}
                    yield _row(setting, subject, limit, method, fields, shaped=False)


def calibration_sizes(subject: Subject, limit: int | None = None) -> Iterator[Row]:
    """Return the rows of Table 10, by the number of samples for selection and scales."""
    for setting in model_settings(subject, {"llama-2-7b": 9, "standin": 5}):
        for count in (*FEWER, *SAMPLES):
            fields = without_training("LinearPatch[L]", setting[3], subject.profile)
            fields |= {"calibration": CALIBRATION[subject.profile] | {"count": count}}
            yield _row(setting, subject, limit, f"LinearPatch[{count} samples]", fields, shaped=False)

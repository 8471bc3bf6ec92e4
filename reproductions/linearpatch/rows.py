"""The rows of LinearPatch's tables other than the comparison of training-free methods (`recipes.training_free`)."""

from __future__ import annotations

from dataclasses import replace

from reproductions import shapes
from reproductions.linearpatch import columns, trained
from reproductions.linearpatch.recipes import (
    CALIBRATION,
    PATCH,
    PLAIN,
    REFUSED,
    TOP_K,
    least_squares,
    lowest_bi,
    made,
    recipe,
    shape_of,
    window,
)
from reproductions.linearpatch.recipes import settings as models_of
from reproductions.linearpatch.trained import DIAGONAL, FFN_KL, FFN_MSE, FULL, MSE  # noqa: F401 - names of rows, for the claims
from reproductions.registry import Row

# Table 5: the paper's ladder, and ours beside it.
LADDER = ("Vanilla", "+d", "+A", "+FT")
SCALAR, CHANNELS, SPECTRUM, MATRIX = (
    f"least squares: {what} (ours)" for what in ("one factor", "+d", "+A", "any matrix")
)
ONE_RATIO = "one factor, mean of d (ours)"
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
}

# Tables 2 and 3.
MATRIX_L = "LinearPatch[L], least-squares matrix (ours)"

# Tables 6 and 7: the inserted network alone; nothing is removed.
INSERTED_SHAPES = {
    "LLM-Streamline(FFN)": {"method": "streamline-ffn"},
    "LinearPatch": {"method": "linearpatch", "top_k": TOP_K},
}

# Table 10: what the paper tried, and fewer.
SAMPLES = (64, 128, 256, 512)
FEWER = (8, 16)
TEXTS = tuple(label for profile in columns.PROTOCOLS.values() for label in profile)


def _chosen(profile: str, standin: int, **counts: int) -> list[tuple[str, str, int, int]]:
    """(registry name, label, layers, number removed) of the models a table shows, one number each."""
    wanted = {"standin": standin} | {name.replace("_", "-"): count for name, count in counts.items()}
    return [(m, label, layers, wanted[m]) for m, label, layers, _ in models_of(profile) if m in wanted]


def _dense(model: str, label: str, layers: int, profile: str, limit: int | None) -> Row:
    return Row(model, label, f"0/{layers}", "Dense", recipe(model, profile, limit), dense=True)


def _row(setting: tuple, profile: str, limit: int | None, method: str, fields: dict | None, shaped: bool = True) -> Row:
    model, label, layers, count = setting
    wanted = None if fields is None else recipe(model, profile, limit, **fields)
    shape = shape_of(model, method, count) if profile == "paper" and shaped else None
    return Row(model, label, f"{count}/{layers}", method, wanted, shapes=shape)


def post_training(profile: str, limit: int | None = None) -> list[Row]:
    """Tables 2 and 3: dense, LLM-Streamline(FFN) +FT, LinearPatch[L] without and with training; ours, the matrix."""
    found = []
    for setting in _chosen(profile, 4, llama_2_7b=7, llama_3_8b=5):
        model, label, layers, count = setting
        found.append(_dense(model, label, layers, profile, limit))
        fields = {
            "LLM-Streamline(FFN) +FT": trained.fields(FFN_MSE, count, profile),
            "LinearPatch[L]": made("LinearPatch[L]", count, profile),
            MATRIX_L: made("LinearPatch[L]", count, profile) | {"repair": least_squares("matrix")},
            "LinearPatch[L +FT]": trained.fields(FULL, count, profile),
        }
        found += [_row(setting, profile, limit, method, wanted) for method, wanted in fields.items()]
    return found


def what_is_trained(profile: str, limit: int | None = None) -> list[Row]:
    """Table 4: what is trained, towards what, by which loss."""
    found = []
    for setting in _chosen(profile, 5, llama_2_7b=9):
        found.append(_dense(*setting[:3], profile, limit))
        for method in trained.METHODS:
            found.append(_row(setting, profile, limit, method, trained.fields(method, setting[3], profile)))
    return found


def ingredients(profile: str, limit: int | None = None) -> list[Row]:
    """Table 5, and ours beside it. The paper's [S] and [L] are one there; on the stand-in they are not, so both are shown."""
    found = []
    for model, label, layers, count in _chosen(profile, 5, llama_2_7b=9):
        found.append(_dense(model, label, layers, profile, limit))
        variants = {label: window(count)}
        if profile == "standin":
            variants |= {f"{label} [S]": lowest_bi(count)}
        for name, selection in variants.items():
            setting, choice = (
                (model, name, layers, count),
                {"selection": selection, "calibration": CALIBRATION[profile]},
            )
            for method, repair in _REPAIRS.items():
                fields = choice | ({"repair": repair} if repair else {})
                found.append(_row(setting, profile, limit, method, fields, shaped=False))
            tuned = trained.fields(FULL, count, profile) if name == label else None
            if tuned or name == label:
                found.append(_row(setting, profile, limit, "+FT", tuned, shaped=False))
    return found


def inserted(profile: str, limit: int | None = None) -> list[Row]:
    """Table 6: what stands in the place of the removed layers, timed where it is."""
    found = []
    for model, label, _, count in _chosen(profile, 4, llama_2_7b=7):
        ffn = {"selection": window(count), "calibration": CALIBRATION[profile], "repair": trained.FFN}
        for method, fields in {
            "LLM-Streamline(FFN)": ffn,
            "LinearPatch": made("LinearPatch[L]", count, profile),
        }.items():
            shape = shapes.recipe(model, 0, INSERTED_SHAPES[method]) if profile == "paper" else None
            found.append(Row(model, label, "", method, recipe(model, profile, limit, **fields), shapes=shape))
        if profile == "paper":
            quotient = shapes.recipe(model, 0, {"method": "streamline-ffn", "over": "linearpatch"})
            found.append(Row(model, label, "", "FFN / LinearPatch on this CPU (ours)", quotient, shapes=quotient))
    return found


def stored(profile: str, limit: int | None = None) -> list[Row]:
    """Table 7: numbers stored per training token; they follow from the model's width and K alone."""
    found = []
    for model, label, _, _ in _chosen(profile, 4, llama_2_7b=7):
        for method, inserted_shape in INSERTED_SHAPES.items():
            name = method.removesuffix("(FFN)")
            shape = shapes.recipe(model, 0, inserted_shape)
            found.append(Row(model, label, "", name, shape, shapes=shape))
    return found


def settings(profile: str, limit: int | None = None) -> list[Row]:
    """Table 9: [S] and [L] at every sparsity; ours, by the other cosines (the official code's is per channel)."""
    found = []
    for baichuan in (False, True) if profile == "paper" else (False,):
        for model, label, layers, counts in models_of(profile, baichuan):
            for count in counts:
                setting = (model, label, layers, count)
                for method in ("LinearPatch[S]", "LinearPatch[L]"):
                    fields = None if baichuan else made(method, count, profile)
                    row = _row(setting, profile, limit, method, fields)
                    found.append(replace(row, status=REFUSED) if baichuan else row)
                others = {
                    "LinearPatch[L], channel cosine, ends kept: the code (ours)": window(count, "channel", True),
                    "LinearPatch[L], cosine of the batch (ours)": window(count, "flat-batch"),
                    "LinearPatch[L], cosine of the sample (ours)": window(count, "flat-sentence"),
                    "LinearPatch[S], channel cosine (ours)": lowest_bi(count, "channel"),
                }
                for method, selection in {} if baichuan else others.items():
                    fields = {"selection": selection, "calibration": CALIBRATION[profile]}
                    found.append(_row(setting, profile, limit, method, fields, shaped=False))
    return found


def calibration_sizes(profile: str, limit: int | None = None) -> list[Row]:
    """Table 10: the number of samples that selection and scales see."""
    found = []
    for setting in _chosen(profile, 5, llama_2_7b=9):
        for count in (*FEWER, *SAMPLES):
            fields = made("LinearPatch[L]", setting[3], profile)
            fields |= {"calibration": CALIBRATION[profile] | {"count": count}}
            method = f"LinearPatch[{count} samples]" + (" (ours)" if count in FEWER else "")
            found.append(_row(setting, profile, limit, method, fields, shaped=False))
    return found

"""Ours beside rows that the paper took from others: what this repository's implementation of the method gives there.

Untrained but for LLM-Streamline's layer; the source of the starred rows trained them all. Settings that a row does not say
are those of this paper's other rows, or of the tables that share the method (`reproductions.spec.shared_recipes`).
"""

import dataclasses
from collections.abc import Callable

from common.models import registry
from reproductions.reassessing.recipes import fields
from reproductions.reassessing.specs import ArmSpec
from reproductions.spec import printed_rows, reported
from reproductions.spec.registry import Row
from reproductions.spec.shared_recipes import (
    CALIBRATION,
    collapse,
    contiguous_block,
    llm_pruner,
    merged_at_once,
    sentences,
    slicegpt,
    streamline_layer,
)
from reproductions.spec.subjects import PAPER, recipe

# Methods that take parts out of layers: as many parameters go as in the printed row. LLM-Pruner's flags are fitted to 20 %.
# Table K gives no rate; there as much goes as in the eight layers of its other rows.
PRUNER, SLICEGPT = "LLM-Pruner", "SliceGPT"
PRUNER_RATIOS = {"llama-3-8b": 0.291, "llama-3.1-8b-instruct": 0.291, "codeqwen1.5-7b-chat": 0.28}
# Layers behind a printed rate. 21.88 % is 7 of 32; where 20 % is printed for 32 layers, which have no such share, the same.
COUNTS = {"25%": 8, "12.50%": 4, "21.88%": 7, "34.38%": 11}
COUNTS_OF_20 = {"llama-3-70b": 16, "llama-3-8b": 7, "llama-3.1-8b-instruct": 7, "codeqwen1.5-7b-chat": 7}


def count(model: str, number: reported.Number) -> int | None:
    """Return how many layers a printed row removes; None if that is unknown."""
    exact = printed_rows.removed_layers(number)
    if exact is not None:
        return exact
    return COUNTS_OF_20.get(model) if number.sparsity == "20%" else COUNTS.get(number.sparsity)


def count_of_parameters(model: str, number: reported.Number) -> int:
    """Return the number of layers that hold the share of the parameters that a row prints."""
    facts = registry.get(model).facts
    return round(float(number.sparsity.rstrip("%")) / 100 * facts["params"] / facts["layer_params"])


def _untrained(metric: str) -> Callable[[str, int], dict]:
    return lambda model, removed: fields(ArmSpec(metric), removed, "paper")


def _uidl(model: str, removed: int) -> dict:
    return {"selection": contiguous_block(removed, "last-token-angle"), "calibration": CALIBRATION["paper"]}


def _laco(model: str, removed: int) -> dict:
    layers = registry.get(model).facts["layers"]
    selection = collapse("paper", merged_at_once(removed), layers, layers=layers - removed)
    return {"selection": selection, "calibration": sentences("paper")}


def _finercut(model: str, removed: int) -> dict:
    """Return twice as many sub-layers as layers. Every step tries each, so it reads few of the sequences that BI reads."""
    calibration = CALIBRATION["paper"]
    few = calibration | {"count": SEARCHED}
    return {"selection": {"method": "finercut", "count": 2 * removed, "calibration": few}, "calibration": calibration}


SEARCHED = 4  # sequences
# How a method is called -> f(registry name, removed layers) -> a recipe's fields. UMD is LLM-Drop's removal of whole layers
# by block influence, DeeperLayers is UIDL.
WHOLE_LAYERS = {
    "ShortGPT": _untrained("BI"),
    "UMD": _untrained("BI"),
    "SLEB": _untrained("SLEB"),
    "FINERCUT": _finercut,
    "UIDL": _uidl,
    "DeeperLayers": _uidl,
    "LaCo": _laco,
    "LLM-Streamline": lambda model, removed: streamline_layer(removed, PAPER),
}


def _method(number: reported.Number) -> str:
    return number.method.rstrip("*†‡")  # footnotes say where a row was taken from


def beside(number: reported.Number) -> str:
    """Return the id of this project's row beside a printed one."""
    return f"{_method(number)}/ours"


def neighbours(row: Row, number: reported.Number, limit: int | None) -> list[Row]:
    """Return this project's row beside a printed one without a recipe; none if its method is not implemented."""
    method = _method(number)
    if method == PRUNER:
        steps = llm_pruner("paper", **({"ratio": PRUNER_RATIOS[row.model]} if number.sparsity else {"layers": 8}))
    elif method == SLICEGPT:
        steps = slicegpt("paper", ratio=round(float(number.sparsity.rstrip("%")) / 100, 4))
    elif method in WHOLE_LAYERS:
        removed = count(row.model, number) or count_of_parameters(row.model, number)
        steps = WHOLE_LAYERS[method](row.model, removed)
    else:
        return []
    labels = {"name": f"{method} (extension)", "extension": True, "printed": None, "shapes": None, "spec": None}
    row_recipe = recipe(row.model, PAPER, limit, **steps)
    return [dataclasses.replace(row, method=beside(number), recipe=row_recipe, **labels)]

"""The tables of LaCo, declared: their reported side, and the shares of parameters that need no weights."""

from __future__ import annotations

from common import models
from common.results import Recipe
from reproductions import declare, reported, shapes
from reproductions.registry import Column

SHARE = Column("ratio %", "parameters", "ratio", scale=100, compare="exact", weight_free=True)
NOTE = "ratio % is recomputed from the printed number of layers left; the second column repeats it as printed."


def _shape(model: str, number: reported.Number) -> Recipe | None:
    """LaCo's merged layers have the shape of one: what counts is how many are left."""
    layers = reported.cells("laco", number.table).get(
        (number.model, number.sparsity, reported.row_name(number.method, number.variant), "layers")
    )
    if number.method in ("LLMPru.", "SliceGPT") or layers is None:
        return None
    removed = models.get(model).facts["layers"] - int(layers.value)
    return shapes.recipe(model, removed)


def _table(number: str, title: str):
    return declare.table("laco", number, title, weight_free=[SHARE], shape=_shape, note=NOTE)


TABLES = [
    _table("1", "main results"),
    declare.table("laco", "2", "averages of the main results"),
    declare.table("laco", "3", "averages after post-training and pruning again"),
    _table("4", "averages at different shares"),
    declare.table("laco", "5", "hyperparameters of the main results"),
    _table("6", "hyperparameters at different shares"),
    _table("7", "main results relative to the dense model"),
    declare.table("laco", "9", "scores after post-training and pruning again"),
    _table("10", "scores at different shares"),
]

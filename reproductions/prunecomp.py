"""The tables of Prune&Comp, declared: their reported side, and the cells that need no weights."""

from __future__ import annotations

from common.results import Recipe
from reproductions import declare, reported, shapes
from reproductions.registry import Column

RATIO = Column("Ratio", "parameters", "ratio", scale=100, compare="exact", weight_free=True)


def _shape(model: str, number: reported.Number) -> Recipe | None:
    """Compensation is fused into the weights: it adds no parameters."""
    count = declare.removed_layers(number)
    return shapes.recipe(model, count) if count else None


TABLES = [
    declare.table("prunecomp", "1", "perplexity"),
    declare.table("prunecomp", "2", "question answering", weight_free=[RATIO], shape=_shape),
    declare.table("prunecomp", "3", "MMLU"),
    declare.table("prunecomp", "4", "iterative pruning and compensation, apart and together"),
    declare.table("prunecomp", "A1", "perplexity of LLaMA-2-13B and Qwen3-8B"),
    declare.table("prunecomp", "A2", "question answering, LLaMA-2", weight_free=[RATIO], shape=_shape),
    declare.table("prunecomp", "A3", "layers removed from LLaMA-2-7B and LLaMA-3-8B"),
    declare.table("prunecomp", "A4", "layers removed from LLaMA-2-13B and Qwen3-8B"),
    declare.table("prunecomp", "A5", "question answering of the ablation"),
    declare.table("prunecomp", "A6", "number of calibration samples"),
]

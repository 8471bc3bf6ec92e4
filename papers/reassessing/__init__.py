"""Reassessing Layer Pruning in LLMs: seven metrics, four ways to fine-tune, and the recipe they lead to."""

from papers.reassessing.iterative import prune_iteratively, schedule
from papers.reassessing.metrics import METRICS, SEED, sample_line_crops, scores, select
from papers.reassessing.recipe import partial_finetune, reverse_order

__all__ = [
    "METRICS",
    "SEED",
    "partial_finetune",
    "prune_iteratively",
    "reverse_order",
    "sample_line_crops",
    "schedule",
    "scores",
    "select",
]

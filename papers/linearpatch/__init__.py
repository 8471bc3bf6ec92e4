"""LinearPatch: a Hadamard-diagonal-Hadamard matrix at the cut of a layer-pruned model."""

from papers.linearpatch.method import prune, select, survey
from papers.linearpatch.patch import (
    LinearPatch,
    channel_scales,
    insert_patch,
    named_statistics,
    patch_cuts,
    patch_values,
)
from papers.linearpatch.published import compare_window, published_window

__all__ = [
    "LinearPatch",
    "channel_scales",
    "compare_window",
    "insert_patch",
    "named_statistics",
    "patch_cuts",
    "patch_values",
    "prune",
    "published_window",
    "select",
    "survey",
]

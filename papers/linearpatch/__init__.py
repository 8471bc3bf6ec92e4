"""LinearPatch: a Hadamard-diagonal-Hadamard matrix at the cut of a layer-pruned model."""

from papers.linearpatch.method import prune
from papers.linearpatch.patch import LinearPatch, channel_scales, insert_patch, patch_cuts

__all__ = ["LinearPatch", "channel_scales", "insert_patch", "patch_cuts", "prune"]

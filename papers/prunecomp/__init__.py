"""Prune&Comp: layer pruning that rescales the remaining weights, so that the stream keeps its magnitude."""

from papers.prunecomp.factor import check_scale_invariance, fuse_factor, fuse_factors, magnitude_factor
from papers.prunecomp.method import prune_and_compensate, remove_and_compensate, repeat
from papers.prunecomp.search import METRICS, choose, next_layer
from papers.prunecomp.stream import Stream

__all__ = [
    "METRICS",
    "Stream",
    "check_scale_invariance",
    "choose",
    "fuse_factor",
    "fuse_factors",
    "magnitude_factor",
    "next_layer",
    "prune_and_compensate",
    "remove_and_compensate",
    "repeat",
]

"""Prune&Comp: layer pruning that rescales the remaining weights, so that the residual stream keeps its magnitude."""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "papers.prunecomp.factor": ("fuse_factor", "fuse_factors", "magnitude_factor"),
        "papers.prunecomp.method": ("prune_and_compensate", "remove_and_compensate", "repeat"),
        "papers.prunecomp.options": ("METRICS",),
        "papers.prunecomp.search": ("choose", "next_layer"),
        "papers.prunecomp.stream": ("Stream",),
    },
)

"""Refit the output matrices around a pruning interface (extension); see `extensions.refit.method`."""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "common.calibration.layer_inputs": ("ATTENTION", "GATE", "MLP", "UP"),
        "extensions.refit.method": ("FOLLOWING", "RIDGE", "RIDGES", "refit", "refit_one_by_one"),
        "extensions.refit.steps": ("Refit",),
    },
)

"""Refit the output matrices around a pruning interface (extension); see `extensions.refit.method`."""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "common.calibration.layer_inputs": ("ATTENTION", "MLP"),
        "extensions.refit.method": ("FOLLOWING", "RIDGE", "RIDGES", "refit"),
        "extensions.refit.steps": ("Refit",),
    },
)

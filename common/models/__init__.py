"""Models: load them, inspect their layers, remove layers, and save the rest."""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "common.models.loading": ("describe", "load", "model_config", "resolve"),
        "common.models.registry": ("REGISTRY", "TOY_ID", "get"),
    },
)

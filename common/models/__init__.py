"""Models: load them, look into their layers, remove layers, save what is left."""

from common.console import lazy

__getattr__, __all__ = lazy.names(
    __name__,
    {
        "common.models.loading": ("describe", "load", "model_config", "resolve"),
        "common.models.registry": ("REGISTRY", "STANDIN", "get"),
    },
)

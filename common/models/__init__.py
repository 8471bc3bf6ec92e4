"""Models: load them, look into their layers, remove layers, save what is left."""

import importlib
from typing import Any

_WHERE = {
    "describe": "common.models.loading",
    "load": "common.models.loading",
    "model_config": "common.models.loading",
    "resolve": "common.models.loading",
    "REGISTRY": "common.models.registry",
    "STANDIN": "common.models.registry",
    "get": "common.models.registry",
}

__all__ = ["REGISTRY", "STANDIN", "describe", "get", "load", "model_config", "resolve"]


def __getattr__(name: str) -> Any:  # on demand, so that what needs no torch does not load it
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)

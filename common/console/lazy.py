"""Names of a package that are imported on first use, so that its command line answers before torch is loaded."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def names(package: str, modules: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], list[str]]:
    """Return a package's `__getattr__` and `__all__`, from the names that each of its modules gives it."""
    where = {name: module for module, exported in modules.items() for name in exported}

    def __getattr__(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(where[name]), name)

    return __getattr__, sorted(where)

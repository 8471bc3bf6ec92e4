"""Import packages whose modules register their content."""

import importlib
import pkgutil


def import_modules(package: str) -> None:
    """Import every module of a package, so that each registers its steps, patches and structures."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)

"""One package per paper: the method, and the numbers the paper reports. Papers never import one another.

What recipes may name is in `papers.<paper>.steps`, or in a method's only module, `papers/<method>.py`. The texts that a paper
evaluates on are in `papers.<paper>.evaluation_texts`.
"""

import importlib
import pkgutil
from importlib.util import find_spec


def load_steps() -> None:
    """Import every paper's steps and evaluation texts, so that recipes and tables can name them."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        names = [f"{module.name}.{part}" for part in ("steps", "evaluation_texts")] if module.ispkg else [module.name]
        for name in filter(find_spec, names):
            importlib.import_module(name)

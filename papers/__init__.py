"""One package per paper: the method, and the numbers the paper reports. Papers never import one another.

What recipes may name is in `papers.<paper>.steps`, or in a method's only module, `papers/<method>.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib.util import find_spec

from common import launch

if sys.argv[:1] == ["-m"]:  # `python -m papers.<paper>`: this and the paper's package are imported before its __main__
    launch.guard()


def load_steps() -> None:
    """Import every paper's steps, so that recipes can name them."""
    for found in pkgutil.iter_modules(__path__, f"{__name__}."):
        name = f"{found.name}.steps" if found.ispkg else found.name
        if not found.ispkg or find_spec(name):
            importlib.import_module(name)

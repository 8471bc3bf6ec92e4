"""One package per paper: the method, and the numbers the paper reports. Papers never import one another.

What recipes may name is in `papers.<paper>.steps`, or in a method's only module, `papers/<method>.py`; how a paper measures
is in `papers.<paper>.measures`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib.util import find_spec

from common.utils import startup, threads

if sys.argv[:1] == ["-m"]:  # `python -m papers.<paper>`: this and the paper's package are imported before its __main__
    startup.guard()

from common.cli import early  # noqa: E402 - under the guard

TOOLS = {  # their own options, which are known before a tool is loaded
    "laco": early.Own(("threshold", "combine", "interval", "merge", "sentences"), instead=("threshold",)),
    "linearpatch": early.Own(("variant", "window", "cosine", "patch", "estimator", "acts-on", "distill")),
    "prunecomp": early.Own(("metric", "one-shot", "no-compensation")),
    "reassessing": early.Own(
        ("metric", "finetune", "last", "train-at", "data", "rows", "epochs", "batch", "learning-rate", "untie-head")
    ),
}

if sys.argv[:1] == ["-m"]:
    early.look(sys.orig_argv, __name__, TOOLS)
    threads.settle()


def load_steps() -> None:
    """Import every paper's steps and measures, so that recipes and tables can name them."""
    for found in pkgutil.iter_modules(__path__, f"{__name__}."):
        names = [f"{found.name}.{part}" for part in ("steps", "measures")] if found.ispkg else [found.name]
        for name in names:
            if find_spec(name):
                importlib.import_module(name)

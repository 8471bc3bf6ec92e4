"""The papers' methods as tools: `python -m papers.<paper> --model NAME_OR_PATH --remove 8 --out DIR`.

A paper's `__main__` declares a `Method` (`options`): its own options, and what it does to the model. All else is shared:
options and checks, the `Job` (`job`), evaluation before and after, the checkpoint and its card (`run`). Nothing is imported
here: `early` refuses most mistakes before torch is loaded.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "Job": "common.cli.job",
    "Method": "common.cli.options",
    "require": "common.cli.options",
    "main": "common.cli.run",
}

__all__ = ["Job", "Method", "main", "require"]


def __getattr__(name: str) -> Any:  # on demand: `early` refuses most mistakes before torch is loaded
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)

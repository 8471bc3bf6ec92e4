"""The old name of `extensions.refit`, for one release."""

import importlib
import runpy
import sys
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(importlib.import_module("extensions.refit"), name)


if __name__ == "__main__":
    print("note: papers.refit is now extensions.refit; the next release removes the old name", file=sys.stderr)
    runpy.run_module("extensions.refit", run_name="__main__", alter_sys=True)

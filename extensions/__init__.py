"""What is ours and no paper's: methods (`refit`, `least_residual`) and the tables that compare them (`league`)."""

from __future__ import annotations

import importlib
import sys

from common.utils import startup, threads

if sys.argv[:1] == ["-m"]:  # `python -m extensions.<method>`: this is imported before its __main__
    startup.guard()

from common.cli import early  # noqa: E402 - under the guard

STEPS = ("extensions.refit.least_residual", "extensions.refit.steps")

TOOLS = {  # their own options, which are known before a tool is loaded
    "refit": early.Own(
        (
            *("choose", "cosine", "following", "ridge", "matrices", "share", "held-out", "gate-up", "intercept"),
            *("one-by-one", "no-graft"),
        )
    )
}

if sys.argv[:1] == ["-m"]:
    early.look(sys.orig_argv, __name__, TOOLS)
    threads.settle()


def load_steps() -> None:
    """Import the extensions' steps, so that recipes can name them."""
    for name in STEPS:
        importlib.import_module(name)

"""Extensions, which are in no paper: methods (`refit`, `least_residual`) and the tables that compare them (`league`)."""

import importlib

STEPS = ("extensions.refit.least_residual", "extensions.refit.steps")


def load_steps() -> None:
    """Import the extensions' steps, so that recipes can name them."""
    for name in STEPS:
        importlib.import_module(name)

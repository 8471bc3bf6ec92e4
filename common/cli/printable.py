"""Options and names as cards and reports print them: without paths of this machine."""

import os
from pathlib import Path

from common.pruning.recipe import MIXED


def public(name: str) -> str:
    """Return a name to print in a card: hub ids, short names and texts unchanged, and of a path its last part.

    The same holds for each text of a mix.
    """
    path = Path(os.path.expanduser(name))
    if not path.exists() and MIXED in name:
        return MIXED.join(map(public, name.split(MIXED)))
    return path.resolve().name if path.exists() or name.startswith(("/", ".", "~")) else name


def result_options(options: dict) -> dict:
    """Return the options that determine the result, without a number of layers that follows from another option."""
    idle = {"out", "force", "plan", "measure", "json", "push_to_hub"}
    if options.get("target_ratio") is not None or options.get("max_perplexity_increase") is not None:
        idle.add("remove")
    return {key: value for key, value in options.items() if key not in idle}


def plain(options: dict) -> dict:
    """Return the options as JSON, with paths shortened to their last part."""
    paths = ("model", "text", "test", "data")
    return {key: public(value) if key in paths and value else value for key, value in result_options(options).items()}

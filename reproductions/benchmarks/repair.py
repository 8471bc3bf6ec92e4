"""What a repair took, and what can load its result."""

from __future__ import annotations

from common import hooks, structure
from common.context import Context
from reproductions.benchmarks import benchmark

PLAIN, OWN = "Transformers, vLLM, llama.cpp", "this project"


@benchmark("repair")
def _repair(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Calibration tokens that the repair saw, and its seconds; both 0 where there is none."""
    return {"calibration_tokens": 0, "seconds": 0.0} | context.details.get("repair", {}), {}, {}


@benchmark("loadable")
def _loadable(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Whether the saved checkpoint is plain, so that any program for its architecture reads all of it."""
    patches = len(hooks.patches(context.model))
    plain = not patches and structure.why_not_plain(context.model) is None
    return {"patches": patches}, {}, {"loaded_by": PLAIN if plain else OWN}

"""Measure the cost of a repair, the speed of its result, and what can load it."""

import statistics

import torch

from common import hooks
from common.models import loading
from common.models.files import block_configs
from common.models.layers import structure
from common.pruning.pipeline import Context
from reproductions.measurements import benchmark
from reproductions.measurements.statistics import pass_seconds

WINDOWS, PASSES = (4, 512), 5  # random tokens: what they are takes no time
PLAIN, OWN = "Transformers, vLLM, llama.cpp", "this project"
DECI = f"{OWN}; vLLM and llama.cpp by its {block_configs.FILE}"


@benchmark("repair")
def _repair(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure the calibration tokens that the repair saw, and its seconds; both 0 without a repair."""
    return {"calibration_tokens": 0, "seconds": 0.0} | context.details.get("repair", {}), {}, {}


@benchmark("latency")
def _latency(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Return the seconds of a forward pass as a share of the dense model's.

    They are medians of passes in turns, after one of each that does not count. Holds a dense model beside the pruned one.
    """
    model = context.model
    dense, _ = loading.load(context.recipe.model, device=str(model.device), dtype=context.recipe.dtype)
    generator = torch.Generator().manual_seed(0)
    sequences = torch.randint(context.decoder.config.vocab_size, WINDOWS, generator=generator).to(model.device)
    turns = [(pass_seconds(model, sequences), pass_seconds(dense, sequences)) for _ in range(1 + PASSES)][1:]
    pruned, original = (list(seconds) for seconds in zip(*turns, strict=True))
    details = {"seconds": pruned, "dense_seconds": original, "windows": list(WINDOWS), "device": str(model.device)}
    details["threads"] = torch.get_num_threads()
    return {"of_dense": statistics.median(pruned) / statistics.median(original)}, {}, details


@benchmark("loadable")
def _loadable(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure whether the saved checkpoint is plain, so that any program for its architecture reads all of it."""
    patches = len(hooks.patches(context.model))
    if patches:
        loaded = OWN
    elif structure.why_not_plain(context.model) is None:
        loaded = PLAIN
    else:
        loaded = DECI if block_configs.config(context.model) else OWN
    return {"patches": patches}, {}, {"loaded_by": loaded}

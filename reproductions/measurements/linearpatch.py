"""Measure for LinearPatch's tables: the removed block, and the time of what is inserted."""

import statistics
import time

import torch

from common import hooks
from common.pruning.pipeline import Context
from common.pruning.selection import runs
from common.utils.errors import UserError
from papers import linearpatch
from reproductions.measurements import benchmark

BATCH = 16  # Table 6


@benchmark("window")
def _block(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure the first and last end of what was removed, in how many blocks, and compare it with Table 9."""
    removed = context.details["removed"]
    blocks = runs(removed)
    values = {"start": blocks[0][0], "end": blocks[-1][1], "cuts": len(blocks)}
    variant = "S" if context.recipe.selection["method"] == "bi" else "L"
    return values, {}, {"table9": linearpatch.compare_block(removed, context.recipe.model, variant)}


@benchmark("inserted")
@torch.inference_mode()
def _inserted(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure Table 6: seconds that the inserted part takes for one batch of 16 sequences, median of repeated calls.

    Paper: 2048 tokens, 1000 calls, the mean; here as many calls as fit in about two seconds, five at least.
    """
    modules = [patch.module for patch in hooks.patches(context.model)]
    if not modules:
        raise UserError("nothing was inserted into this model, so there is nothing to time; give the recipe a repair")
    length = context.recipe.calibration["length"]
    weight = context.decoder.embed.weight
    hidden = torch.randn(BATCH, length, weight.shape[1], device=weight.device, dtype=weight.dtype)
    seconds: list[float] = []
    while len(seconds) < 6 or sum(seconds) < 2 and len(seconds) < 1001:
        _wait(weight.device)
        started = time.perf_counter()
        for module in modules:
            module(hidden)
        _wait(weight.device)
        seconds.append(time.perf_counter() - started)
    measured = seconds[1:]  # the first call warms up
    values = {"seconds": statistics.median(measured), "calls": len(measured)}
    return values, {}, {"shape": list(hidden.shape), "dtype": str(weight.dtype), "threads": torch.get_num_threads()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

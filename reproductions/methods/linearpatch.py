"""LinearPatch in recipes."""

from __future__ import annotations

import statistics
import time

import torch

from common import hooks
from common.errors import UserError
from common.selection import runs
from papers import linearpatch
from reproductions.methods import magnitudes
from reproductions.prepared import Prepared

BATCH = 16  # Table 6


def _patched(prepared: Prepared, removed: list[int], progress: bool) -> None:
    """Patch every cut; the statistics are those of the selection's pass unless the patch needs more than they hold."""
    choice = prepared.recipe.selection
    options = {name: value for name, value in prepared.recipe.repair.items() if name != "method"}
    kind, estimator = options.get("kind", "hadamard"), options.get("estimator", "ratio-of-means")
    named = linearpatch.named_statistics(kind, estimator, runs(removed))
    cosine = (choice.get("cosine", "token"),)
    statistics = prepared.statistics(len(removed), cosine, progress=progress, **named)
    # The selection has decided: Eq. 2 takes the argmax over all windows.
    prepared.details["patches"] = linearpatch.patch_cuts(prepared.model, statistics, removed, ends=True, **options)


REPAIRS = {"linearpatch": _patched}


def _window(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """First and last end of what was removed, in how many cuts, and how that stands to Table 9."""
    removed = prepared.details["removed"]
    cuts = runs(removed)
    values = {"start": cuts[0][0], "end": cuts[-1][1], "cuts": len(cuts)}
    variant = "S" if prepared.recipe.selection["method"] == "bi" else "L"
    return values, {}, {"table9": linearpatch.compare_window(removed, prepared.recipe.model, variant)}


@torch.inference_mode()
def _inserted(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Table 6: seconds that what was inserted takes for one batch of 16 windows, median of repeated calls.

    Paper: 2048 tokens, 1000 calls, the mean; here as many calls as fit in about two seconds, five at least.
    """
    modules = [patch.module for patch in hooks.patches(prepared.model)]
    if not modules:
        raise UserError("nothing was inserted into this model, so there is nothing to time; give the recipe a repair")
    length = prepared.recipe.calibration["length"]
    weight = prepared.decoder.embed.weight
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


PRUNERS = magnitudes.PRUNERS
BENCHMARKS = {"window": _window, "inserted": _inserted} | magnitudes.BENCHMARKS
READS = magnitudes.READS

"""LinearPatch in recipes."""

from __future__ import annotations

from common.selection import runs
from papers import linearpatch
from reproductions.prepared import Prepared


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

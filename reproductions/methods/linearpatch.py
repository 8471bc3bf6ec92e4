"""LinearPatch in recipes."""

from __future__ import annotations

from papers import linearpatch
from reproductions.prepared import Prepared


def _patched(prepared: Prepared, removed: list[int], progress: bool) -> None:
    choice = prepared.recipe.selection
    options = {name: value for name, value in prepared.recipe.repair.items() if name != "method"}
    statistics = prepared.statistics(choice["count"], (choice.get("cosine", "token"),), progress=progress)
    prepared.details["patches"] = linearpatch.patch_cuts(prepared.model, statistics, removed, **options)


REPAIRS = {"linearpatch": _patched}

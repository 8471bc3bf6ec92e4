"""How long cells are going to take, by the published results of the same benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from common.records.results import Store
from common.utils.errors import plural
from common.utils.progress import clock
from reproductions.engine import costs
from reproductions.engine.runner import Work
from reproductions.spec.subjects import PUBLISHED_MODELS


def expected(work: Sequence[Work], store: Store) -> tuple[float, int]:
    """Estimate the seconds that cells take, and count those that nothing is known of.

    A cell takes as long as its own result did, or as the median of its benchmark on the same model. Of a model without
    published results it takes that of a published model, in proportion to the parameters.
    """
    total, unknown = 0.0, 0
    for entry in work:
        preparing = []
        for benchmark in entry.benchmarks:
            own = store.get(entry.recipe, benchmark)
            if own is not None and own.status == "ok" and "seconds" in own.provenance:
                found, scale = [(own.recipe, own.provenance)], 1.0
            else:
                found, scale = _published(store, entry.recipe.model, benchmark)
            times = [provenance["seconds"] for _, provenance in found if provenance.get("seconds") is not None]
            total += scale * median(times) if times else 0.0
            unknown += not times
            alike = [
                p.get("preparing_seconds") for recipe, p in found if _methods(recipe) == _methods(vars(entry.recipe))
            ]
            preparing += [scale * seconds for seconds in alike if seconds is not None]
        total += median(preparing) if preparing else 0.0
    return total, unknown


def said(work: Sequence[Work], store: Store) -> str:
    """Say what `expected` returns, in a line."""
    seconds, unknown = expected(work, store)
    cells = plural(sum(len(entry.benchmarks) for entry in work), "cell")
    if not seconds:
        return f"{cells} to measure; nothing is known of their time"
    rest = f", and {unknown} of unknown time" if unknown else ""
    return f"{cells} to measure: about {clock(seconds)} at the published results' speed (1 or 2 CPU cores){rest}"


def _published(store: Store, model: str, benchmark: str) -> tuple[list[tuple[Mapping, Mapping]], float]:
    """Return (recipe, provenance) of a benchmark's published results, and by how much this model takes longer."""
    for other in (model, *PUBLISHED_MODELS):
        rows = _of_benchmark(store, other, benchmark)
        if rows:
            return rows, costs.parameters(model) / costs.parameters(other)
    return [], 1.0


def _of_benchmark(store: Store, model: str, benchmark: str) -> list[tuple[Mapping, Mapping]]:
    found: Iterable[Mapping] = store.published.of_benchmark(model, benchmark) if store.published is not None else ()
    return [(one["recipe"], one["provenance"]) for one in found if one["status"] == "ok"]


def _methods(recipe: Mapping) -> tuple:
    """Return the methods of a recipe's steps, by which it is prepared."""
    return tuple((recipe.get(part) or {}).get("method") for part in ("selection", "repair", "training"))

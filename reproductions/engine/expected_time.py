"""How long cells are going to take, by the published results of the same benchmarks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from statistics import median

from common.console.progress import clock
from common.models import registry
from common.records.results import Store
from common.utils.errors import plural
from reproductions.engine.runner import Work
from reproductions.spec.subjects import PUBLISHED_MODELS


def expected(work: Sequence[Work], store: Store) -> tuple[float, int]:
    """Estimate the seconds that cells take, and count those that nothing is known of.

    A cell takes as long as its own result did, or as the median of its benchmark on the same model. Of a model without
    published results it takes that of a published model, in proportion to the parameters.
    """
    total, unknown, published = 0.0, 0, cache(partial(_published, store))
    for entry in work:
        seconds, missing = _recipe(entry, store, published)
        total += seconds
        unknown += missing
    return total, unknown


def longest_first(work: Sequence[Work], store: Store) -> list[Work]:
    """Sort recipes by the seconds that they are expected to take, the longest first: workers then end together."""
    published = cache(partial(_published, store))
    return sorted(work, key=lambda entry: -_recipe(entry, store, published)[0])


def _recipe(entry: Work, store: Store, published: Callable) -> tuple[float, int]:
    """Return the seconds of one recipe, with preparing it, and the number of cells that nothing is known of."""
    total, unknown, preparing = 0.0, 0, []
    for benchmark in entry.benchmarks:
        own = store.get(entry.recipe, benchmark)
        if own is not None and own.status == "ok" and "seconds" in own.provenance:
            times, prepared = _times([(own.recipe, own.provenance)])
        else:
            times, prepared = published(entry.recipe.model, benchmark)
        total += times or 0.0
        unknown += times is None
        preparing += prepared.get(_methods(vars(entry.recipe)), [])
    return total + (median(preparing) if preparing else 0.0), unknown


def said(work: Sequence[Work], store: Store) -> str:
    """Say what `expected` returns, in a line."""
    seconds, unknown = expected(work, store)
    cells = plural(sum(len(entry.benchmarks) for entry in work), "cell")
    if not seconds:
        return f"{cells} to measure; nothing is known of their time"
    rest = f", and {unknown} of unknown time" if unknown else ""
    return f"{cells} to measure: about {clock(seconds)} at the published results' speed (1 or 2 CPU cores){rest}"


def _parameters(model: str) -> float:
    """Return a model's parameters as registered; of other models a number that stands for any."""
    spec = registry.find(model)
    return (spec.facts.get("params") if spec else None) or 1e9


def _published(store: Store, model: str, benchmark: str) -> tuple[float | None, dict]:
    """Return what `_times` tells of a benchmark's published results, in proportion to this model's parameters."""
    for other in (model, *PUBLISHED_MODELS):
        if rows := _of_benchmark(store, other, benchmark):
            return _times(rows, _parameters(model) / _parameters(other))
    return None, {}


def _times(
    rows: Sequence[tuple[Mapping, Mapping]], scale: float = 1.0
) -> tuple[float | None, dict[tuple, list[float]]]:
    """Return the median seconds of results, given as (recipe, provenance), and their seconds of preparing by methods."""
    times = [provenance["seconds"] for _, provenance in rows if provenance.get("seconds") is not None]
    preparing = defaultdict(list)
    for recipe, provenance in rows:
        if (seconds := provenance.get("preparing_seconds")) is not None:
            preparing[_methods(recipe)].append(scale * seconds)
    return (scale * median(times) if times else None), preparing


def _of_benchmark(store: Store, model: str, benchmark: str) -> list[tuple[Mapping, Mapping]]:
    found: Iterable[Mapping] = store.published.of_benchmark(model, benchmark) if store.published is not None else ()
    return [(one["recipe"], one["provenance"]) for one in found if one["status"] == "ok"]


def _methods(recipe: Mapping) -> tuple:
    """Return the methods of a recipe's steps, by which it is prepared."""
    return tuple((recipe.get(part) or {}).get("method") for part in ("selection", "repair", "training"))

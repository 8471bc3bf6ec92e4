"""Estimate how long cells take, by the published results of the same benchmarks, and what is left of them meanwhile."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial
from statistics import mean, median

from common.console.progress import clock
from common.models import registry
from common.records.results import Store
from common.utils.errors import plural
from reproductions.engine.work import Work, count_cells
from reproductions.spec.subjects import PUBLISHED_MODELS, TOY

# Running a model over text takes as long as this benchmark does, for as many tokens.
_RUNNING, _TOKENS = "perplexity@linearpatch-wikitext2@49152-tokens", 49_152
# Work tells the speed once this many seconds were expected of it: a count of parameters took a thousand times its 0.1 ms.
ENOUGH_SECONDS = 1.0


def expected(work: Sequence[Work], store: Store) -> tuple[float, int]:
    """Estimate the seconds that cells take, and count those without an estimate."""
    pieces = _pieces(work, store)
    return sum(seconds or 0.0 for seconds in pieces.values()), sum(seconds is None for seconds in pieces.values())


def longest_first(work: Sequence[Work], store: Store) -> list[Work]:
    """Sort recipes by their expected seconds, the longest first, so that workers end together."""
    seconds_of = defaultdict(float)
    for (recipe, _), seconds in _pieces(work, store).items():
        seconds_of[recipe] += seconds or 0.0
    return sorted(work, key=lambda entry: -seconds_of[entry.recipe.hash])


def _pieces(work: Sequence[Work], store: Store) -> dict[tuple[str, str | None], float | None]:
    """Return the expected seconds of each cell, by recipe's hash and benchmark, and of preparing each model (None).

    A cell takes as long as its earlier result on a CPU, or as the median of its benchmark on the same model. For a
    model without results from a CPU it is that of a published model, in proportion to the parameters. A cell of which
    nothing is known has None. Published results rarely read their calibration text anew, so preparing the first recipe
    that reads a text takes the seconds of running the model over it, too; the toy model reads its text in seconds.
    """
    published, pieces, texts = cache(partial(_published, store)), {}, set()
    for entry in work:
        recipe, preparing, earlier = entry.recipe, [], False
        for benchmark in entry.benchmarks:
            record = store.get(recipe, benchmark)
            earlier |= record is not None
            provenance = record.provenance if record is not None and record.status == "ok" else {}
            if "seconds" in provenance and _on_cpu(provenance):
                pieces[recipe.hash, benchmark], prepared = _times([(record.recipe, provenance)])
            else:
                pieces[recipe.hash, benchmark], prepared = published(recipe.model, benchmark)
            preparing += prepared.get(_methods(vars(recipe)), [])
        pieces[recipe.hash, None] = median(preparing) if preparing else 0.0
        text = recipe.model, json.dumps(recipe.calibration, sort_keys=True)
        if recipe.calibration and recipe.profile != TOY.profile and not earlier and text not in texts:
            texts.add(text)
            tokens = (recipe.calibration.get("count") or 0) * (recipe.calibration.get("length") or 0)
            pieces[recipe.hash, None] += (published(recipe.model, _RUNNING)[0] or 0.0) * tokens / _TOKENS
    return pieces


class TimeLeft:
    """Estimate of the seconds left of some work.

    Each cell counts with its expected time, and so does preparing each model. What is done corrects the rest, once
    ENOUGH_SECONDS were expected of it: if it took twice the expected time, the rest counts twice.
    """

    def __init__(self, work: Sequence[Work], store: Store) -> None:
        pieces = _pieces(work, store)
        known = [seconds for (_, benchmark), seconds in pieces.items() if benchmark and seconds is not None]
        usual = mean(known) if known else 1.0  # a cell of which nothing is known counts as the mean of the others
        self._left = {piece: usual if seconds is None else seconds for piece, seconds in pieces.items()}
        self._took = self._expected = 0.0  # of what is done

    def done(self, recipe: str, benchmark: str | None, seconds: float | None = None) -> None:
        """Note that a cell of a recipe, by its hash, is done, or with ``benchmark`` None that its model is prepared.

        seconds: None if they say nothing about others, as for a failed cell.
        """
        expected = self._left.pop((recipe, benchmark), None)
        if expected and seconds is not None:
            self._took += seconds
            self._expected += expected
        if recipe not in self.recipes():
            self._left.pop((recipe, None), None)

    def recipes(self) -> set[str]:
        """Return the hashes of the recipes with remaining cells."""
        return {recipe for recipe, benchmark in self._left if benchmark is not None}

    def seconds(self) -> float | None:
        """Return the seconds that one process needs for the rest; None until ENOUGH_SECONDS are done."""
        enough = self._expected >= ENOUGH_SECONDS
        return sum(self._left.values()) * self._took / self._expected if enough else None


def summary(work: Sequence[Work], store: Store) -> str:
    """Describe the result of `expected` in a line."""
    if not work:
        return "nothing is left to measure"
    seconds, unknown = expected(work, store)
    cells = plural(count_cells(work), "cell")
    if not seconds:
        return f"{cells} to measure; nothing is known of their time"
    rest = f", and {unknown} of unknown time" if unknown else ""
    return f"{cells} to measure: about {clock(seconds)} at the published results' speed (1 or 2 CPU cores){rest}"


def _parameters(model: str) -> float:
    """Return a model's parameters as registered; of other models a number that stands for any."""
    spec = registry.find(model)
    return (spec.facts.get("params") if spec else None) or 1e9


def _published(store: Store, model: str, benchmark: str) -> tuple[float | None, dict]:
    """Return what `_times` tells of a benchmark's published results, in proportion to this model's parameters.

    A GPU's seconds say little of a CPU's; they count only where no CPU has measured that benchmark.
    """
    for counts in (_on_cpu, lambda _: True):
        for measured in dict.fromkeys((model, *PUBLISHED_MODELS)):
            if rows := [row for row in _of_benchmark(store, measured, benchmark) if counts(row[1])]:
                return _times(rows, _parameters(model) / _parameters(measured))
    return None, {}


def _on_cpu(provenance: Mapping) -> bool:
    return provenance.get("device", "cpu") == "cpu"


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
    if store.published is None:
        return []
    results = store.published.of_benchmark(model, benchmark)
    return [(result["recipe"], result["provenance"]) for result in results if result["status"] == "ok"]


def _methods(recipe: Mapping) -> tuple:
    """Return the methods of a recipe's steps, by which it is prepared."""
    return tuple((recipe.get(part) or {}).get("method") for part in ("selection", "repair", "training"))

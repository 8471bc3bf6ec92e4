"""Estimate how long cells take, by the published results of the same benchmarks, and what is left of them meanwhile."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from statistics import mean, median

from common.console.progress import clock
from common.models import registry
from common.records.results import Store
from common.utils.errors import plural
from reproductions.engine.work import Work
from reproductions.spec.subjects import PUBLISHED_MODELS, TOY

# Running a model over text takes as long as this benchmark does, for as many tokens.
_RUNNING, _TOKENS = "perplexity@linearpatch-wikitext2@49152-tokens", 49_152
# Work tells the speed once this many seconds were expected of it: a count of parameters took a thousand times its 0.1 ms.
ENOUGH_SECONDS = 1.0


def expected(work: Sequence[Work], store: Store) -> tuple[float, int]:
    """Estimate the seconds that cells take, and count those without an estimate.

    A cell takes as long as its earlier result on a CPU, or as the median of its benchmark on the same model. For a
    model without results from a CPU it is that of a published model, in proportion to the parameters. Published results
    rarely read their calibration text anew, so reading each calibration once is added.
    """
    published = cache(partial(_published, store))
    total, unknown = sum(_calibrating(work, store, published).values()), 0
    for entry in work:
        seconds, missing = _recipe(entry, store, published)
        total += seconds
        unknown += missing
    return total, unknown


def longest_first(work: Sequence[Work], store: Store) -> list[Work]:
    """Sort recipes by their expected seconds, the longest first, so that workers end together."""
    published = cache(partial(_published, store))
    return sorted(work, key=lambda entry: -_recipe(entry, store, published)[0])


def _recipe(entry: Work, store: Store, published: Callable) -> tuple[float, int]:
    """Return the seconds of one recipe, with preparing it, and the number of cells that nothing is known of."""
    cells, preparing = _seconds(entry, store, published)
    estimates = [seconds for seconds in cells.values() if seconds is not None]
    return sum(estimates) + (preparing or 0.0), len(cells) - len(estimates)


def _calibrating(work: Sequence[Work], store: Store, published: Callable) -> dict[str, float]:
    """Return the seconds of running a model over a calibration text, by the hash of the first recipe that reads it.

    A recipe with results of its own took what they say; the toy model reads its text in seconds.
    """
    seconds_of, texts = {}, set()
    for entry in work:
        recipe, calibration = entry.recipe, entry.recipe.calibration or {}
        key = recipe.model, json.dumps(calibration, sort_keys=True)
        if (
            not calibration
            or recipe.profile == TOY.profile
            or key in texts
            or any(store.get(recipe, benchmark) for benchmark in entry.benchmarks)
        ):
            continue
        texts.add(key)
        seconds, _ = published(recipe.model, _RUNNING)
        tokens = (calibration.get("count") or 0) * (calibration.get("length") or 0)
        seconds_of[recipe.hash] = (seconds or 0.0) * tokens / _TOKENS
    return seconds_of


def _seconds(entry: Work, store: Store, published: Callable) -> tuple[dict[str, float | None], float | None]:
    """Return the seconds of each cell of one recipe, and those of preparing it; None where nothing is known."""
    cells, preparing = {}, []
    for benchmark in entry.benchmarks:
        record = store.get(entry.recipe, benchmark)
        provenance = record.provenance if record is not None and record.status == "ok" else {}
        if "seconds" in provenance and _on_cpu(provenance):
            cells[benchmark], prepared = _times([(record.recipe, provenance)])
        else:
            cells[benchmark], prepared = published(entry.recipe.model, benchmark)
        preparing += prepared.get(_methods(vars(entry.recipe)), [])
    return cells, (median(preparing) if preparing else None)


class TimeLeft:
    """Estimate of the seconds left of some work.

    Each cell counts with its expected time, and each recipe with that of preparing its model. Finished ones correct
    both, once ENOUGH_SECONDS were expected of them: if cells have taken twice the expected time, the others count
    twice.

    Args:
        work: Work to measure.
        store: Store of earlier results.
    """

    def __init__(self, work: Sequence[Work], store: Store) -> None:
        published = cache(partial(_published, store))
        cells: dict[tuple[str, str], float | None] = {}
        preparing: dict[str, float | None] = {}
        calibrating = _calibrating(work, store, published)
        for entry in work:
            seconds, prepared = _seconds(entry, store, published)
            cells |= {(entry.recipe.hash, benchmark): expected for benchmark, expected in seconds.items()}
            preparing[entry.recipe.hash] = prepared
        self._cells, self._preparing = _Part(cells), _Part(preparing)
        for recipe, seconds in calibrating.items():
            self._preparing.left[recipe] += seconds

    def prepared(self, recipe: str, seconds: float) -> None:
        """Note that the model of a recipe, given by its hash, is prepared, and the seconds it took."""
        self._preparing.done(recipe, seconds)

    def measured(self, recipe: str, benchmark: str, seconds: float | None = None) -> None:
        """Note that a cell is done.

        Args:
            recipe: Its recipe's hash.
            benchmark: Its benchmark.
            seconds: Seconds it took; None if they say nothing about others, as for a failed cell.
        """
        self._cells.done((recipe, benchmark), seconds)
        if recipe not in self.recipes():
            self._preparing.done(recipe)

    def recipes(self) -> set[str]:
        """Return the hashes of the recipes with remaining cells."""
        return {recipe for recipe, _ in self._cells.left}

    def seconds(self) -> float | None:
        """Return the seconds that one process needs for the rest; None until ENOUGH_SECONDS of cells are done."""
        return self._cells.seconds() + self._preparing.seconds() if self._cells.expected >= ENOUGH_SECONDS else None


class _Part:
    """Remaining work of one kind, with the expected seconds of each piece.

    Args:
        expected: Piece -> seconds; None, where nothing is known, counts as the mean of the others.
    """

    def __init__(self, expected: Mapping) -> None:
        estimates = [seconds for seconds in expected.values() if seconds is not None]
        usual = mean(estimates) if estimates else 1.0
        self.left = {piece: usual if seconds is None else seconds for piece, seconds in expected.items()}
        self.took = self.expected = 0.0  # of what is done

    def done(self, piece, seconds: float | None = None) -> None:
        expected = self.left.pop(piece, None)
        if expected is not None and seconds is not None:
            self.took += seconds
            self.expected += expected

    def seconds(self) -> float:
        return sum(self.left.values()) * (self.took / self.expected if self.expected >= ENOUGH_SECONDS else 1.0)


def summary(work: Sequence[Work], store: Store) -> str:
    """Describe the result of `expected` in a line."""
    if not work:
        return "nothing is left to measure"
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

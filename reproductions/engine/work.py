"""Work that is left: recipes and their missing benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from common.records.results import Recipe


@dataclass
class Work:
    """One recipe and its missing benchmarks."""

    recipe: Recipe
    title: str
    benchmarks: list[str] = field(default_factory=list)

    def without(self, benchmarks: Collection[str]) -> list[Work]:
        """Return this work without some benchmarks; [] if none is left."""
        names = [benchmark for benchmark in self.benchmarks if benchmark not in benchmarks]
        return [Work(self.recipe, self.title, names)] if names else []

    def where(self, keep: Callable[[Recipe, str], bool]) -> list[Work]:
        """Return this work with the benchmarks of the cells to keep; [] if none is left."""
        return self.without([benchmark for benchmark in self.benchmarks if not keep(self.recipe, benchmark)])


def count_cells(work: Iterable[Work]) -> int:
    """Return the number of missing results."""
    return sum(len(entry.benchmarks) for entry in work)

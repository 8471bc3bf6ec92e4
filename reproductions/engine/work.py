"""Work that is left: recipes and their missing benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from common.records.results import Recipe


@dataclass
class Work:
    """One recipe and its missing benchmarks."""

    recipe: Recipe
    title: str
    benchmarks: list[str] = field(default_factory=list)

    def of(self, wanted: Callable[[str], bool]) -> list[Work]:
        """Return this work with the wanted benchmarks alone; [] if none is left."""
        names = [benchmark for benchmark in self.benchmarks if wanted(benchmark)]
        return [Work(self.recipe, self.title, names)] if names else []

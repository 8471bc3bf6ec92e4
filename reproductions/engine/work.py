"""A recipe and what is still to be measured of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from common.pruning.recipe import Recipe


@dataclass
class Work:
    """One recipe and the benchmarks that are missing for it."""

    recipe: Recipe
    title: str
    benchmarks: list[str] = field(default_factory=list)

    def of(self, wanted: Callable[[str], bool]) -> list[Work]:
        """This work with the wanted benchmarks alone; [] where that leaves none."""
        kept = [benchmark for benchmark in self.benchmarks if wanted(benchmark)]
        return [Work(self.recipe, self.title, kept)] if kept else []

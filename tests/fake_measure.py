"""Stands for `reproductions.engine.execute` where no model is needed."""

from types import SimpleNamespace


class FakeMeasure:
    """Notes what it prepares and measures; some benchmarks fail, and Ctrl-C comes after so many cells."""

    def __init__(self, failing=(), interrupted_after=None, held_together=lambda recipe: 1, details=None):
        self.failing, self.interrupted_after = failing, interrupted_after
        self.held_together, self.details = held_together, details or {}
        self.steps = []  # (recipe, benchmark; None: it is prepared)
        self.recorded = []  # what each preparation was told of the recipe's records

    def prepare(self, recipe, **options):
        self.steps.append((recipe, None))
        self.recorded.append(options.get("recorded"))
        return SimpleNamespace(recipe=recipe, details=dict(self.details), provenance={})

    def benchmark(self, prepared, name):
        if len(self.measured) == self.interrupted_after:
            raise KeyboardInterrupt
        self.steps.append((prepared.recipe, name))
        if name in self.failing:
            raise MemoryError
        values = dict.fromkeys(("acc", "acc_norm", "ratio", "perplexity"), 0.5)
        return values, dict.fromkeys(values, 0.01), {}

    @property
    def prepared(self):
        return [recipe.hash for recipe, benchmark in self.steps if benchmark is None]

    @property
    def measured(self):
        return [(recipe.hash, benchmark) for recipe, benchmark in self.steps if benchmark is not None]

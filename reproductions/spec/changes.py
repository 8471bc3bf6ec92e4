"""A user's changes to the recipes of a table's rows: other calibration samples, seed or text, another strength of a patch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from common.pruning.recipe import Recipe


@dataclass(frozen=True)
class Changes:
    """Options that replace a row's own; None keeps the table's.

    samples: calibration sequences, lines or sentences. seed: of random draws from the calibration text. text: a corpus
    to calibrate on. alpha: LinearPatch's perturbation coefficient, which multiplies the patch (section 3.2).
    """

    samples: int | None = None
    seed: int | None = None
    text: str | None = None
    alpha: float | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)

    def of(self, recipe: Recipe) -> Recipe:
        """Return the recipe with these changes; the same recipe if none applies."""
        parts = {
            "calibration": self._calibration(recipe.calibration),
            "selection": self._nested(recipe.selection),
            "repair": self._patch(self._nested(recipe.repair)),
        }
        return replace(recipe, **parts)

    def _calibration(self, entry: Mapping | None) -> Mapping | None:
        if entry is None:
            return None
        size = "sentences" if "sentences" in entry else "count"
        changed = {size: self.samples, "seed": self.seed, "corpus": self.text}
        return {**entry} | {key: value for key, value in changed.items() if value is not None and key in entry}

    def _nested(self, step: Mapping | None) -> Mapping | None:
        """Change the calibration of a step that has its own."""
        if step is None or not isinstance(step.get("calibration"), Mapping):
            return step
        return {**step, "calibration": self._calibration(step["calibration"])}

    def _patch(self, repair: Mapping | None) -> Mapping | None:
        if self.alpha is None or repair is None or repair.get("method") != "linearpatch":
            return repair
        return {**repair, "alpha": self.alpha}

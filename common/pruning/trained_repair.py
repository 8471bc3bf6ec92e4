"""A repair that is trained on the original model, and what its records keep of the training."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from common.pruning.pipeline import Context
from common.pruning.recipe import Repair
from common.training.fitting import Fitting
from common.utils.errors import UserError

POINTS = 250  # of a loss curve in a record


@dataclass(frozen=True)
class TrainedRepair(Repair):
    """Train a repair on the original model, then remove the layers and insert it.

    samples: training sequences, the first crops of the recipe's calibration entry (the paper: 5,000; in its code the
    first 128 also calibrate); a recipe's limit reduces them, so that a quick look is quick. length: tokens of each, if
    not the calibration's. target: ``logits`` (KL) or ``output`` (mean squared error). top_k: logits per token that the
    target ``logits`` compares. The others are fields of `common.training.fitting.Fitting`; None leaves its default.
    """

    target: str | None = None
    top_k: int | None = None
    samples: int | None = None
    length: int | None = None
    learning_rate: float | None = None
    final_share: float | None = None
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None
    warmup_share: float | None = None
    clip: float | None = None
    batch_size: int | None = None
    accumulate: int | None = None
    epochs: int | None = None
    order: str | None = None
    seed: int | None = None
    loss_scaling: bool | None = None
    save_every: int | None = None

    def stated(self, *names: str) -> dict[str, Any]:
        """Return those of the named options that are given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def fitting(self, default: Fitting, *, without: Sequence[str] = ()) -> Fitting:
        """Return the settings of the training."""
        return replace(default, **self.stated(*(f.name for f in fields(Fitting) if f.name not in without)))

    def tokens(self, context: Context) -> int:
        """Return the number of tokens to train on; 0 without a number of samples."""
        return 0 if self.samples is None else self.sequences(context).numel()

    def sequences(self, context: Context) -> Tensor:
        """Return the training sequences [samples, tokens].

        Raises:
            UserError: the recipe does not name the text, or the number of sequences.
        """
        if context.calibration is None or self.samples is None:
            raise UserError("a repair that trains needs the recipe's calibration entry and a number of samples")
        count = min(self.samples, context.recipe.limit or sys.maxsize)
        return context.tokens(replace(context.calibration, count=count, **self.stated("length")))


def note_training(context: Context, report: dict) -> None:
    """Keep the report in the results' details, with its loss curve thinned to means of equal stretches."""
    losses = report.pop("losses")
    stretch = max(1, -(-len(losses) // POINTS))
    means = [sum(part) / len(part) for part in (losses[i : i + stretch] for i in range(0, len(losses), stretch))]
    curve = {"losses": [round(value, 6) for value in means], "steps_per_point": stretch}
    report["seconds"] = round(report["seconds"], 2)
    for name in ("patches", "replaced"):
        if name in report:
            context.details[name] = report.pop(name)
    context.details["training"] = report | curve

"""LinearPatch in recipes: the patch, its distillation, and the block for its figures."""

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from common.calibration.statistics import Statistics
from common.models.surgery import replace_runs
from common.pruning import selection
from common.pruning.calibration_text import crops, sampler
from common.pruning.pipeline import Context, work_folder
from common.pruning.recipe import Calibration, Pruning, Repair, register
from common.pruning.selection import runs
from common.pruning.trained_repair import TrainedRepair, note_training
from common.training.fitting import Fitting
from common.training.teacher_store import DTYPE
from papers.linearpatch import distill
from papers.linearpatch.patch import LinearPatch, named_statistics, patch_interfaces
from papers.linearpatch.probe import massive_channels, piece_matrix

SEED = 2  # of crops, in the official code


# Random crops from the first nine tenths of the text, and from its last tenth.
sampler("linearpatch-train")(partial(crops, seed=SEED))
sampler("linearpatch-validation")(partial(crops, seed=SEED, stretch="validation"))


def _statistics(context: Context, kind: str, estimator: str) -> Statistics:
    """Return the statistics of the selection's own pass, unless the patch needs more than they hold."""
    named = named_statistics(kind, estimator, runs(context.removed))
    cosine = getattr(context.selection, "cosine", "token")
    return context.statistics(len(context.removed), (cosine,), **named)


@register("linearpatch")
@dataclass(frozen=True)
class LinearPatchRepair(Repair):
    """Insert a matrix at every interface that restores each channel's magnitude (Eqs. 4, 6 to 8).

    The options are those of `patch_interfaces`. alpha: section 3.2's perturbation coefficient, which multiplies the patch.
    """

    kind: str = "hadamard"
    estimator: str = "ratio-of-means"
    acts_on: str | None = None
    alpha: float | None = None

    def apply(self, context: Context) -> None:
        """Remove the layers and repair the model."""
        self.patch(context, _statistics(context, self.kind, self.estimator))

    def patch(self, context: Context, statistics: Statistics) -> None:
        """Remove the selected layers and patch every interface, from statistics of the original model."""
        context.details["patches"] = patch_interfaces(context.model, statistics, context.removed, **self.options())


@register("linearpatch-probe")
@dataclass(frozen=True)
class Probe(Repair):
    """Insert a piece of the patch, weaker or stronger, to see which part of it is effective (`probe`).

    first: whether a sample's first token counts in the statistics. acts_on: tokens that the patch changes
    (`LinearPatch`); None for all. calibration: text for the scales, if it differs from the text that selected the
    layers.
    """

    piece: str = "A"
    estimator: str = "ratio-of-means"
    strength: float = 1.0
    first: bool = True
    acts_on: str | None = None
    calibration: Calibration | None = None

    def tokens(self, context: Context) -> int:
        """Return the number of calibration tokens."""
        return context.calibrated_on(self.calibration).sequences().numel()

    def apply(self, context: Context) -> None:
        """Remove the layers and repair the model."""
        blocks, options = runs(context.removed), {"piece": self.piece, "estimator": self.estimator}
        named = named_statistics("hadamard", self.estimator, blocks) | ({} if self.first else {"skip": 1})
        statistics = context.calibrated_on(self.calibration).statistics(len(context.removed), **named)
        matrices = {block: piece_matrix(statistics, *block, strength=self.strength, **options) for block in blocks}
        patches = {
            block: LinearPatch(matrix, "matrix", acts_on=self.acts_on or "all") for block, matrix in matrices.items()
        }
        positions = replace_runs(context.model, patches, "linearpatch")
        context.details["patches"] = [
            {
                "run": list(block),
                "position": position,
                "diagonal": matrix.diagonal().mean().item(),
                "massive": massive_channels(statistics.magnitude(block[0])).nonzero().flatten().tolist(),
            }
            for (block, matrix), position in zip(matrices.items(), positions, strict=True)
        ]


@register("linearpatch-distilled")
@dataclass(frozen=True)
class DistilledPatch(TrainedRepair):
    """Insert a patch and train it towards the original model's logits (section 3.4).

    trainable: see `distill.DistillationSettings`. kind, estimator, acts_on: of the initial patch. The teacher's logits
    are stored on disk, shared by recipes.
    """

    trainable: str | None = None
    kind: str | None = None
    estimator: str | None = None
    acts_on: str | None = None

    def apply(self, context: Context) -> None:
        """Remove the layers and repair the model."""
        sequences, settings = self.sequences(context), self.settings(context)
        statistics = _statistics(context, self.kind or "hadamard", self.estimator or "ratio-of-means")
        store = None
        if settings.target == "logits":
            facts = {key: value for key, value in context.recipe.calibration.items() if key not in ("count", "length")}
            identity = [context.recipe.weights, str(context.model.dtype), facts, list(sequences.shape)]
            identity += [settings.top_k, DTYPE]
            name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
            store = work_folder() / context.recipe.model / f"teacher-{name}"
        where = {"store": store, "folder": context.folder / "distillation"}
        report = self.distill(context, statistics, sequences, **where)
        note_training(context, report | {"teacher": "online" if store is None else "stored"})

    def settings(self, context: Context) -> distill.DistillationSettings:
        """Return the settings of the distillation."""
        changes = self.stated("trainable", "target", "top_k")
        return distill.settings_of(context.recipe.fidelity, fitting=self.fitting(Fitting()), **changes)

    def distill(self, context: Context, statistics: Statistics, sequences: Tensor, **where) -> dict[str, Any]:
        """Train the patches on sequences, remove the selected layers and insert the patches; return the report.

        ``where`` holds store and folder, see `papers.linearpatch.distill.distill`.
        """
        start = {"kind": self.kind, "estimator": self.estimator or "ratio-of-means", "acts_on": self.acts_on or "all"}
        options = start | where | {"progress": context.progress}
        settings = self.settings(context)
        return distill.distill_interfaces(context.model, statistics, context.removed, sequences, settings, **options)


@register("observed-window")
@dataclass(frozen=True)
class ObservedBlock(Pruning):
    """Record the block that [L] would remove, for the figures; the model keeps all layers."""

    count: int
    cosine: str = "token"

    def apply(self, context: Context) -> None:
        """Record the block; nothing is removed."""
        statistics = context.statistics(self.count, (self.cosine,))
        block = selection.best_block(statistics, self.count, self.cosine, exclude_ends=False)
        context.details |= {"removed": [], "window": list(block)}

"""LinearPatch in recipes: the patch, its distillation, and the window that its figures look at."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from common import selection
from common.context import Context, work_folder
from common.errors import unknown
from common.fitting import Fitting
from common.moments import RIDGE
from common.recipe import Pruning, Repair, register
from common.selection import runs
from common.statistics import Statistics
from common.steps import TrainedRepair, note_training
from papers.linearpatch import distill
from papers.linearpatch.patch import named_statistics, patch_cuts

TEACHERS = ("stored", "online")


def _statistics(context: Context, kind: str, estimator: str) -> Statistics:
    """Those of the selection's own pass, unless the patch needs more than they hold."""
    named = named_statistics(kind, estimator, runs(context.removed))
    cosine = getattr(context.selection, "cosine", "token")
    return context.statistics(len(context.removed), (cosine,), **named)


@register("linearpatch")
@dataclass(frozen=True)
class Patch(Repair):
    """A matrix at every cut that gives each channel its magnitude back (Eqs. 5 to 8); kinds and estimators: `patch_cuts`."""

    kind: str = "hadamard"
    estimator: str = "ratio-of-means"
    ridge: float | None = None

    def apply(self, context: Context) -> None:
        self.patch(context, _statistics(context, self.kind, self.estimator))

    def patch(self, context: Context, statistics: Statistics) -> None:
        """Remove the chosen layers and patch every cut, from statistics of the model as it is.

        The selection has decided which: Eq. 2 takes the argmax over all windows, so the ends may be among them.
        """
        options = {"kind": self.kind, "estimator": self.estimator, "ridge": RIDGE if self.ridge is None else self.ridge}
        context.details["patches"] = patch_cuts(context.model, statistics, context.removed, ends=True, **options)


@register("linearpatch-distilled")
@dataclass(frozen=True)
class DistilledPatch(TrainedRepair):
    """A patch that is then trained towards the dense model's logits (section 3.4).

    trainable: see `distill.Settings`. kind, estimator: of the patch it starts from. teacher: ``stored`` (offline, shared
    by recipes) or ``online``.
    """

    trainable: str | None = None
    kind: str | None = None
    estimator: str | None = None
    teacher: str | None = None
    store_dtype: str | None = None

    def apply(self, context: Context) -> None:
        windows, teacher = self.windows(context), self.teacher or "stored"
        if teacher not in TEACHERS:
            raise unknown("teacher", teacher, TEACHERS)
        estimator = self.estimator or "ratio-of-means"
        changes = self.said("trainable", "target", "top_k", "store_dtype")
        settings = distill.settings_of(context.fidelity, fitting=self.fitting(Fitting()), **changes)
        statistics = _statistics(context, self.kind or "hadamard", estimator)
        facts = {name: value for name, value in context.recipe.calibration.items() if name not in ("count", "length")}
        store = None
        if teacher == "stored" and settings.target == "logits":
            known = [context.recipe.weights, str(context.model.dtype), facts, list(windows.shape)]
            known += [settings.top_k, settings.store_dtype]
            name = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
            store = work_folder() / context.recipe.model / f"teacher-{name}"
        report = distill.distill_cuts(
            context.model,
            statistics,
            context.removed,
            windows,
            settings,
            ends=True,  # the selection has decided
            store=store,
            tokenizer=context.tokenizer,
            facts=facts,
            folder=context.folder / "distillation",
            progress=context.progress,
            kind=self.kind,
            estimator=estimator,
        )
        note_training(context, report | {"teacher": "online" if store is None else "stored"})


@register("observed-window")
@dataclass(frozen=True)
class ObservedWindow(Pruning):
    """The window that [L] would remove, for the figures; the model stays whole."""

    count: int
    cosine: str = "token"

    def apply(self, context: Context) -> None:
        statistics = context.statistics(self.count, (self.cosine,))
        window = selection.best_window(statistics, self.count, self.cosine, exclude_ends=False)
        context.details |= {"removed": [], "window": list(window)}

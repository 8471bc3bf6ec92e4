"""Prune&Comp in recipes: five metrics, one-shot or iterative, with or without compensation."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from common import calibration
from common.calibration import corpora
from common.pruning import selection
from common.pruning.calibration_text import crops, sampler
from common.pruning.pipeline import Context
from common.pruning.recipe import Calibration, Pruning, Repair, Selection, register
from papers.prunecomp.method import prune_and_compensate, remove_and_compensate, repeat
from papers.prunecomp.search import choose
from papers.prunecomp.stream import Stream

COSTLY = ("ppl", "taylor+")  # their scores take much more than a forward pass


# Random crops from the first nine tenths of the text, with the official code's seed.
sampler("prunecomp-train")(partial(crops, seed=0))


@sampler("documents")
def documents(context: Context, entry: Calibration) -> Tensor:
    """Draw crops of single documents with the random generator that has already drawn the recipe's other crops.

    The official code seeds its generator before those other crops alone.
    """
    before = context.calibration
    generator = random.Random(before.seed)
    crops(context, replace(before, seed=None), generator=generator)
    texts = corpora.texts(entry.corpus)
    return calibration.sample_documents(context.tokenizer, texts, generator=generator, **entry.drawing())


def stream(context: Context, entry: Calibration | None = None) -> Stream:
    """Return the context's model with its residual stream on the tokens of a calibration entry (default: the recipe's)."""
    sequences = context.sequences() if entry is None else context.tokens(entry)
    return Stream(context.decoder, sequences, **context.pass_options)


def ranking(context: Context, metric: str, entry: Calibration | None) -> list[int]:
    """Return all layers that a metric may remove, by their score in the original model: the first step of all searches."""

    def search() -> list[int]:
        return choose(stream(context, entry), None, metric, progress=context.progress)

    facts = {"metric": metric, "calibration": entry.to_json() if entry else None, "after": context.recipe.calibration}
    return context.searched("ranking", facts, search)


@register("prunecomp")
@dataclass(frozen=True)
class PruneAndComp(Pruning):
    """Prune by Prune&Comp's Algorithm 1 or its parts; the options are those of `prune_and_compensate`.

    calibration: calibration text of the metric alone. A search for fewer layers reuses the beginning of a longer one.
    """

    metric: str
    count: int
    iterative: bool = True
    compensate: bool = True
    calibration: Calibration | None = None

    def apply(self, context: Context) -> None:
        """Select and remove layers, and compensate for them."""
        report = self.run_recipe(context)
        context.details |= {name: value for name, value in report.items() if name != "layer_executions"}

    def run_recipe(self, context: Context, chosen: Callable[[list[int]], object] = lambda removed: None) -> dict:
        """Remove and compensate, in place, reusing results of other or interrupted searches.

        ``chosen``: see `prune_and_compensate`, whose report is returned (without layer executions if nothing had to be
        searched).
        """
        recorded = context.recorded
        if "removed" in recorded and self.metric != "cl":  # near ties fall otherwise on other machines
            # what the official code fuses in place cannot be repeated
            if "factors" not in recorded or context.recipe.fidelity == "code":
                return self.search(context, chosen=chosen, layers=recorded["removed"])
            chosen(recorded["removed"])
            return repeat(context.model, recorded["removed"], recorded["factors"])
        # a block of fewer layers is no part of a longer one
        if self.metric == "cl" or context.recipe.fidelity == "code":
            return self.search(context, chosen=chosen)
        layers = context.decoder.num_layers
        own = self.calibration and self.calibration.to_json()
        facts = {"calibration": context.recipe.calibration, "own": own, "choice": self.options("count", "calibration")}
        report = context.searched(
            "prunecomp",
            facts,
            lambda *kept: self.search(context, chosen=chosen, **(self._onward(*kept) if kept else {})),
            count=self.count,
            steps=lambda report: len(report["removed"]),
            onward=self.iterative,
        )
        if self.count and context.decoder.num_layers == layers:  # known from before: the model is still whole
            chosen(report["removed"][: self.count])
            report = repeat(context.model, report["removed"][: self.count], report["factors"][: self.count])
        return report

    def search(self, context: Context, **options) -> dict:
        """Remove and compensate, in place, without reuse of results; ``options``: more of `prune_and_compensate`."""
        options |= {"fidelity": context.recipe.fidelity} | context.pass_options
        metric_sequences = None if self.calibration is None else context.tokens(self.calibration)
        if self.metric in COSTLY and context.keep and context.recipe.fidelity == "paper" and "layers" not in options:
            options["known"] = ranking(context, self.metric, self.calibration or context.calibration)
        choice = self.options("count", "calibration")
        return prune_and_compensate(
            context.model, context.sequences(), self.count, metric_sequences=metric_sequences, **choice, **options
        )

    def _onward(self, begun: dict | None, keep: Callable[[dict], object]) -> dict:
        """Options of the loop: to go on from what another one found, and to keep what it finds."""
        removed_before = begun["removed"] if begun else []
        factors_before = begun["factors"] if begun and self.compensate else [None] * len(removed_before)

        def after(removed: list[int], factors: list[float | None]) -> None:
            keep({"removed": removed, "factors": factors if self.compensate else []})

        return {"begun": list(zip(removed_before, factors_before, strict=True)), "after": after}


@register("prunecomp-metric")
@dataclass(frozen=True)
class MetricAtOnce(Selection):
    """Select layers by one of Prune&Comp's metrics in one shot, for the repair of any paper."""

    searches = True
    metric: str
    count: int

    def choose(self, context: Context) -> Sequence[int]:
        """Return the layers to remove."""
        if self.metric == "cl":
            statistics = context.statistics(self.count, ("token",))
            return range(*selection.best_block(statistics, self.count, exclude_ends=False))
        return ranking(context, self.metric, context.calibration)[: self.count]


@register("magnitude-factor")
@dataclass(frozen=True)
class MagnitudeFactor(Repair):
    """Compensate the layers of any selection in one shot, with the original model's factors."""

    window_factor: str = "product"

    def apply(self, context: Context) -> None:
        """Remove the layers and repair the model."""
        longest = max(len(range(*run)) for run in selection.runs(context.removed))
        statistics = context.statistics(longest, ("token",), rotate=False)
        options = {"window_factor": self.window_factor}
        context.details |= remove_and_compensate(context.model, statistics, context.removed, **options)

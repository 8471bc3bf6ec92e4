"""Methods in recipes that take parts out of layers: no layer goes, so ``removed`` is empty."""

from __future__ import annotations

from dataclasses import dataclass

from common.baselines import llm_pruner, slicegpt
from common.context import Context
from common.recipe import Pruning, register


@register("llm-pruner")
@dataclass(frozen=True)
class LlmPruner(Pruning):
    """LLM-Pruner: a share of every layer's heads and MLP channels, but for the first and the last layers.

    The recipe's calibration is the one batch whose gradients tell what matters.
    """

    ratio: float
    first: int = llm_pruner.FIRST
    last: int = llm_pruner.LAST

    def apply(self, context: Context) -> None:
        options = {"first": self.first, "last": self.last, "progress": context.progress}
        report = llm_pruner.prune(context.model, context.windows(), self.ratio, **options)
        context.details |= {"removed": [], "sliced": report}


@register("slicegpt")
@dataclass(frozen=True)
class SliceGpt(Pruning):
    """SliceGPT: this share of the stream's directions, by their variance on the recipe's calibration.

    In a recipe of the official code's fidelity the embedding's mean is subtracted first.
    """

    share: float

    def apply(self, context: Context) -> None:
        left = slicegpt.width(context.decoder.hidden_size, self.share)
        options = {"batch_size": context.batch_size, "progress": context.progress}
        slicegpt.slice_stream(context.model, context.windows(), left, centre=context.fidelity == "code", **options)
        context.details |= {"removed": [], "sliced": {"width": left}}

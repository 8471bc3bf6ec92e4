"""Methods in recipes that take parts out of layers: no layer goes, so ``removed`` is empty."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from common.baselines import llm_pruner, slicegpt
from common.context import Context
from common.decoder import layer_list
from common.errors import UserError
from common.recipe import Pruning, register


@register("llm-pruner")
@dataclass(frozen=True)
class LlmPruner(Pruning):
    """LLM-Pruner: a share of every layer's heads and MLP channels, but for the first and the last layers.

    The recipe's calibration is the one batch whose gradients tell what matters. first, last: layers spared, None: 4 and 2.
    """

    ratio: float
    first: int | None = None
    last: int | None = None

    def apply(self, context: Context) -> None:
        spared = {name: value for name in ("first", "last") if (value := getattr(self, name)) is not None}
        options = spared | {"progress": context.progress}
        report = llm_pruner.prune(context.model, context.windows(), self.ratio, **options)
        context.details |= {"removed": [], "sliced": report}


@register("slicegpt")
@dataclass(frozen=True)
class SliceGpt(Pruning):
    """SliceGPT: directions of the stream go, by their variance on the recipe's calibration.

    How many, by one of these. share: of the directions. ratio: of the model's parameters, shortcuts counted. layers: as many
    parameters as so many layers have. In a recipe of the official code's fidelity the embedding's mean is subtracted first.
    """

    share: float | None = None
    ratio: float | None = None
    layers: int | None = None

    def width(self, model: nn.Module) -> int:
        """The channels that are left.

        Raises:
            UserError: not one of the three options, or more than they may take.
        """
        if sum(value is not None for value in (self.share, self.ratio, self.layers)) != 1:
            raise UserError("SliceGPT takes one of share, ratio and layers; give exactly one")
        ratio = self.ratio
        if self.layers is not None:
            layer = sum(p.numel() for p in layer_list(model)[0].parameters())
            ratio = self.layers * layer / sum(p.numel() for p in model.parameters())
        if not 0 <= (self.share if ratio is None else ratio) < 1:
            raise UserError(f"SliceGPT takes a share of 0 to 1, not {self.share if ratio is None else ratio}")
        if ratio is None:
            return slicegpt.width(model.config.hidden_size, self.share)
        return slicegpt.width_of_ratio(model, ratio)

    def apply(self, context: Context) -> None:
        left = self.width(context.model)
        options = {"batch_size": context.batch_size, "progress": context.progress}
        slicegpt.slice_stream(context.model, context.windows(), left, centre=context.fidelity == "code", **options)
        context.details |= {"removed": [], "sliced": {"width": left}}

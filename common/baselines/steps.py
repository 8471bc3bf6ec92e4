"""Methods in recipes that take parts out of layers: no whole layer goes, so ``removed`` is empty."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from common.architectures import layer_list
from common.baselines import half_layers, llm_pruner, slicegpt
from common.context import Context
from common.errors import UserError
from common.halves import drop_halves
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


class _Halves(Pruning):
    """Attentions or MLPs go; details: `halves`, (layer, which) in order of removal."""

    def choose(self, context: Context) -> list[half_layers.Half]:
        """The halves that go."""
        raise NotImplementedError

    def apply(self, context: Context) -> None:
        halves = self.choose(context)
        drop_halves(context.model, halves)
        context.details |= {"removed": [], "halves": [list(half) for half in halves]}


@register("llm-drop")
@dataclass(frozen=True)
class LlmDrop(_Halves):
    """LLM-Drop: at once, the halves that change the stream least. kind: 'attention', 'mlp' or 'both' in one ranking."""

    count: int
    kind: str | None = None

    def choose(self, context: Context) -> list[half_layers.Half]:
        options = {"batch_size": context.batch_size, "progress": context.progress}
        found = half_layers.similarities(context.decoder, context.windows(), **options)
        return half_layers.most_similar(found, self.count, self.kind or "both")


@register("blockpruner")
@dataclass(frozen=True)
class BlockPruner(_Halves):
    """BlockPruner: one after the other, the half without which perplexity on the recipe's calibration is lowest."""

    count: int

    def choose(self, context: Context) -> list[half_layers.Half]:
        options = {"batch_size": context.batch_size, "progress": context.progress}
        return half_layers.block_pruner(context.decoder, context.windows(), self.count, **options)


@register("nbl")
@dataclass(frozen=True)
class Nbl(Pruning):
    """NBL: the attentions that are nearest to linear become linear maps, fitted on the recipe's calibration."""

    count: int

    def apply(self, context: Context) -> None:
        options = {"batch_size": context.batch_size, "progress": context.progress}
        maps = half_layers.linear_maps(context.decoder, context.windows(), **options)
        layers = half_layers.nearest_linear(maps, self.count)
        half_layers.replace_by_maps(context.model, maps, layers)
        bounds = {str(layer): bound for layer, (bound, *_) in maps.items()}
        context.details |= {"removed": [], "linear": layers, "bounds": bounds}

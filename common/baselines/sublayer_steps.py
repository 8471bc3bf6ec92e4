"""Methods in recipes that remove parts of layers; if no entire layer is removed, ``removed`` is empty."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from common.baselines import entrodrop, finercut, llm_pruner, slicegpt, sublayer_removal
from common.models.architectures import layer_list
from common.models.layers.sublayers import ATTENTION, drop_sublayers, present
from common.models.surgery import remove_layers
from common.pruning.pipeline import Context
from common.pruning.recipe import Calibration, Pruning, register
from common.utils.errors import UserError


@register("llm-pruner")
@dataclass(frozen=True)
class LlmPruner(Pruning):
    """Remove a share of every layer's heads and MLP channels, except in the first and last layers (LLM-Pruner).

    The recipe's calibration is the one batch whose gradients give the importances. One of two options gives the amount.
    ratio: of each layer's heads and channels. layers: the parameters of so many layers, with channels making up for
    entire heads.
    """

    ratio: float | None = None
    layers: int | None = None

    def apply(self, context: Context) -> None:
        """Remove heads and channels."""
        if (self.ratio is None) == (self.layers is None):
            raise UserError("LLM-Pruner takes one of ratio and layers; give exactly one")
        ratio, of_channels = self.ratio, None
        if self.layers is not None:
            ratio, of_channels = llm_pruner.as_layers(context.model, self.layers)
        options = {"of_channels": of_channels, "progress": context.progress}
        report = llm_pruner.prune(context.model, context.sequences(), ratio, **options)
        context.details |= {"removed": [], "sliced": report}


@register("slicegpt")
@dataclass(frozen=True)
class SliceGpt(Pruning):
    """Remove directions of the residual stream, by their variance on the recipe's calibration (SliceGPT).

    One of two options gives the amount. ratio: of the model's parameters, shortcuts counted. layers: the parameters of so
    many layers. In a recipe of the official code's fidelity the embedding's mean is subtracted first.
    """

    ratio: float | None = None
    layers: int | None = None

    def width(self, model: nn.Module) -> int:
        """Return the number of channels that are left.

        Raises:
            UserError: not exactly one of the two options, or an impossible amount.
        """
        if (self.ratio is None) == (self.layers is None):
            raise UserError("SliceGPT takes one of ratio and layers; give exactly one")
        ratio = self.ratio
        if self.layers is not None:
            layer = sum(p.numel() for p in layer_list(model)[0].parameters())
            ratio = self.layers * layer / sum(p.numel() for p in model.parameters())
        if not 0 <= ratio < 1:
            raise UserError(
                f"SliceGPT takes a ratio of parameters from 0 to below 1, not {ratio:g}. Give such a ratio, or remove fewer "
                "layers"
            )
        return slicegpt.width_of_ratio(model, ratio)

    def apply(self, context: Context) -> None:
        """Slice the residual stream."""
        width = self.width(context.model)
        centre = context.recipe.fidelity == "code"
        slicegpt.slice_stream(context.model, context.sequences(), width, centre=centre, **context.pass_options)
        context.details |= {"removed": [], "sliced": {"width": width}}


class _Halves(Pruning):
    """Base of steps that remove attentions or MLPs (``choose``); details: `halves`, (layer, kind) in order of removal."""

    def apply(self, context: Context) -> None:
        sublayers = self.choose(context)
        drop_sublayers(context.model, sublayers)
        context.details |= {"removed": [], "halves": [list(sublayer) for sublayer in sublayers]}


@register("llm-drop")
@dataclass(frozen=True)
class LlmDrop(_Halves):
    """Remove at once the sub-layers that change the residual stream least (LLM-Drop). kind: 'attention', 'mlp' or 'both'."""

    count: int
    kind: str | None = None

    def choose(self, context: Context) -> list[sublayer_removal.Part]:
        """Return the sub-layers to remove."""
        similarities = sublayer_removal.similarities(context.decoder, context.sequences(), **context.pass_options)
        return sublayer_removal.most_similar(similarities, self.count, self.kind or "both")


@dataclass(frozen=True)
class _Greedy(_Halves):
    """Base of greedy searches for sub-layers (``search``); one for more continues where one for fewer ended.

    calibration: text of the search, if not the recipe's: each of its steps costs as much as a pass of every sub-layer.
    """

    count: int
    calibration: Calibration | None = None

    def choose(self, context: Context) -> list[sublayer_removal.Part]:
        sublayer_removal.check_sublayer_count(self.count, len(present(context.model)))
        reading = context.calibrated_on(self.calibration)

        def search(begun: list[list] | None, keep: Callable[[list], object]) -> list[sublayer_removal.Part]:
            return self.search(reading, begun=[tuple(sublayer) for sublayer in begun or ()], after=keep)

        facts = self.to_json() | {"count": None, "calibration": reading.recipe.calibration}
        removed = context.searched(self.method, facts, search, count=self.count, onward=True)
        return [tuple(sublayer) for sublayer in removed[: self.count]]


@register("blockpruner")
@dataclass(frozen=True)
class BlockPruner(_Greedy):
    """Remove, one at a time, the sub-layer without which perplexity on the calibration is lowest (BlockPruner)."""

    def search(self, context: Context, **onward) -> list[sublayer_removal.Part]:
        """Search the sub-layers to remove, one by one."""
        options = context.pass_options | onward
        return sublayer_removal.block_pruner(context.decoder, context.sequences(), self.count, **options)


@register("finercut")
@dataclass(frozen=True)
class FinerCut(_Greedy):
    """Remove, one at a time, the sub-layer whose removal changes the original model's output least (FinerCut)."""

    def search(self, context: Context, **onward) -> list[sublayer_removal.Part]:
        """Search the sub-layers to remove, one by one."""
        options = {"progress": context.progress} | onward
        return finercut.finer_cut(context.decoder, context.sequences(), self.count, **options)


@register("entrodrop")
@dataclass(frozen=True)
class EntroDrop(Pruning):
    """Remove at once the parts that add least entropy to the residual stream, after its lowest entropy (EntroDrop).

    kind: 'attention' (None), 'mlp', 'both' in one ranking, or 'layer': entire ones. kept: see
    `entrodrop.least_increase`. details: `entropies` of every sub-layer's input and of the last output, in nats; `halves`
    in order of score.
    """

    count: int
    kind: str | None = None
    kept: str | None = None

    def apply(self, context: Context) -> None:
        """Select and remove sub-layers or layers."""
        kind = self.kind or ATTENTION

        def search() -> list[float]:
            return entrodrop.entropies(context.decoder, context.sequences(), progress=context.progress)

        entropies = context.searched("entropies", context.recipe.calibration, search)
        chosen = entrodrop.least_increase(
            entropies, present(context.model), self.count, kind, self.kept or entrodrop.LOWEST
        )
        if kind == entrodrop.LAYER:
            remove_layers(context.model, chosen)
            context.details |= {"removed": chosen, "entropies": entropies}
        else:
            drop_sublayers(context.model, chosen)
            context.details |= {"removed": [], "halves": [list(part) for part in chosen], "entropies": entropies}


@register("nbl")
@dataclass(frozen=True)
class Nbl(Pruning):
    """Replace the attentions nearest to linear by linear maps, fitted on the recipe's calibration (NBL)."""

    count: int

    def apply(self, context: Context) -> None:
        """Select attentions and replace them by their linear maps."""
        maps = sublayer_removal.linear_maps(context.decoder, context.sequences(), **context.pass_options)
        layers = sublayer_removal.nearest_linear(maps, self.count)
        sublayer_removal.replace_by_maps(context.model, maps, layers)
        bounds = {str(layer): bound for layer, (bound, *_) in maps.items()}
        context.details |= {"removed": [], "linear": layers, "bounds": bounds}

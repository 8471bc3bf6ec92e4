"""Selections of layers that several papers compare with: named layers, SLEB, block influence, blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.models.removal import check_count
from common.pruning import importance, selection
from common.pruning.calibration_text import lines
from common.pruning.pipeline import Context
from common.pruning.recipe import Calibration, Selection, register


@register("given")
@dataclass(frozen=True)
class Given(Selection):
    """Select the layers named in the recipe, for instance those a paper prints."""

    layers: tuple[int, ...]

    def choose(self, context: Context) -> Sequence[int]:
        """Return the layers to remove."""
        return list(self.layers)


@register("sleb")
@dataclass(frozen=True)
class Sleb(Selection):
    """Remove, one at a time, the layer without which perplexity on shuffled lines is lowest (SLEB)."""

    searches = True
    count: int
    calibration: Calibration

    def choose(self, context: Context) -> Sequence[int]:
        """Return the layers to remove."""
        decoder = context.decoder
        check_count(self.count, decoder.num_layers)

        def search(begun: list[int] | None, keep: Callable[[list[int]], object]) -> list[int]:
            options = context.pass_options | {"begun": begun or (), "after": keep}
            return selection.sleb(decoder, lines(context, self.calibration), self.count, **options)

        # The search is greedy: the first layers of a longer removal are those of a shorter one.
        facts = self.calibration.to_json()
        return context.searched("sleb", facts, search, count=self.count, onward=True)[: self.count]


@register("bi")
@dataclass(frozen=True)
class BlockInfluence(Selection):
    """Select the layers of lowest block influence at once (ShortGPT)."""

    count: int
    cosine: str = "token"

    def choose(self, context: Context) -> Sequence[int]:
        """Return the layers to remove."""
        check_count(self.count, context.decoder.num_layers)
        statistics = context.statistics(self.count, (self.cosine,))
        return selection.one_shot(importance.block_influence(statistics, self.cosine), self.count)


@register("window")
@dataclass(frozen=True)
class ContiguousBlock(Selection):
    """Select the block of layers whose output is most similar to its input (LinearPatch Eq. 2; by `last-token-angle`: UIDL).

    calibration: text for the selection, if it is not the recipe's.
    """

    count: int
    cosine: str = "token"
    exclude_ends: bool = False
    calibration: Calibration | None = None

    def choose(self, context: Context) -> Sequence[int]:
        """Return the layers to remove."""
        check_count(self.count, context.decoder.num_layers)
        statistics = context.calibrated_on(self.calibration).statistics(self.count, (self.cosine,))
        block = selection.best_block(statistics, self.count, self.cosine, exclude_ends=self.exclude_ends)
        return range(*block)


@register("window-loss")
@dataclass(frozen=True)
class LeastLossBlock(Selection):
    """Select the block without which calibration text is likeliest, of all that spare the first and the last layer.

    samples: number of first calibration sequences to use.
    """

    count: int
    samples: int

    def choose(self, context: Context) -> Sequence[int]:
        """Return the layers to remove."""
        decoder = context.decoder
        starts = selection.block_starts(decoder.num_layers, self.count, exclude_ends=True)

        def search() -> list[list]:
            ids = context.sequences()[: self.samples]
            losses = importance.losses_without_blocks(decoder, ids, self.count, starts, **context.pass_options)
            return [[start, values.mean().item()] for start, values in losses.items()]

        facts = {"calibration": context.recipe.calibration, "count": self.count, "samples": self.samples}
        losses = dict(context.searched("window-losses", facts, search))
        start = selection.lowest(losses)
        context.details["loss_without"] = round(losses[start], 6)
        return range(start, start + self.count)

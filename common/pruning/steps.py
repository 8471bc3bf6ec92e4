"""Steps that several papers compare with: ways to choose layers, and LLM-Streamline's networks in their place.

The repairs without training that are compared with, and LoRP's choice, are in `common.baselines`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from common.baselines import ghosted, lorp, replaceme, streamline  # noqa: F401 - those with steps register them
from common.baselines import sublayer_steps as _parts  # noqa: F401 - registers those that take parts out of layers
from common.calibration.statistics import COSINES
from common.pruning import importance, selection
from common.pruning.calibration_text import crops, lines
from common.pruning.pipeline import Context
from common.pruning.recipe import Calibration, Repair, Selection, register
from common.training.fitting import Fitting
from common.utils.errors import UserError
from common.utils.option_fields import option

POINTS = 250  # of a loss curve in a record
# Windows of LinearPatch's official scripts, which draw them with the training's generator, behind its crops; here a generator
# of their own with its seed. How many LLM-Streamline's code takes is its data's.
HELD_OUT, SEED = 16, 2


@register("given")
@dataclass(frozen=True)
class Given(Selection):
    """Layers named in the recipe, for instance those a paper prints."""

    layers: tuple[int, ...]

    def choose(self, context: Context) -> Sequence[int]:
        return list(self.layers)


@register("sleb")
@dataclass(frozen=True)
class Sleb(Selection):
    """SLEB: one after the other, the layer without which perplexity on its shuffled lines is lowest."""

    searches = True
    count: int
    calibration: Calibration

    def choose(self, context: Context) -> Sequence[int]:
        decoder = context.decoder
        selection.check_count(self.count, decoder.num_layers)

        def search(begun: list[int] | None, keep: Callable[[list[int]], object]) -> list[int]:
            options = {
                "batch_size": context.batch_size,
                "progress": context.progress,
                "begun": begun or (),
                "after": keep,
            }
            return selection.sleb(decoder, lines(context, self.calibration), self.count, **options)

        # The search is greedy: the first layers of a longer removal are those of a shorter one.
        facts = self.calibration.to_json()
        found = context.searched("sleb", facts, search, lambda layers: len(layers) >= self.count, onward=True)
        return found[: self.count]


@register("bi")
@dataclass(frozen=True)
class BlockInfluence(Selection):
    """ShortGPT: the layers of lowest block influence, at once."""

    count: int
    cosine: str = "token"

    def choose(self, context: Context) -> Sequence[int]:
        selection.check_count(self.count, context.decoder.num_layers)
        statistics = context.statistics(self.count, (self.cosine,))
        return selection.one_shot(importance.block_influence(statistics, self.cosine), self.count)


@register("window")
@dataclass(frozen=True)
class Window(Selection):
    """The run of layers whose output is most like its input (LinearPatch Eq. 2; by `last-token-angle`: UIDL).

    calibration: what it reads, where that is not the recipe's.
    """

    count: int
    cosine: str = option("token", "that selects", choices=COSINES)
    exclude_ends: bool = False
    calibration: Calibration | None = None

    def choose(self, context: Context) -> Sequence[int]:
        selection.check_count(self.count, context.decoder.num_layers)
        statistics = context.calibrated_on(self.calibration).statistics(self.count, (self.cosine,))
        window = selection.best_window(statistics, self.count, self.cosine, exclude_ends=self.exclude_ends)
        return range(*window)


@register("window-loss")
@dataclass(frozen=True)
class WindowLoss(Selection):
    """The run of layers without which calibration text is likeliest; every one is tried that spares the first and the last.

    samples: so many of the first calibration windows.
    """

    count: int
    samples: int

    def choose(self, context: Context) -> Sequence[int]:
        decoder = context.decoder
        starts = selection.window_starts(decoder.num_layers, self.count, exclude_ends=True)

        def search() -> list[list]:
            ids = context.windows()[: self.samples]
            where = {"batch_size": context.batch_size, "progress": context.progress}
            losses = importance.losses_without_windows(decoder, ids, self.count, starts, **where)
            return [[start, each.mean().item()] for start, each in losses.items()]

        facts = {"calibration": context.recipe.calibration, "count": self.count, "samples": self.samples}
        losses = dict(context.searched("window-losses", facts, search, bool))
        start = selection.lowest(losses)
        context.details["loss_without"] = round(losses[start], 6)
        return range(start, start + self.count)


@dataclass(frozen=True)
class TrainedRepair(Repair):
    """A repair that learns from the layers that go: it trains on the dense model and then does the surgery.

    samples: training windows, the first so many crops of the recipe's calibration entry (the paper: 5,000; in its code the
    first 128 also calibrate); a recipe's limit cuts them too, so that a quick look is quick. length: tokens of each, where
    not the calibration's. target: ``logits`` (KL) or ``output`` (mean squared error). top_k: logits per token that the target
    ``logits`` compares. The others are fields of `common.training.fitting.Fitting`; None leaves its default.
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

    def said(self, *names: str) -> dict[str, Any]:
        """Those of these options that are given."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def fitting(self, default: Fitting, *, without: Sequence[str] = ()) -> Fitting:
        """How it trains."""
        return replace(default, **self.said(*(f.name for f in fields(Fitting) if f.name not in without)))

    def tokens(self, context: Context) -> int:
        return 0 if self.samples is None else self.windows(context).numel()

    def windows(self, context: Context) -> Tensor:
        """The training windows [samples, tokens].

        Raises:
            UserError: the recipe does not say which text, or how many windows of it.
        """
        if context.calibration is None or self.samples is None:
            raise UserError("a repair that trains needs the recipe's calibration entry and a number of samples")
        count = min(self.samples, context.recipe.limit or sys.maxsize)
        return context.tokens(replace(context.calibration, count=count, **self.said("length")))


def note_training(context: Context, report: dict) -> None:
    """Keep the report in the records' details, its loss curve thinned to means of equal stretches."""
    losses = report.pop("losses")
    stretch = max(1, -(-len(losses) // POINTS))
    means = [sum(part) / len(part) for part in (losses[i : i + stretch] for i in range(0, len(losses), stretch))]
    curve = {"losses": [round(value, 6) for value in means], "steps_per_point": stretch}
    report["seconds"] = round(report["seconds"], 2)
    for name in ("patches", "replaced"):
        if name in report:
            context.details[name] = report.pop(name)
    context.details["training"] = report | curve


@dataclass(frozen=True)
class _Streamline(TrainedRepair):
    """validation: held-out windows, the weights that do best on which are kept, looked at every validate_every steps.

    In a recipe of the official code's fidelity it trains as that does (`streamline.OFFICIAL`), with validation.
    """

    validation: int | None = None
    validate_every: int | None = None

    def train(self, context: Context, method, names: Sequence[str], without: Sequence[str] = ()) -> None:
        """Replace the chosen layers by what `method` trains; names: of `streamline.Settings`."""
        code = context.fidelity == "code"
        fitting = self.fitting(streamline.OFFICIAL if code else Fitting(), without=without)
        windows, held_out = self.windows(context), None
        count = HELD_OUT if code and self.validation is None else self.validation
        if count:
            held_out = crops(context, replace(context.calibration, count=count), seed=SEED, stretch="validation")
        said = self.said(*names)
        if code:
            said = {"validate_every": fitting.steps(len(windows))} | said  # at the end of its one epoch
        settings = streamline.Settings(fitting=fitting, **said)
        options = {"folder": context.folder / "streamline", "progress": context.progress}
        report = method(context.model, context.removed, windows, settings, validation=held_out, **options)
        note_training(context, report)


@register("streamline-ffn")
@dataclass(frozen=True)
class StreamlineNetwork(_Streamline):
    """A feed-forward network in the place of the layers; without samples, as it is before any training.

    seed: of its first weights. spare_massive: see `streamline.Settings`.
    """

    spare_massive: bool | None = None

    def apply(self, context: Context) -> None:
        if self.samples is None:
            context.details["replaced"] = streamline.insert_ffn(context.model, context.removed)
            return
        names = ("target", "top_k", "seed", "spare_massive", "validate_every")
        self.train(context, streamline.replace_with_ffn, names, without=("seed",))


@register("streamline-layer")
@dataclass(frozen=True)
class StreamlineLayer(_Streamline):
    """One layer in the place of several: its selection takes one layer more than the model is to lose."""

    def apply(self, context: Context) -> None:
        self.train(context, streamline.replace_with_layer, ("target", "top_k", "validate_every"))

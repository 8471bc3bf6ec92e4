"""LLM-Streamline in recipes: a feed-forward network, or one layer, in place of several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.baselines import streamline
from common.pruning.calibration_text import crops
from common.pruning.pipeline import Context
from common.pruning.recipe import register
from common.pruning.trained_repair import TrainedRepair, note_training
from common.training.fitting import Fitting

# Sequences of LinearPatch's official scripts, which draw them with the training's generator, behind its crops; here a
# generator of their own with its seed. How many LLM-Streamline's code takes is its data's.
HELD_OUT, SEED = 16, 2


@dataclass(frozen=True)
class _Streamline(TrainedRepair):
    """In a recipe of the official code's fidelity it trains as that does (`streamline.OFFICIAL`).

    Then the weights are kept that do best on `HELD_OUT` other sequences.
    """

    def train(self, context: Context, method, names: Sequence[str], without: Sequence[str] = ()) -> None:
        """Replace the chosen layers by what `method` trains; names: of `streamline.StreamlineSettings`."""
        code = context.fidelity == "code"
        fitting = self.fitting(streamline.OFFICIAL if code else Fitting(), without=without)
        windows, held_out = self.windows(context), None
        settings = streamline.StreamlineSettings(fitting=fitting, **self.stated(*names))
        if code:
            held_out = crops(context, replace(context.calibration, count=HELD_OUT), seed=SEED, stretch="validation")
            settings = replace(settings, validate_every=fitting.steps(len(windows)))  # at the end of its one epoch
        options = {"folder": context.folder / "streamline", "progress": context.progress}
        report = method(context.model, context.removed, windows, settings, validation=held_out, **options)
        note_training(context, report)


@register("streamline-ffn")
@dataclass(frozen=True)
class StreamlineNetwork(_Streamline):
    """Replace the layers by a feed-forward network; without samples it stays untrained.

    seed: of its initial weights. spare_massive: see `streamline.StreamlineSettings`.
    """

    spare_massive: bool | None = None

    def apply(self, context: Context) -> None:
        """Replace the block by the network, and train it."""
        if self.samples is None:
            context.details["replaced"] = streamline.insert_ffn(context.model, context.removed)
            return
        names = ("target", "top_k", "seed", "spare_massive")
        self.train(context, streamline.replace_with_ffn, names, without=("seed",))


@register("streamline-layer")
@dataclass(frozen=True)
class StreamlineLayer(_Streamline):
    """Replace several layers by one: its selection takes one layer more than the model loses."""

    def apply(self, context: Context) -> None:
        """Replace the block by one layer, and train it."""
        self.train(context, streamline.replace_with_layer, ("target", "top_k"))

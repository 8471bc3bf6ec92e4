"""The refit in recipes."""

import copy
from dataclasses import dataclass, replace

from torch import Tensor

from common.hooks import refuse_patches
from common.models.surgery import remove_layers
from common.pruning.pipeline import Context
from common.pruning.recipe import Repair, register
from common.pruning.trained_repair import TrainedRepair, note_training
from common.utils.errors import UserError
from extensions.refit.distill import distill, fitting_for, trained_parameters
from extensions.refit.graft import Graft, Observed
from extensions.refit.method import FOLLOWING, RIDGE, check_architecture, refit


def grafted(context: Context, sequences: Tensor) -> Graft | None:
    """Return the graft that the removal needs, and note it in the result's details as ``graft``."""
    graft = Observed(context.decoder, sequences).graft(context.removed)
    context.details["graft"] = graft and graft.report()
    return graft


@register("graft")
@dataclass(frozen=True)
class Grafted(Repair):
    """Copy the neurons that write the massive activation (`extensions.refit.graft`), and remove the layers.

    then: repair of the pruning interface, fitted with the neurons in their new place; None for no repair. A refit has
    an option for the graft, and keeps to the original residual stream.
    """

    then: Repair | None = None

    def apply(self, context: Context) -> None:
        """Remove the layers and repair the model."""
        check_architecture(context.decoder.architecture)
        graft = grafted(context, context.sequences())
        if graft is not None:
            graft.into(context.decoder.layers[graft.host])
            context = replace(context, keep=False)  # what is kept is of the dense model
        if self.then is None:
            remove_layers(context.model, context.removed)
        else:
            self.then.apply(context)


@register("refit")
@dataclass(frozen=True)
class Refit(Repair):
    """Refit the output matrices around every interface; options: see `refit`.

    apart: draw held-out sequences that share no token with the others (without it, in short texts they share a quarter
    of their tokens and more). target, towards, before, form, strength: of the ablation alone.
    """

    following: int = FOLLOWING
    ridge: float = RIDGE
    matrices: str | None = None
    share: float | None = None
    held_out: int | None = None
    first: bool | None = None
    apart: bool | None = None
    graft: bool | None = None
    target: str | None = None
    towards: str | None = None
    before: bool | None = None
    form: str | None = None
    strength: float | None = None

    def apply(self, context: Context) -> None:
        """Remove the layers and repair the model."""
        options = self.options("apart", "graft") | context.pass_options
        sequences = context.sequences()
        if self.apart and context.calibration_ids is None:  # a tool has drawn its own so
            sequences = context.tokens(replace(context.calibration, apart=self.held_out))
        if self.graft:
            check_architecture(context.decoder.architecture)
            options["graft"] = grafted(context, sequences)
        context.details["refitted"] = refit(context.model, sequences, context.removed, **options)


@register("distilled")
@dataclass(frozen=True)
class Distilled(TrainedRepair):
    """Repair, then train the layers next to each interface towards the original's logits (`extensions.refit.distill`).

    steps: of the optimizer; a recipe's limit cuts them. first: initial repair, one that adds no patch (None: the layers
    are removed, nothing else). judges: number of last calibration sequences that judge the training; they share no token
    with the others, and neither the training nor ``first`` reads them. Of the inherited options those of the optimizer
    and its batches apply.

    Raises:
        UserError: no steps, a repair that adds a patch, or a training that diverged or brought no gain on held-out
            text.
    """

    steps: int = 100
    first: Repair | None = None
    following: int = FOLLOWING
    judges: int = 0

    def tokens(self, context: Context) -> int:
        """Return the number of calibration tokens that it reads."""
        return Repair.tokens(self, context)

    def apply(self, context: Context) -> None:
        """Remove the layers, repair the model, and train it."""
        if self.steps < 1:
            raise UserError(f"cannot distil for {self.steps} steps. Give 1 or more, or leave the distillation out")
        sequences, removed, layers = context.sequences(), context.removed, context.decoder.num_layers
        if self.judges and context.calibration_ids is None:
            sequences = context.tokens(replace(context.calibration, apart=self.judges))
        read, judges = sequences[: -self.judges or None], sequences[-self.judges :] if self.judges else None
        original = copy.deepcopy(context.model)
        if self.first is None:
            remove_layers(context.model, removed)
        else:
            self.first.apply(replace(context, calibration_ids=read))
        refuse_patches(context.model, "distillation of layers")
        trained = trained_parameters(context.model, layers, removed, self.following)
        report = distill(
            context.model,
            original,
            read,
            removed,
            min(self.steps, context.recipe.limit or self.steps),
            following=self.following,
            held_out=judges,
            fitting=self.fitting(fitting_for(trained.values())),
            start={"recipe": context.recipe.hash},
            folder=context.folder,
            progress=context.progress,
        )
        if not report["kept"]:
            raise UserError(
                f"{self.steps} steps of distillation brought no gain on held-out text, so there is no distilled model to "
                "measure. Train with a lower learning_rate, or leave the distillation out"
            )
        note_training(context, report)

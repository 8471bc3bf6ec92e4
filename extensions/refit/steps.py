"""The refit in recipes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from common.models.surgery import remove_layers
from common.pruning.pipeline import Context
from common.pruning.recipe import Repair, register
from common.utils.errors import UserError
from common.utils.option_fields import option
from extensions.refit.graft import Graft, find
from extensions.refit.method import FOLLOWING, MATRICES, RIDGE, check_architecture, refit, refit_one_by_one


def grafted(context: Context, windows: Tensor) -> Graft | None:
    """What has to be carried over, noted in the records' details as ``graft``."""
    found = find(context.decoder, windows, context.removed)
    context.details["graft"] = None if found is None else found.report()
    return found


@register("graft")
@dataclass(frozen=True)
class Grafted(Repair):
    """Carries the neurons over (`extensions.refit.graft`) and removes the layers.

    then: how the cut is repaired, by what the model with the neurons in their new place shows; None: it is left as it is. A
    refit has an option for it, and keeps to the stream of the dense model.
    """

    then: Repair | None = None

    def apply(self, context: Context) -> None:
        check_architecture(context.decoder.architecture)
        found = grafted(context, context.windows())
        if found is not None:
            found.into(context.decoder.layers[found.host])
            context = replace(context, keep=False)  # what is kept is of the dense model
        if self.then is None:
            remove_layers(context.model, context.removed)
        else:
            self.then.apply(context)


@register("refit")
@dataclass(frozen=True)
class Refit(Repair):
    """Refits the output matrices around every cut; options: see `refit`.

    one_by_one: the layers go in order of removal, with a refit after each (`refit_one_by_one`). apart: the held-out windows
    are drawn so that they share no token with the others (without it, of short texts a quarter of theirs and more).
    """

    following: int = option(FOLLOWING, "kept layers after each cut that are refitted too", least=0, most=1000)
    ridge: float = option(RIDGE, "damping, as a share of the inputs' mean eigenvalue", least=1e-12, most=1e6)
    matrices: str | None = option(None, "of the following layers that are refitted", choices=tuple(MATRICES))
    share: float | None = option(None, "of the change that o_proj before the cut is asked for", least=0, most=1)
    gate_up: bool | None = option(None, "refit the following layers' gate and up projections, too")
    intercept: bool | None = option(None, "refit biases, too, where the architecture has any")
    held_out: int | None = option(None, "choose each matrix's damping on the last N windows", least=0, most=100_000)
    weights: str | None = None
    first: bool | None = None
    one_by_one: bool | None = option(None, "refit after each removal, always towards the model as it came")
    apart: bool | None = None
    graft: bool | None = option(
        None, "carry over the neurons that write the massive activation, where their layer goes"
    )

    def apply(self, context: Context) -> None:
        options = {
            name: value
            for name, value in self.to_json().items()
            if name not in ("method", "one_by_one", "apart", "graft")
        }
        options |= {"batch_size": context.batch_size, "progress": context.progress}
        if self.graft and self.one_by_one:
            raise UserError("a graft is made for all layers at once; leave it or one_by_one out")
        method = refit_one_by_one if self.one_by_one else refit
        windows = context.windows()
        if self.apart and context.calibration_ids is None:  # a tool has drawn its own so
            windows = context.tokens(replace(context.calibration, apart=self.held_out))
        if self.graft:
            check_architecture(context.decoder.architecture)
            options["graft"] = grafted(context, windows)
        context.details["refitted"] = method(context.model, windows, context.removed, **options)

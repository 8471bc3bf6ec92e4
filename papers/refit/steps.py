"""The refit in recipes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.context import Context
from common.flags import option
from common.recipe import Repair, register
from papers.refit.method import FOLLOWING, MATRICES, RIDGE, refit, refit_one_by_one


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

    def apply(self, context: Context) -> None:
        options = {
            name: value for name, value in self.to_json().items() if name not in ("method", "one_by_one", "apart")
        }
        options |= {"batch_size": context.batch_size, "progress": context.progress}
        method = refit_one_by_one if self.one_by_one else refit
        windows = context.windows()
        if self.apart and context.at_hand is None:  # a tool has drawn its own so
            windows = context.tokens(replace(context.calibration, apart=self.held_out))
        context.details["refitted"] = method(context.model, windows, context.removed, **options)

"""The command line of Prune&Comp's tool."""

from dataclasses import dataclass
from typing import ClassVar

from common.cli.options import CALIBRATION, REMOVE, REPAIR, PaperOptions
from common.console.command_line import option

METRICS = ("bi", "cl", "ppl", "taylor+", "mag+")


@dataclass(kw_only=True)
class PruneCompOptions(PaperOptions):
    """Remove layers one after the other, and rescale the weights before each pruning interface. No training.

    One factor keeps the magnitude of the residual stream. An interrupted search continues with the same command.
    """

    TOOL: ClassVar[str] = "papers.prunecomp"
    TITLE: ClassVar[str] = "Prune&Comp"
    CHOOSES: ClassVar[tuple[str, ...]] = ("metric",)

    seed: int = option(0, "seed of all random choices", group=CALIBRATION, least=0, most=2**32 - 1)
    metric: str = option(
        "bi",
        "choose by the cosine of each layer (bi) or of one block (cl), the loss without a layer (ppl), weight x gradient "
        "(taylor+) or the size of the weights (mag+)",
        group=REMOVE,
        choices=METRICS,
    )
    one_shot: bool = option(False, "choose all layers at once, not one after the other", group=REMOVE)
    no_compensation: bool = option(False, "leave the weights as they are", group=REPAIR)


OPTIONS = PruneCompOptions

"""The command line of the refit tool."""

from dataclasses import dataclass
from typing import ClassVar

from common.cli.options import REMOVE, REPAIR, ToolOptions
from common.console.command_line import option

LEAST_RESIDUAL = "least-residual"


@dataclass(kw_only=True)
class RefitOptions(ToolOptions):
    """Remove layers, and refit the output matrices around the pruning interface by ridge regression.

    The targets are the original model's hidden states. The result is a plain checkpoint. Only --distill trains.
    """

    TOOL: ClassVar[str] = "extensions.refit"
    TITLE: ClassVar[str] = "Refit"

    choose: str | None = option(
        None,
        "choose the layers of the smallest residual (least-residual), the most similar block (cosine), or try both and let "
        "held-out text choose (best)",
        group=REMOVE,
        choices=(LEAST_RESIDUAL, "cosine", "best"),
        usual="best; cosine with --stream, --cosine, or above 2048 channels on a CPU",
    )
    cosine: str | None = option(
        None,
        "similarity that cosine compares",
        group=REMOVE,
        choices=("token", "channel", "flat-batch", "flat-sentence", "last-token-angle"),
        usual="token",
    )
    following: int = option(
        3, "kept layers after each pruning interface that are refitted too", group=REPAIR, least=0, most=1000
    )
    ridge: float | None = option(
        None,
        "ridge penalty, as a share of the inputs' mean eigenvalue",
        group=REPAIR,
        least=1e-12,
        most=1e6,
        usual="chosen on held-out sequences",
    )
    held_out: int | None = option(
        None,
        "choose each matrix's ridge on the last N sequences",
        group=REPAIR,
        least=0,
        most=100_000,
        usual="one of 8; 0 from 8192 features",
    )
    distill: int | None = option(
        None,
        "then train the layers around the interfaces for N steps towards the original's predictions",
        group=REPAIR,
        least=1,
        most=100_000,
    )
    no_graft: bool = option(False, "do not graft the neurons of the massive activation", group=REPAIR)


OPTIONS = RefitOptions

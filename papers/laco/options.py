"""The command line of LaCo's tool."""

from dataclasses import dataclass
from typing import ClassVar

from common.cli.options import CALIBRATION, MOST, REMOVE, REPAIR, PaperOptions, needs_whole_model
from common.console.command_line import option
from common.pruning.recipe import FIDELITIES


@dataclass(kw_only=True)
class LacoOptions(PaperOptions):
    """Merge later layers into an earlier one while the outputs stay similar. No training.

    A search finds the similarity threshold that leaves the wanted number of layers.
    """

    TOOL: ClassVar[str] = "papers.laco"
    TITLE: ClassVar[str] = "LaCo"
    INSTEAD: ClassVar[tuple[str, ...]] = ("threshold",)
    CHOOSES: ClassVar[tuple[str, ...]] = ("combine", "interval")
    STREAMS: ClassVar[bool] = False

    stream: float | None = needs_whole_model()
    samples: int = option(10, "calibration sentences", group=CALIBRATION, least=1, most=MOST, old=("sentences",))
    seed: int = option(0, "seed of all random choices", group=CALIBRATION, least=0, most=2**32 - 1)
    threshold: float | None = option(
        None, "merge layers while the outputs stay as similar as this", group=REMOVE, least=-1, most=1
    )
    fidelity: str = option("code", "follow the paper's text or its official code", group=REPAIR, choices=FIDELITIES)
    combine: int | None = option(None, "layers in one merge", group=REPAIR, usual="2 to 6, to fit --remove; else 4")
    interval: int = option(2, "least distance of two merges", group=REPAIR, least=1)
    merge: str | None = option(
        None,
        "keep the last layer's weights (code), Eq. 1 of the paper (paper; destroyed the models it was tried on), or the "
        "first layer's weights (drop)",
        group=REPAIR,
        choices=("paper", "code", "drop"),
        usual="as --fidelity",
    )


OPTIONS = LacoOptions

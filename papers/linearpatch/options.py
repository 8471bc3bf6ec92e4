"""The command line of LinearPatch's tool."""

from dataclasses import dataclass
from typing import ClassVar

from common.cli.options import REMOVE, REPAIR, PaperOptions
from common.console.command_line import option

VARIANTS = ("L", "S")


@dataclass(kw_only=True)
class LinearPatchOptions(PaperOptions):
    """Remove the layers whose output is most similar to their input, and patch the pruning interface.

    The patch is a Hadamard-diagonal-Hadamard matrix, which restores the channels' scale. --distill trains it.
    """

    TOOL: ClassVar[str] = "papers.linearpatch"
    TITLE: ClassVar[str] = "LinearPatch"
    CHOOSES: ClassVar[tuple[str, ...]] = ("variant", "cosine")

    variant: str = option(
        "L", "choose the best block (L) or the layers of lowest block influence (S)", group=REMOVE, choices=VARIANTS
    )
    cosine: str | None = option(
        None,
        "similarity that chooses the layers",
        group=REMOVE,
        choices=("token", "channel", "flat-batch", "flat-sentence", "last-token-angle"),
        usual="token; channel for --fidelity code",
    )
    patch: str = option(
        "hadamard",
        "insert the paper's A, its +d, one factor (extension), or any matrix by least squares (extension)",
        group=REPAIR,
        choices=("hadamard", "diagonal", "scalar", "matrix"),
    )
    estimator: str | None = option(
        None,
        "estimate the channels' scales",
        group=REPAIR,
        choices=("ratio-of-means", "pooled-l1", "elementwise", "least-squares"),
        usual="ratio-of-means; matrix: least-squares",
    )
    acts_on: str | None = option(
        None,
        "patch all tokens, or leave massive ones unchanged (extension)",
        group=REPAIR,
        choices=("all", "ordinary"),
        usual="all",
    )
    distill: int | None = option(
        None, "train the patch on N sequences of the text (the paper: 5,000)", group=REPAIR, least=1, most=1_000_000
    )


OPTIONS = LinearPatchOptions

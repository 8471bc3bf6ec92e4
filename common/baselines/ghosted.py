"""Ghosted Layers (Yun et al., arXiv 2605.15491): a least-squares matrix in place of removed layers.

For X before and Y after a run of removed layers (rows, one per token), section 4:

    M* = argmin |X M - (Y - X)|^2 = (X'X + eps I)^-1 X'(Y - X),   eps = 1e-6 absolute, in float64

and the residual stream becomes X (I + M*). A contiguous block gets one operator. Layers in several places get one
operator each, from the original model's states before and after that layer, so that adjacent ones compose. Written
from the formula. On tiny models it agrees with the official code
(github.com/daniel-eai/ghosted_layers_official_repository at 680c8a7) but for rounding.

The paper: 32 sequences of C4. Deviations: the code keeps states on the host, and here they are summed at once. Here a
single run gets one operator and several runs get one per layer; the code decides by the selection (layers selected one by
one get an operator each even if they are adjacent). The operator equals `linearpatch`'s kind ``matrix`` without token
weights and with another ridge, and was published first.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.calibration.block_boundaries import crossings
from common.calibration.least_squares import Regression
from common.hooks import register_patch
from common.models.decoder import Decoder
from common.models.removal import check_layers
from common.models.surgery import replace_runs
from common.pruning.pipeline import Context
from common.pruning.recipe import Repair, register
from common.pruning.selection import runs

KIND = "ghosted-layers"
EPS = 1e-6


@register(KIND)
@dataclass(frozen=True)
class GhostedLayers(Repair):
    """Insert a least-squares matrix of the residual stream per interface, or per removed layer; options: see `ghost`."""

    eps: float = EPS
    first: bool | None = None

    def apply(self, context: Context) -> None:
        """Remove the layers and repair the model."""
        options = self.options() | context.pass_options
        context.details["patches"] = ghost(context.model, context.sequences(), context.removed, **options)


class Ghost(nn.Module):
    """Add a linear map to states: ``x + x M`` in float32, [..., channels] -> same shape and dtype."""

    kind = KIND

    def __init__(self, matrix: Tensor):
        super().__init__()
        self.weight = nn.Parameter(matrix.detach().float(), requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Add the linear map of the hidden states [..., channels] to them."""
        wide = hidden.float()
        return (wide + wide @ self.weight).to(hidden.dtype)


register_patch(KIND, lambda tensors, options: Ghost(tensors["weight"]))


@torch.no_grad()
def ghost(
    model: nn.Module,
    ids: Tensor,
    removed: Collection[int],
    *,
    eps: float = EPS,
    first: bool = True,
    batch_size: int = 8,
    progress: bool = False,
) -> list[dict]:
    """Replace every maximal run of removed layers by a `Ghost` fitted on ``ids`` [samples, tokens], in place.

    A single run is one regression. Of several runs each layer is one, and those of a run are multiplied into one matrix.
    ``eps`` is the absolute ridge. ``first`` (False: extension) says whether the fit counts a sample's first token.

    Returns:
        An entry per run: {"run", "position" in the pruned model, "operators": number of multiplied matrices, "error":
        without a repair, and "left": of each regression, as shares of the squared residual stream after the layers}.

    Raises:
        UserError: layers that do not exist.
    """
    decoder, removed = Decoder(model), sorted(map(int, removed))
    check_layers(removed, decoder.num_layers)
    blocks = runs(removed)
    spans = {run: [run] if len(blocks) == 1 else [(layer, layer + 1) for layer in range(*run)] for run in blocks}
    regressions = {span: Regression() for parts in spans.values() for span in parts}
    for crossing in crossings(decoder, ids, list(regressions), first=first, batch_size=batch_size, progress=progress):
        x, y = crossing.before.double(), crossing.after.double()
        regressions[crossing.run].add(x, y - x, y, crossing.keep)
    solved = {span: regression.solved(eps, absolute=True) for span, regression in regressions.items()}
    ghosts = {run: Ghost(_composed([solved[span] for span in parts])) for run, parts in spans.items()}
    reports = []
    for run, position in zip(blocks, replace_runs(model, ghosts, KIND), strict=True):
        sums = {span: regressions[span] for span in spans[run]}
        errors = [part.error / part.target for part in sums.values()]
        lefts = [part.residual(solved[span]) / part.target for span, part in sums.items()]
        reports.append({"run": list(run), "position": position, "operators": len(sums), "error": errors, "left": lefts})
    return reports


def _composed(matrices: list[Tensor]) -> Tensor:
    """Return (I + M_1) (I + M_2) ... - I, [channels, channels]."""
    total = matrices[0]
    for matrix in matrices[1:]:
        total = total + matrix + total @ matrix
    return total

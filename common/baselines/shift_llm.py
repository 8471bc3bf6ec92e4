"""SHIFT-LLM (Bahri et al., arXiv 2608.25068): an affine residual adapter in place of every removed layer.

For X before and Y after a removed layer of the original model (rows, one per token) the adapter adds a correction to
the residual stream, fitted by least squares in closed form (abstract):

    W, b = argmin |X W + 1 b' - (Y - X)|^2,   X -> X + X W + b

Adapters of consecutive removed layers are merged exactly: (I + W_1)(I + W_2) - I, and b_1 (I + W_2) + b_2.

Only the abstract was available, and no code. Deviations, all where it is silent: 1e-6 is added to the diagonal of X'X,
as in Ghosted Layers (`common.baselines.ghosted`), of which this is the form per layer with an intercept. ``rank``: the
abstract says that adapters can be factorised, but not how. Here the merged matrix becomes W V V', V the leading
``rank`` eigenvectors of W'CW, with C the covariance of X: no other matrix of that rank is closer to the merged adapter
on the calibration tokens. b then keeps the mean of the residual stream.

Every token counts alike, as in Ghosted Layers. So if a removed layer creates a massive activation, that token alone
decides the layer's adapter. On SmolLM2 layer 11 is such a layer: there the adapter leaves the other tokens a greater
error than no adapter. A ridge of 0.001 of the mean eigenvalue does not change that (tried once, without records). A fit
without the first tokens does (``first``; `make league` has a row).
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
from common.utils.errors import UserValueError

KIND = "shift-llm"
EPS = 1e-6


@register(KIND)
@dataclass(frozen=True)
class ShiftLlm(Repair):
    """Insert an affine adapter per block of removed layers, merged from one per layer; options: see `shift`."""

    rank: int | None = None
    first: bool | None = None

    def apply(self, context: Context) -> None:
        """Remove the layers and repair the model."""
        options = self.options() | context.pass_options
        context.details["patches"] = shift(context.model, context.sequences(), context.removed, **options)


class Adapter(nn.Module):
    """Add an affine map to states: ``x + x W + b`` in float32, [..., channels] -> same shape and dtype.

    W is one matrix, or the product of two.
    """

    kind = KIND

    def __init__(self, factors: list[Tensor], bias: Tensor):
        super().__init__()
        frozen = {"requires_grad": False}
        self.factors = nn.ParameterList([nn.Parameter(factor.detach().float(), **frozen) for factor in factors])
        self.bias = nn.Parameter(bias.detach().float(), **frozen)

    def forward(self, hidden: Tensor) -> Tensor:
        """Add the affine map of the hidden states [..., channels] to them."""
        wide = change = hidden.float()
        for factor in self.factors:
            change = change @ factor
        return (wide + change + self.bias).to(hidden.dtype)


def _load(tensors: dict[str, Tensor], options: dict) -> Adapter:
    factors = [tensors[name] for name in sorted(name for name in tensors if name.startswith("factors."))]
    return Adapter(factors, tensors["bias"])


register_patch(KIND, _load)


@torch.no_grad()
def shift(
    model: nn.Module,
    ids: Tensor,
    removed: Collection[int],
    *,
    rank: int | None = None,
    first: bool = True,
    batch_size: int = 8,
    progress: bool = False,
) -> list[dict]:
    """Remove layers of ``model`` and put an `Adapter` in the place of every block of them, in place.

    ``ids`` are calibration tokens [samples, tokens]. ``rank`` is that of each block's adapter; None: as many as there
    are channels. ``first`` (False: extension) says whether the fits count a sample's first token.

    Returns:
        An entry per block: {"run", "position" in the pruned model, "adapters": how many were merged}.

    Raises:
        UserError: layers that there are not, or a rank outside 1..channels.
    """
    decoder, removed = Decoder(model), sorted(map(int, removed))
    check_layers(removed, decoder.num_layers)
    if rank is not None and not 1 <= rank <= decoder.hidden_size:
        raise UserValueError(f"The rank is {rank}. An adapter has a rank of 1 to {decoder.hidden_size}. Change rank")
    sums = {(layer, layer + 1): Regression(intercept=True) for layer in removed}
    for crossing in crossings(decoder, ids, list(sums), first=first, batch_size=batch_size, progress=progress):
        x, y = crossing.before.double(), crossing.after.double()
        sums[crossing.run].add(x, y - x, y, crossing.keep)
    adapters, reports = {}, []
    for start, stop in runs(removed):
        adapter_solutions = [sums[layer, layer + 1].solved(EPS, absolute=True) for layer in range(start, stop)]
        matrix, bias = _merged(adapter_solutions)
        factors = [matrix] if rank is None else _factorised(matrix, sums[start, start + 1].gram, rank)
        if rank is not None:
            gram = sums[start, start + 1].gram
            bias = bias + gram[-1, :-1] / gram[-1, -1] @ (matrix - factors[0] @ factors[1])
        adapters[start, stop] = Adapter(factors, bias)
        reports.append({"run": [start, stop], "adapters": len(adapter_solutions)})
    positions = replace_runs(model, adapters, KIND)
    return [report | {"position": position} for report, position in zip(reports, positions, strict=True)]


def _merged(solutions: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return W [channels, channels] and b [channels] of adapters [channels + 1, channels] in a row."""
    matrix, bias = solutions[0][:-1], solutions[0][-1]
    for solution in solutions[1:]:
        following = solution[:-1]
        matrix = matrix + following + matrix @ following
        bias = bias + bias @ following + solution[-1]
    return matrix, bias


def _factorised(matrix: Tensor, gram: Tensor, rank: int) -> list[Tensor]:
    """Return W V and V' [rank, channels]; gram: X'X [channels + 1, channels + 1] with a last column of ones in X."""
    mean = gram[-1, :-1] / gram[-1, -1]
    covariance = gram[:-1, :-1] - gram[-1, -1] * torch.outer(mean, mean)
    leading = torch.linalg.eigh(matrix.T @ covariance @ matrix).eigenvectors[:, -rank:]
    return [matrix @ leading, leading.T.contiguous()]

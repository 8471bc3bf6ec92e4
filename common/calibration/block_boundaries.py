"""Record the original model's residual stream around removed layers, batch by batch, for repairs in closed form.

It takes one pass, which ends at the last interface. Hidden states are held for one batch and between the ends of a
pruning interface.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.calibration.least_squares import counted_tokens
from common.console.progress import track
from common.models.decoder import Decoder
from common.utils.errors import UserValueError

Run = tuple[int, int]


@dataclass(frozen=True)
class Crossing:
    """One batch of hidden states at one run ``[start, stop)`` of layers.

    ``before`` is X[start] and ``after`` is X[stop] [batch, tokens, channels], on one device. ``watched`` is the
    contribution of the MLP of layer start - 1, if requested. ``keep`` is a mask [batch, tokens] of the tokens that
    count; None for all.
    """

    run: Run
    before: Tensor
    after: Tensor
    watched: Tensor | None
    keep: Tensor | None


@torch.no_grad()
def crossings(
    decoder: Decoder,
    ids: Tensor,
    runs: Sequence[Run],
    *,
    first: bool = True,
    watch: bool = False,
    batch_size: int = 8,
    progress: bool = False,
) -> Iterator[Crossing]:
    """Yield every batch of ``ids`` [samples, tokens] at every run of layers, as the model reaches the runs' ends.

    ``first`` says whether a sample's first token counts. ``watch`` also records the contribution of the MLP before each
    run.

    Raises:
        UserError: no tokens, or a run without an MLP before it to watch.
    """
    if ids.ndim != 2 or not ids.numel():
        raise UserValueError(f"calibration tokens must be [samples, tokens], not {list(ids.shape)}")
    starts, last = {start for start, _ in runs}, max(stop for _, stop in runs)
    if watch and 0 in starts:
        raise UserValueError(
            "before layer 0 no MLP writes into the residual stream; keep layer 0, or use another repair"
        )
    for batch in track(ids.split(batch_size), "calibration", unit="batch", shown=progress):
        keep, hidden, mlp, entering = counted_tokens(batch, first), decoder.embed_tokens(batch), None, {}
        for boundary in range(last + 1):
            if watch and boundary in starts:
                hidden, mlp = _watched(decoder, hidden, boundary - 1)
            elif boundary:
                hidden = decoder.run(hidden, boundary - 1, boundary)
            if boundary in starts:
                entering[boundary] = (hidden, mlp)
            for run in runs:
                if run[1] == boundary:
                    before, written = entering[run[0]]
                    yield Crossing(run, before, hidden.to(before.device), written, keep)


def _watched(decoder: Decoder, hidden: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Return X[layer + 1], and the contribution of the layer's MLP."""
    outputs: list[Tensor] = []
    mlp = decoder.layers[layer].get_submodule(decoder.spec.mlp.module)
    with mlp.register_forward_hook(lambda module, args, out: outputs.append(out * decoder.multiplier)):
        return decoder.run(hidden, layer, layer + 1), outputs[0]

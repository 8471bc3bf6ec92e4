"""What the dense model does across the layers that a selection removes, batch by batch: what repairs in closed form read.

One pass, which ends where the last cut does. Hidden states are held for one batch and between the ends of a cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.decoder import Decoder
from common.errors import UserValueError
from common.moments import counted
from common.progress import track

Run = tuple[int, int]


@dataclass(frozen=True)
class Crossing:
    """One batch at one run ``[start, stop)`` of layers.

    before, after: X[start] and X[stop], [batch, tokens, channels]. written: what the MLP of layer start - 1 adds to the
    stream, where it was asked for. keep: which tokens count, [batch, tokens]; None for all.
    """

    run: Run
    before: Tensor
    after: Tensor
    written: Tensor | None
    keep: Tensor | None


@torch.no_grad()
def crossings(
    decoder: Decoder,
    ids: Tensor,
    runs: Sequence[Run],
    *,
    padding: Tensor | None = None,
    first: bool = True,
    written: bool = False,
    batch_size: int = 8,
    progress: bool = False,
) -> Iterator[Crossing]:
    """Every batch of ``ids`` [samples, tokens] at every run, in the order in which the model comes to their ends.

    padding: the attention mask of ``ids``, where samples differ in length; padding is in no `Crossing.keep`. first: whether
    a sample's first token counts. written: also what the MLP before each run writes.

    Raises:
        UserError: no tokens, or a run before which there is no layer although ``written``.
    """
    if ids.ndim != 2 or not ids.numel():
        raise UserValueError(f"calibration tokens must be [samples, tokens], not {list(ids.shape)}")
    starts, last = {start for start, _ in runs}, max(stop for _, stop in runs)
    if written and 0 in starts:
        raise UserValueError("before layer 0 no MLP writes into the stream; keep layer 0, or use another repair")
    batches = ids.split(batch_size)
    paddings = [None] * len(batches) if padding is None else padding.split(batch_size)
    for number, batch in enumerate(track(batches, "calibration", unit="batch", shown=progress)):
        keep = counted(batch, paddings[number], first)
        hidden, held = decoder.embed_tokens(batch), {}
        for boundary in range(last + 1):
            if boundary:
                hidden, mlp = _layer(decoder, hidden, boundary - 1, paddings[number], written and boundary in starts)
            if boundary in starts:
                held[boundary] = (hidden, mlp if written else None)
            for run in runs:
                if run[1] == boundary:
                    before, own = held[run[0]]
                    yield Crossing(run, before, hidden, own, keep)


def _layer(
    decoder: Decoder, hidden: Tensor, layer: int, padding: Tensor | None, watched: bool
) -> tuple[Tensor, Tensor | None]:
    """X[layer + 1], and what the layer's MLP gave where it is watched."""
    seen: list[Tensor] = []
    handles = []
    if watched:
        handles.append(decoder.layers[layer].mlp.register_forward_hook(lambda module, args, out: seen.append(out)))
    try:
        hidden = decoder.run(hidden, layer, layer + 1, attention_mask=padding)
    finally:
        for handle in handles:
            handle.remove()
    return hidden, seen[0] if seen else None

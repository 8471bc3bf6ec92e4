"""EntroDrop (Yang et al. 2025, arXiv 2504.03794; ICLR 2026): remove at once what adds least entropy to the residual stream.

A sub-layer's or layer's score is H(out) - H(in), of the residual stream after and before it. Entropy falls over the
first layers and rises over the others; nothing before the lowest is removed. The paper removes attentions, or entire
layers.

H is the paper's estimate by buckets: of each channel the histogram of a sequence's values over `BINS` equal bins
between its minimum and its maximum, -sum p ln p, summed over channels as if they were independent, mean over sequences.
So one pass suffices, each sequence has its ranges, and only one histogram is held. Bins and ranges are those of the
official code's function for it (github.com/SalesforceAIResearch/EntroDrop at 97e5009).

Deviations: what that code calls is the paper's other estimate, by the distance to the 25th nearest neighbour, which is
not implemented and ranks sub-layers differently. It ranks attentions alone, and keeps the first two layers and the last
of any model; here the layers before the lowest entropy stay, as the text says. On SmolLM2-135M-Instruct, whose massive
activation makes entropy lowest at layer 12, that costs perplexity (2,624 with 14 attentions removed; 352 with the
official code's layers kept, 350 by neighbours, too; tried once on 1,536 tokens of WikiText-2, without records).
Extensions: MLPs, and both kinds in one ranking.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from common.baselines.sublayer_removal import Part, check_sublayer_count, states, sublayers_of
from common.console.progress import track
from common.models.decoder import Decoder
from common.models.layers.sublayers import ATTENTION, SUBLAYERS
from common.models.removal import check_count
from common.pruning import selection
from common.utils.errors import UserValueError, unknown

BINS = 20
LAYER = "layer"
KINDS = (*SUBLAYERS, "both", LAYER)


def binned_entropy(values: Tensor) -> float:
    """Compute the entropy of each channel of ``values`` [tokens, channels] in nats, summed over channels.

    The bins are of equal width between the channel's minimum and maximum.
    """
    values = values.double()
    low, high = values.aminmax(dim=0)
    spread = torch.where(high > low, high - low, 1.0)
    places = ((values - low) / spread * BINS).long().clamp(max=BINS - 1)  # the last bin has both its ends
    places += BINS * torch.arange(values.shape[1], device=values.device)
    shares = places.flatten().bincount(minlength=BINS * values.shape[1]).double() / len(values)
    return -torch.xlogy(shares, shares).sum().item()


@torch.no_grad()
def entropies(decoder: Decoder, ids: Tensor, *, progress: bool = False) -> list[float]:
    """Compute the mean entropy of every sub-layer's input, in order of execution, and of ``X[N]`` at the end.

    Each value is `binned_entropy` in nats, averaged over the sequences of ``ids`` [samples, tokens]. Removed sub-layers
    are left out.

    Raises:
        UserError: a model with patches.
    """
    order = sublayers_of(decoder)
    totals = [0.0] * (len(order) + 1)
    for sequence in track(ids.split(1), "EntroDrop", unit="sequence", shown=progress):
        for place, (_, hidden) in enumerate(states(decoder, sequence, order)):
            totals[place] += binned_entropy(hidden[0])
    return [total / len(ids) for total in totals]


def least_increase(
    entropy: Sequence[float], order: Sequence[Part], count: int, kind: str = ATTENTION
) -> list[Part] | list[int]:
    """Return the ``count`` sub-layers or layers of a `KINDS` with the smallest increase of entropy, smallest first.

    Layers before the one whose input has the lowest entropy stay. ``entropy`` belongs to each sub-layer's input, in
    the ``order`` of execution, and to the last output.

    Raises:
        UserError: an unknown kind, or fewer than ``count`` of it from that layer on.
    """
    if kind not in KINDS:
        raise unknown("kind of blocks", kind, KINDS)
    ends: dict[int, list[int]] = {}  # layer -> the places before and after it
    for place, (layer, _) in enumerate(order):
        ends.setdefault(layer, [place, place])[1] = place + 1
    inputs = {layer: entropy[before] for layer, (before, _) in ends.items()} | {max(ends) + 1: entropy[-1]}
    start = selection.lowest(inputs)
    if kind == LAYER:
        check_count(count, len(ends))
        added = {layer: entropy[after] - entropy[before] for layer, (before, after) in ends.items() if layer >= start}
    else:
        candidates = {part: place for place, part in enumerate(order) if kind in ("both", part[1])}
        check_sublayer_count(count, len(candidates))
        added = {part: entropy[place + 1] - entropy[place] for part, place in candidates.items() if part[0] >= start}
    if count > len(added):
        raise UserValueError(
            f"cannot remove {count}: from layer {start} on, where entropy rises, there are {len(added)} of kind {kind!r}; "
            "choose fewer"
        )
    return sorted(added, key=added.__getitem__)[:count]

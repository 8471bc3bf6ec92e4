"""FinerCut (Zhang et al. 2024, arXiv 2405.18218): remove, one at a time, the sub-layer that the model's output misses least.

All 2N attentions and MLPs are candidates. Each step removes the one without which the output is nearest to the
*original* model's on the same text; removed ones stay removed. The distance of logits at every position is one of

    jensen-shannon  JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2 of the softmaxes, m = (p + q) / 2, in nats, mean over tokens
    angular         arccos of their cosine, in radians, mean over tokens
    euclidean       the norm of a sequence's differences, all tokens together, mean over sequences

Jensen-Shannon is in the official code's configuration for LLaMA-3-8B, and the default here. In that code sub-layers of
the first layers may be protected at first (`front`); its README's example does so with 0.4.

Deviations: the official divergence has the arguments of KL exchanged, KL(m || p) and KL(m || q), and is averaged over
the vocabulary too; its angle takes a negative cosine for 0. If all remaining sub-layers are protected, they may be
removed here; the official search ends in an error. That the paper protects no layers by default is a guess.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from common.baselines.sublayer_removal import Half, check_count, greedy, halves_of
from common.forward.losses import ROWS
from common.models.decoder import Decoder
from common.utils.errors import UserValueError, unknown


def divergences(first: Tensor, second: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence of log-probabilities [rows, vocabulary], in nats [rows]."""
    middle = torch.logaddexp(first, second) - math.log(2)
    return sum((log.exp() * (log - middle)).sum(-1) for log in (first, second)) / 2


def angles(first: Tensor, second: Tensor) -> Tensor:
    """Compute the angles between logits [rows, vocabulary], in radians [rows]."""
    return torch.cosine_similarity(first, second, dim=-1).double().clamp(-1, 1).arccos()


def squares(first: Tensor, second: Tensor) -> Tensor:
    """Compute the squared distances of logits [rows, vocabulary], [rows]."""
    return (first - second).square().sum(-1)


# Name -> what logits are turned into, what is computed per token, and a sequence's distance from its tokens'.
DISTANCES = {
    "jensen-shannon": (lambda logits: logits.log_softmax(-1), divergences, torch.mean),
    "angular": (lambda logits: logits, angles, torch.mean),
    "euclidean": (lambda logits: logits, squares, lambda values: values.sum().sqrt()),
}


@torch.no_grad()
def finer_cut(
    decoder: Decoder,
    ids: Tensor,
    count: int,
    *,
    distance: str = "jensen-shannon",
    front: float | None = None,
    begun: Sequence[Half] = (),
    after: Callable[[list[Half]], object] = lambda removed: None,
    progress: bool = False,
) -> list[Half]:
    """Select ``count`` sub-layers greedily by the change of the model's output (FinerCut).

    Sequences are processed one by one. The original model's logits of one sequence exist at a time (float32), and a
    trial's logits of `losses.ROWS` positions. The original's final-norm outputs stay in host memory.

    Args:
        decoder: The model.
        ids: Calibration tokens [samples, tokens].
        count: Number of sub-layers.
        distance: 'jensen-shannon', 'angular' or 'euclidean'.
        front: Share of the layers at the front: layers 0 to floor(front N) stay until floor(2 front N) + 1 sub-layers
            have been removed, as in the official code. None: any may be removed.
        begun: Sub-layers that an earlier search with the same settings removed; the search continues from there.
        after: Called after each step with the sub-layers removed so far.
        progress: Show a progress bar.

    Returns:
        (layer, kind) in order of removal.

    Raises:
        UserError: an unknown distance, a count that leaves no sub-layer, or a front that is no share below 1.
    """
    if distance not in DISTANCES:
        raise unknown("distance", distance, DISTANCES)
    if front is not None and not 0 <= front < 1:
        raise UserValueError(f"the front is a share of the layers, 0 or more and below 1, not {front}")
    check_count(count, len(halves_of(decoder)))
    prepare, per_token, combine = DISTANCES[distance]
    dense = [decoder.norm(decoder.run(decoder.embed_tokens(window)))[0].cpu() for window in ids.split(1)]

    def parts(normed: Tensor) -> Iterator[Tensor]:
        return (prepare(decoder.head(rows).float()) for rows in normed.split(ROWS))

    def cost_of_batch(number: int, _window: Tensor) -> Callable[[Tensor], float]:
        original_parts = list(parts(dense[number].to(decoder.device)))

        def cost(hidden: Tensor) -> float:
            pairs = zip(parts(decoder.norm(hidden)[0]), original_parts)
            values = [per_token(trial, original).double() for trial, original in pairs]
            return combine(torch.cat(values)).item()

        return cost

    options = {"batch_size": 1, "begun": begun, "after": after, "progress": progress}
    if front is not None:
        layers = decoder.num_layers
        first, until = math.floor(front * layers), math.floor(2 * front * layers) + 1
        options["spared"] = lambda half, gone: half[0] <= first and gone < until
    return greedy(decoder, ids, count, cost_of_batch, "FinerCut", **options)

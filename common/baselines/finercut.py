"""FinerCut (Zhang et al. 2024, arXiv 2405.18218): remove, one at a time, the sub-layer that the model's output misses least.

All 2N attentions and MLPs are candidates. Each step removes the one without which the output is nearest to the
*original* model's on the same text; removed ones stay removed. The distance of the next-token distributions p and q is
the mean over tokens of their Jensen-Shannon divergence, as in the official code's configuration for LLaMA-3-8B
(github.com/YaNgZhAnG-V5/llm_dissect at e1b641a), which reads ten samples of at most 256 tokens of WikiText-2:

    JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2,   m = (p + q) / 2,   in nats

Deviations: the official divergence has the arguments of KL exchanged, KL(m || p) and KL(m || q), and is averaged over
the vocabulary too. The paper's other distances, of angles and Euclidean, are not implemented. No layer is protected,
which is a guess for the paper; the official code can protect sub-layers of the first layers at first.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from common.baselines.sublayer_removal import Part, greedy
from common.forward.losses import ROWS
from common.models.decoder import Decoder


def divergences(first: Tensor, second: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence of log-probabilities [rows, vocabulary], in nats [rows]."""
    middle = torch.logaddexp(first, second) - math.log(2)
    return sum((log.exp() * (log - middle)).sum(-1) for log in (first, second)) / 2


@torch.no_grad()
def finer_cut(
    decoder: Decoder,
    ids: Tensor,
    count: int,
    *,
    begun: Sequence[Part] = (),
    after: Callable[[list[Part]], object] = lambda removed: None,
    progress: bool = False,
) -> list[Part]:
    """Select ``count`` sub-layers greedily by the change of the model's output on ``ids`` [samples, tokens] (FinerCut).

    Sequences are processed one by one. The original model's logits of one sequence exist at a time (float32), and a
    trial's logits of `losses.ROWS` positions. The original's final-norm outputs stay in host memory. ``begun`` and
    ``after``: see `greedy`.
    """
    dense = [decoder.norm(decoder.run(decoder.embed_tokens(sequence)))[0].cpu() for sequence in ids.split(1)]

    def parts(normed: Tensor) -> Iterator[Tensor]:
        return (decoder.head(rows).float().log_softmax(-1) for rows in normed.split(ROWS))

    def cost_of_batch(number: int, _batch: Tensor) -> Callable[[Tensor], float]:
        original_parts = list(parts(dense[number].to(decoder.device)))

        def cost(hidden: Tensor) -> float:
            pairs = zip(parts(decoder.norm(hidden)[0]), original_parts)
            return torch.cat([divergences(trial, original).double() for trial, original in pairs]).mean().item()

        return cost

    options = {"batch_size": 1, "begun": begun, "after": after, "progress": progress}
    return greedy(decoder, ids, count, cost_of_batch, "FinerCut", **options)

"""Measure how far a pruned model's next-token probabilities are from the original's, whatever the true token is.

    KL(original || pruned) = sum over tokens v of p(v) (log p(v) - log q(v)),  in nats, averaged over positions

p is the original's distribution after a prefix of real text, q the pruned model's. Accuracy hides answers that change
from right to wrong and back; this does not (Dutta et al., 2024, arXiv 2407.09141). llama.cpp reports the same two
numbers.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from common.console.progress import track
from common.forward import prefix_cache
from common.forward.token_log_probs import HEAD_ROWS, ROWS
from common.models.decoder import Decoder


@torch.inference_mode()
def from_original(model, original, sequences: Tensor, *, progress: str | None = None) -> tuple[Tensor, Tensor]:
    """Compute the KL divergence of a pruned model from its original on each sequence of tokens [sequences, L].

    Log-probabilities are formed in float32. Every position but a sequence's last predicts.

    Returns:
        Mean divergence in nats per token, and share of positions with the same likeliest token, both float64 [sequences].

    Raises:
        UserError: an architecture that `common.models.architectures` does not know.
    """
    batches = sequences.cpu().split(1)
    before, after = Decoder(original), Decoder(model)
    # One model after the other: the cache of hidden states plans one evaluation at a time.
    states_before = [states.cpu() for states in _states(before, batches, progress and f"{progress}, original model")]
    means = []
    for states, pruned_states in zip(states_before, _states(after, batches, progress), strict=True):
        sums = torch.zeros(2, dtype=torch.float64)
        parts = zip(states.to(before.device).split(HEAD_ROWS), pruned_states.split(HEAD_ROWS), strict=True)
        for part, pruned_part in parts:
            sums += _sums(before.head(part), after.head(pruned_part).to(before.device))
        means.append(sums / len(states))
    return tuple(torch.stack(means).T)


def _states(decoder: Decoder, batches: Sequence[Tensor], progress: str | None) -> Iterator[Tensor]:
    """Yield the final norm's output of each sequence but at its last position: [L - 1, channels]."""
    body = prefix_cache.Body(decoder)
    body.ahead(batches, lambda batch: (batch, None, None))
    for batch in track(batches, progress or "", unit="sequence", shown=progress is not None):
        yield body(batch)[0, :-1]


def _sums(logits: Tensor, pruned_logits: Tensor) -> Tensor:
    """Return the summed divergences of two models' logits [positions, vocabulary], and the positions that agree."""
    step, total = ROWS.get(logits.device.type, HEAD_ROWS), torch.zeros(2, dtype=torch.float64)
    for part, pruned_part in zip(logits.split(step), pruned_logits.split(step), strict=True):
        log_p, log_q = part.float().log_softmax(-1), pruned_part.float().log_softmax(-1)
        total[0] += float((log_p.exp() * (log_p - log_q)).sum(-1).double().sum())
        total[1] += int((log_p.max(-1).indices == log_q.max(-1).indices).sum())
    return total

"""Next-token losses from hidden states, without the logits of a whole batch: with large vocabularies they outweigh the model.

Eight sequences of 2,048 tokens have logits of 8.4 GB in float32 over LLaMA-3's 128,256 tokens; 512 positions have 0.3 GB.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from common.forward.token_log_probs import HEAD_ROWS, nlls
from common.models.decoder import Decoder

# Positions whose losses are handed over at a time; where gradients are recorded, they pass the head together.
ROWS = 512


def next_token_loss(decoder: Decoder, hidden: Tensor, ids: Tensor) -> Tensor:
    """Compute the mean next-token loss of each sample in nats, float64 [batch].

    ``hidden`` is ``X[N]`` [batch, tokens, channels] of ``ids`` [batch, tokens]. The logits of at most HEAD_ROWS positions
    exist at a time, or all of them where gradients are recorded.
    """
    losses = torch.cat(list(token_losses(decoder, decoder.norm(hidden), ids)))
    return losses.view(len(ids), ids.shape[1] - 1).double().mean(1)


def token_losses(decoder: Decoder, normed: Tensor, ids: Tensor) -> Iterator[Tensor]:
    """Yield the losses of all predictions of a batch in nats, float32, sample after sample, ROWS at a time.

    ``normed`` is the final norm's output [batch, tokens, channels] of ``ids`` [batch, tokens]. If gradients are recorded,
    run the backward pass of each part before requesting the next, so that only one part's logits exist.
    """
    for states, targets in zip(normed[:, :-1].flatten(0, 1).split(ROWS), ids[:, 1:].flatten().split(ROWS)):
        yield _losses(decoder, states, targets)


def _losses(decoder: Decoder, states: Tensor, targets: Tensor) -> Tensor:
    """Compute one part's losses; in the generator its logits would be alive while the caller has the losses."""
    if torch.is_grad_enabled():
        logits = decoder.head(states).float()  # [rows, vocabulary]
        return F.cross_entropy(logits, targets.to(logits.device), reduction="none")
    pairs = zip(states.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True)
    return torch.cat([nlls(decoder.head(rows), tokens) for rows, tokens in pairs])

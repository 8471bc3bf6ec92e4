"""Log-likelihoods of single tokens: the head and the softmax over the vocabulary, only at the needed positions.

For SmolLM2-135M the head is a fifth of the model, and turning its logits into log-probabilities costs as much again
when done on many positions at once: 512 x 49,152 float32 numbers exceed every cache and are fresh pages each time. So
logits are computed `HEAD_ROWS` positions at a time and processed `ROWS` positions at a time.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from common.models.decoder import Decoder

# Positions in one product with the head: enough for its full speed; 25 MB of bfloat16 logits for 49,152 tokens.
HEAD_ROWS = 256
# Positions whose logits are turned into float32 at a time (default: all of them): on a CPU so few that they stay in its
# cache.
ROWS = {"cpu": 16}


def target_scores(decoder: Decoder, hidden: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the negative log-likelihood of each target, and whether it is the likeliest token.

    Args:
        decoder: The model.
        hidden: Outputs of the final norm [positions, channels].
        rows: Position that predicts each target [targets]; ascending, and every position occurs.
        targets: Token ids [targets].

    Returns:
        Losses in nats [targets] and bool [targets], on the CPU.
    """
    losses, greedy = [], []
    edges = torch.searchsorted(rows, torch.arange(0, len(hidden) + HEAD_ROWS, HEAD_ROWS)).tolist()
    for start, first, last in zip(range(0, len(hidden), HEAD_ROWS), edges, edges[1:], strict=False):
        logits = decoder.head(hidden[start : start + HEAD_ROWS])
        local, tokens = (rows[first:last] - start).to(logits.device), targets[first:last].to(logits.device)
        # the token asked for first at each position; others differ from it by the difference of two logits
        lead = tokens[torch.searchsorted(local, torch.arange(len(logits), device=logits.device))]
        target_logits = logits[local, tokens]
        losses.append(nlls(logits, lead)[local] + (logits[local, lead[local]].float() - target_logits.float()))
        greedy.append(_greedy(logits, local, tokens, target_logits))
    return torch.cat(losses).cpu(), torch.cat(greedy).cpu()  # once: a GPU is waited for


def nlls(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the negative log-likelihood in nats of one target per position, [positions], ROWS positions at a time.

    ``logits`` are [positions, vocabulary] and ``targets`` token ids [positions].
    """
    step = ROWS.get(logits.device.type, HEAD_ROWS)
    pairs = zip(logits.split(step), targets.to(logits.device).split(step), strict=True)
    return torch.cat([F.cross_entropy(part.float(), token, reduction="none") for part, token in pairs])


def _greedy(logits: Tensor, rows: Tensor, tokens: Tensor, target_logits: Tensor) -> Tensor:
    """Return whether `argmax` names the token: only the rows are asked whose largest logit is `target_logits`.

    And by `max`, which names the first of equals as `argmax` does, seven times faster in bfloat16 on a CPU. On a GPU all rows
    are asked: choosing among them would wait for it.
    """
    if logits.device.type != "cpu":
        return logits.max(-1).indices[rows] == tokens
    best = logits.amax(-1)[rows] == target_logits
    best[best.clone()] = logits[rows[best]].max(-1).indices == tokens[best]
    return best

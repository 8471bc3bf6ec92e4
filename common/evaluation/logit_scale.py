"""Find how much of a loss is due to the scale of the logits: the loss with one factor on them (temperature scaling).

A model may be too confident in its predictions, or not confident enough. One factor on all logits corrects that and
changes no order of tokens (Guo et al., 2017, section 4.2: a temperature, here its inverse). The loss at the best factor
has other causes.
"""

import torch
from torch import Tensor

from common.console.progress import track
from common.forward import prefix_cache
from common.forward.token_log_probs import HEAD_ROWS, ROWS
from common.models.decoder import Decoder
from common.utils.errors import UserValueError

# What the logits are multiplied by: 0.50, 0.55 .. 1.50.
FACTORS = tuple(step / 20 for step in range(10, 31))


@torch.inference_mode()
def sequence_nlls(model, sequences: Tensor, *, progress: str | None = None) -> Tensor:
    """Compute the mean loss of each sequence of tokens [sequences, L] with the logits multiplied by each of `FACTORS`.

    Returns:
        Losses in nats per token, float64 [sequences, factors].

    Raises:
        UserError: an architecture that `common.models.architectures` does not know.
    """
    decoder = Decoder(model)
    body = prefix_cache.Body(decoder)
    losses = []
    for sequence in track(sequences.cpu(), progress or "", unit="sequence", shown=progress is not None):
        hidden = body(sequence[None])[0, :-1]
        losses.append(_sums(decoder, hidden, sequence[1:]) / len(hidden))
    return torch.stack(losses)


def _sums(decoder: Decoder, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return the summed losses of targets [positions] from the final norm's output [positions, channels], by factor."""
    total = torch.zeros(len(FACTORS), dtype=torch.float64)
    for states, tokens in zip(hidden.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True):
        logits = decoder.head(states)
        step = ROWS.get(logits.device.type, HEAD_ROWS)
        for rows, row_targets in zip(logits.split(step), tokens.to(logits.device).split(step), strict=True):
            rows = rows.float()
            target_logits = rows.gather(1, row_targets[:, None])[:, 0]
            for place, factor in enumerate(FACTORS):
                total[place] += float((torch.logsumexp(factor * rows, 1) - factor * target_logits).double().sum())
    return total


def fitted(losses: Tensor) -> tuple[Tensor, float]:
    """Return the losses at the best factor [sequences], and the factor that is best on all sequences.

    Every other sequence is scaled by the factor that is best on the remaining ones, and vice versa, so that no sequence
    is judged by a factor fitted to it.

    Raises:
        UserError: one sequence, of which there is no other half.
    """
    if len(losses) < 2:
        raise UserValueError("the best factor is found on another half of the sequences, so two or more are needed")
    best = [int(losses[1 - half :: 2].mean(0).argmin()) for half in range(2)]
    held_out = torch.stack([row[best[place % 2]] for place, row in enumerate(losses)])
    return held_out, FACTORS[int(losses.mean(0).argmin())]

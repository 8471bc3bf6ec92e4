"""Read a saved result back, and compare what it computes with the model in memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models import checkpoint
from common.models.decoder import Decoder
from common.utils.errors import UserError

TOKENS = 64
CLOSE = 1e-2  # nats of a single token: the same numbers in another order of summation, in half precision too
_STATES = 10**8  # bytes of hidden states; one sequence needs far less


@torch.inference_mode()
def difference(model: nn.Module, path: Path) -> str:
    """Return how the checkpoint at ``path`` differs from ``model``; '' where each token of one sequence has the same loss.

    The checkpoint is read two layers at a time, so that no second model has to fit into memory. Where the architecture
    cannot be read so, it is loaded as a whole.
    """
    decoder = Decoder(model)
    longest = getattr(model.config, "max_position_embeddings", TOKENS)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, min(TOKENS, longest)), generator=generator)
    mine = _losses(decoder, ids)
    placement = {"device": decoder.device, "dtype": model.dtype}
    try:
        try:
            again, _ = checkpoint.load(path, **placement, stream=_STATES)
        except UserError:  # not read layer by layer: the error of the whole model is the one that counts
            again, _ = checkpoint.load(path, **placement)
        theirs = _losses(Decoder(again), ids)
    except UserError as error:
        return f"the saved checkpoint cannot be read back ({error})"
    worst = (theirs - mine).abs().max().item()
    if worst <= CLOSE or (mine.isnan().any() and theirs.isnan().any()):
        return ""
    return (
        f"the saved checkpoint is another model: one sequence has a loss of {theirs.mean():.4f} after reading and "
        f"{mine.mean():.4f} before, one token's differs by {worst:.2g}"
    )


def _losses(decoder: Decoder, ids: Tensor) -> Tensor:
    """Return each token's loss, in nats [tokens - 1]."""
    logits = decoder.logits(decoder.run(decoder.embed_tokens(ids)))[0, :-1].float()
    return F.cross_entropy(logits, ids[0, 1:].to(logits.device), reduction="none").cpu()

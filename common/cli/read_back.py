"""Read a saved result in a separate process, and compare its outputs with those of the model in memory.

``python -m common.cli.read_back DIR DEVICE DTYPE`` reads the checkpoint and prints each token's loss. The tokens come
on standard input. A new process shares nothing with the one that saved: no registered class, no patched module, no open
file.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models import checkpoint
from common.models.decoder import Decoder
from common.utils.errors import UserError, one_line
from common.utils.paths import ROOT

TOKENS = 64
CLOSE = 1e-2  # nats of a single token: the same numbers in another order of summation, in half precision too
_STATES = 10**8  # bytes of hidden states; one sequence needs far less


def difference(model: nn.Module, path: Path) -> str:
    """Return how the checkpoint at ``path`` differs from ``model``; '' if each token of one sequence has the same loss.

    Raises:
        MemoryError: the system ended the process that read it.
    """
    decoder = Decoder(model)
    longest = getattr(model.config, "max_position_embeddings", TOKENS)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, min(TOKENS, longest)), generator=generator)
    before = losses(decoder, ids)
    try:
        after = in_fresh_process(path, ids, decoder.device, model.dtype)
    except UserError as error:
        return f"the saved checkpoint cannot be read back ({error})"
    worst = (after - before).abs().max().item()
    if worst <= CLOSE or (before.isnan().any() and after.isnan().any()):
        return ""
    return (
        f"the saved checkpoint is another model: one sequence has a loss of {after.mean():.4f} after reading and "
        f"{before.mean():.4f} before, one token's differs by {worst:.2g}"
    )


def in_fresh_process(path: Path, ids: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return each token's loss by the checkpoint, read in a separate process.

    Raises:
        UserError: the checkpoint cannot be read.
        MemoryError: the system ended the process.
    """
    command = [sys.executable, "-m", "common.cli.read_back", str(path.resolve()), str(device), str(dtype)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, input=json.dumps(ids.tolist()), env=environment, capture_output=True, text=True)
    if done.returncode < 0:
        raise MemoryError
    if done.returncode:
        raise UserError(one_line((done.stderr.strip().splitlines() or ["no reason was given"])[-1]))
    return torch.tensor(json.loads(done.stdout))


@torch.inference_mode()
def of_checkpoint(path: Path, ids: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return each token's loss by the checkpoint, read in this process.

    It is read two layers at a time, so that no second model has to fit into memory. If the architecture does not
    support that, it is loaded at once.
    """
    placement = {"device": device, "dtype": dtype}
    try:
        model, _ = checkpoint.load(path, **placement, stream=_STATES)
    except UserError:  # not read layer by layer: the error of the whole model is the one that counts
        model, _ = checkpoint.load(path, **placement)
    return losses(Decoder(model), ids)


@torch.inference_mode()
def losses(decoder: Decoder, ids: Tensor) -> Tensor:
    """Return each token's loss, in nats [tokens - 1]."""
    logits = decoder.logits(decoder.run(decoder.embed_tokens(ids)))[0, :-1].float()
    return F.cross_entropy(logits, ids[0, 1:].to(logits.device), reduction="none").cpu()


def main(arguments: Sequence[str]) -> int:
    """Print the losses of the tokens on standard input as JSON; return the exit status."""
    path, device, dtype = arguments
    torch.set_flush_denormal(True)
    try:
        token_losses = of_checkpoint(
            Path(path), torch.tensor(json.load(sys.stdin)), torch.device(device), getattr(torch, dtype.split(".")[-1])
        )
    except UserError as error:
        print(one_line(error), file=sys.stderr)
        return 2
    print(json.dumps(token_losses.tolist()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

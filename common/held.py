"""Batches of hidden states that are needed again: in host memory up to a bound, beyond it in temporary files."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path

import torch
from torch import Tensor

# Host memory that the states of one piece of work may take.
HELD_BYTES = 16 * 2**30


class Held:
    """Keeps tensors. What is kept counts until nothing refers to it any more.

    limit: bytes of memory, None: HELD_BYTES. folder: where the files lie; they have no name and vanish with their tensors.
    """

    def __init__(self, folder: Path, limit: int | None = None):
        self.folder, self.limit = folder, HELD_BYTES if limit is None else limit
        self.used = self.files = 0

    def keep(self, tensor: Tensor) -> Tensor:
        """The same values on the host: in memory while there is room, else mapped from a file."""
        tensor = tensor.detach().cpu()
        if self.used + tensor.nbytes > self.limit:
            self.files += 1
            return self._mapped(tensor)
        self.used += tensor.nbytes
        weakref.finalize(tensor, self._released, tensor.nbytes)
        return tensor

    def _released(self, size: int) -> None:
        self.used -= size

    def _mapped(self, tensor: Tensor) -> Tensor:
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=self.folder
        ) as file:  # its name goes at once, its content with the mapping
            # written, not copied into a mapping: a full disk is an error here, and would kill the process there
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy())
            file.flush()
            mapped = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        return mapped.view(tensor.shape)

"""Batches of hidden states that are needed again: in host memory up to a bound, beyond it in temporary files."""

import tempfile
import weakref
from pathlib import Path

import psutil
import torch
from torch import Tensor

from common.utils.errors import UserError

# Host memory that the states of one piece of work may take: so much, and this share of what is free when it begins.
HELD_BYTES, HELD_SHARE = 16 * 2**30, 0.5


class Held:
    """A store of tensors in memory, and in files beyond a limit; a tensor counts until nothing refers to it.

    limit: bytes of memory; None: the smaller of HELD_BYTES and HELD_SHARE of the free memory. folder: place of the
    files, which have no name and vanish with their tensors.
    """

    def __init__(self, folder: Path, limit: int | None = None):
        free = int(HELD_SHARE * psutil.virtual_memory().available)
        self.folder, self.limit = folder, min(HELD_BYTES, free) if limit is None else limit
        self.used = self.files = 0

    def keep(self, tensor: Tensor) -> Tensor:
        """Return the same values on the host: in memory while there is room, otherwise mapped from a file."""
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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # The file's name goes at once, its content with the mapping.
            with tempfile.NamedTemporaryFile(dir=self.folder) as file:
                # written, not copied into a mapping: a full disk is an error here, and would kill the process there
                file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy())
                file.flush()
                mapped = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        except OSError as error:
            raise UserError(
                f"cannot keep hidden states in {self.folder}: {error.strerror or error}; free space there, or name another "
                "folder in LAYERLAB_CACHE (reproductions without --stream: LAYERLAB_WORK)"
            ) from error
        return mapped.view(tensor.shape)

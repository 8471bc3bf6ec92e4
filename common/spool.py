"""Tensors that wait for their next use: in memory up to a limit, the rest in a nameless file that no kill leaves behind."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable
from threading import Lock

import torch
from torch import Tensor

from common import cache


class Spool:
    """A mapping from keys to tensors. limit: bytes held in memory; what comes on top is written to a file and read back.

    Place in the file is used again once a tensor of the same size is dropped. Threads may use it at once.
    """

    def __init__(self, limit: int):
        self.limit, self.held, self.written = limit, 0, 0
        self._memory: dict[Hashable, Tensor] = {}
        self._disk: dict[Hashable, tuple[int, torch.Size, torch.dtype, torch.device]] = {}
        self._free: dict[int, list[int]] = {}  # size -> offsets
        self._file = None
        self._lock = Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._memory or key in self._disk

    def __setitem__(self, key: Hashable, value: Tensor) -> None:
        with self._lock:
            self._drop(key)
            size = value.numel() * value.element_size()
            if self.held + size <= self.limit:
                self._memory[key] = value
                self.held += size
                return
            offsets = self._free.get(size)
            offset = offsets.pop() if offsets else self.written
            self.written = max(self.written, offset + size)
            self._disk[key] = (offset, value.shape, value.dtype, value.device)
            file = self._opened()
            file.seek(offset)
            file.write(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())

    def __getitem__(self, key: Hashable) -> Tensor:
        with self._lock:
            if key in self._memory:
                return self._memory[key]
            offset, shape, dtype, device = self._disk[key]
            with torch.inference_mode(False):
                value = torch.empty(shape, dtype=dtype)
            file = self._opened()
            file.seek(offset)
            data = value.view(-1).view(torch.uint8).numpy()
            if file.readinto(data) != len(data):
                raise OSError("the file of waiting tensors is shorter than what was written to it")
            return value.to(device)

    def __delitem__(self, key: Hashable) -> None:
        with self._lock:
            if key not in self:
                raise KeyError(key)
            self._drop(key)

    def pop(self, key: Hashable) -> Tensor:
        """The tensor, which is kept no longer."""
        value = self[key]
        del self[key]
        return value

    def _drop(self, key: Hashable) -> None:
        if (value := self._memory.pop(key, None)) is not None:
            self.held -= value.numel() * value.element_size()
        if key in self._disk:
            offset, shape, dtype, _ = self._disk.pop(key)
            self._free.setdefault(shape.numel() * dtype.itemsize, []).append(offset)

    def _opened(self):
        if self._file is None:
            folder = cache.folder()
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it lives as long as this
        return self._file

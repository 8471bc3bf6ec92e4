"""The outputs of frozen layers, kept from the first epoch on: what does not train gives the same in every epoch.

One row's entry is ``X[boundary]`` of its tokens without padding, [tokens, channels]. All entries lie end to end in one
tensor, in memory or mapped from a file. Entries are written when a row is first seen and read from then on.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import psutil
import torch
from torch import Tensor

from common.training.finetuning.memory import STORE

log = logging.getLogger(__name__)

# Share of the free memory or disk space a store may take.
SHARE = 0.5


def free_bytes(kind: str, folder: Path) -> int:
    """What is free for a store in 'memory' or on 'disk'."""
    return psutil.virtual_memory().available if kind == "memory" else shutil.disk_usage(folder).free


class FrozenPrefix:
    """Layer outputs by row.

    lengths: tokens of each row. wanted: whether a row is needed again, and so kept. kind: 'memory', 'disk', 'auto' (the
    first of the two that fits) or 'off'. dtype: of the entries; None: what they are computed in. reserved: bytes on disk that
    the training's checkpoints will take. When nothing fits every row is computed anew, and a warning says so.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        wanted: Sequence[bool],
        kind: str,
        folder: Path,
        dtype: torch.dtype | None = None,
        reserved: int = 0,
    ) -> None:
        self.lengths = list(lengths)
        sizes = [length if want else 0 for length, want in zip(lengths, wanted, strict=True)]
        self.starts = [0, *accumulate(sizes)]
        self.wanted = list(wanted)
        self.filled = [False] * len(self.lengths)
        self.kind = kind if any(wanted) else "off"
        self.reason = "" if any(wanted) else "no row is needed twice" if self.lengths else "no layer is frozen"
        self.folder, self.dtype, self.reserved = Path(folder), dtype, reserved
        self.bytes = 0
        self.computed: torch.dtype | None = None
        self._entries: Tensor | None = None

    def get(self, rows: Sequence[int], tokens: int) -> Tensor | None:
        """Entries of ``rows``, left-padded with zeros to [rows, tokens, channels]; None if one is missing."""
        if self._entries is None or not all(self.filled[row] for row in rows):
            return None
        found = self._entries.new_zeros(len(rows), tokens, self._entries.shape[1], dtype=self.computed)
        for place, row in enumerate(rows):
            start, length = self.starts[row], self.lengths[row]
            found[place, tokens - length :] = self._entries[start : start + length]
        return found

    def rounded(self, hidden: Tensor) -> Tensor:
        """What `get` will give back of ``hidden``: the same in the first epoch as in every other."""
        return hidden if self.dtype is None or self.kind == "off" else hidden.to(self.dtype).to(hidden.dtype)

    def put(self, rows: Sequence[int], hidden: Tensor) -> None:
        """Keep ``hidden`` [rows, tokens, channels] of left-padded rows, where it is wanted and there is room."""
        if self.kind == "off":
            return
        if self._entries is None:
            self._entries, self.computed = self._allocate(hidden), hidden.dtype
            if self._entries is None:
                return
        for place, row in enumerate(rows):
            if self.wanted[row] and not self.filled[row]:
                start, length = self.starts[row], self.lengths[row]
                self._entries[start : start + length] = hidden[place, hidden.shape[1] - length :].to("cpu")
                self.filled[row] = True

    def close(self) -> None:
        """Free the memory, remove the file."""
        self._entries = None
        self.filled = [False] * len(self.lengths)
        (self.folder / STORE).unlink(missing_ok=True)

    def describe(self) -> dict:
        """Where the entries are, their size, and why there are none."""
        return {"kind": self.kind, "bytes": self.bytes} | ({"reason": self.reason} if self.reason else {})

    def _allocate(self, hidden: Tensor) -> Tensor | None:
        shape = (self.starts[-1], hidden.shape[-1])
        dtype = self.dtype or hidden.dtype
        needed = shape[0] * shape[1] * dtype.itemsize
        tried = []
        for kind in ("memory", "disk") if self.kind == "auto" else (self.kind,):
            free = free_bytes(kind, self.folder) - (self.reserved if kind == "disk" else 0)
            if needed <= SHARE * free:
                self.kind, self.bytes = kind, needed
                if kind == "memory":
                    return torch.empty(shape, dtype=dtype)
                path = str(self.folder / STORE)
                return torch.from_file(path, shared=True, size=shape[0] * shape[1], dtype=dtype).view(shape)
            tried.append(f"{max(free, 0) / 2**20:,.0f} MiB free in {kind}")
        self.kind, self.reason = (
            "off",
            f"{needed / 2**20:,.0f} MiB do not fit ({', '.join(tried)}; at most half is used)",
        )
        log.warning("the frozen layers' outputs are not kept: %s; they are computed anew in every epoch", self.reason)
        return None

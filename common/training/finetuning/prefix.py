"""Rows with the outputs of the frozen layers in place of token ids: frozen layers give the same outputs in every epoch.

Trainer has no such cache: it would run the frozen layers in every epoch. If the last three of eleven layers train, an
epoch with it takes about .6 of the time (benchmarks/README.md); the more layers are frozen, the less.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import psutil
import torch
from torch import Tensor

from common.console.progress import track
from common.training.finetuning.learner import collate

log = logging.getLogger(__name__)

SHARE = 0.5  # of the free memory or disk space that a cache may take


def free_bytes(kind: str, folder: Path) -> int:
    """Return the bytes that are free in 'memory' or on 'disk'."""
    return psutil.virtual_memory().available if kind == "memory" else shutil.disk_usage(folder).free


class CachedRows(torch.utils.data.Dataset):
    """Rows of "hidden", the states ``X[boundary]`` [tokens, channels], and labels.

    All states lie end to end in one tensor, in memory or mapped from a file. If they do not fit, the rows stay as
    given, and a warning says so.

    ``run`` is a function from a batch to its ``X[boundary]`` [rows, tokens, channels]. ``kind`` is 'memory', 'disk' or
    'auto', the first of the two that has room; ``reserved`` are bytes on disk that the training's checkpoints will take.
    States are kept in ``dtype``; None: as computed.
    """

    def __init__(
        self,
        rows: Sequence[Mapping],
        run: Callable[[Mapping[str, Tensor]], Tensor],
        kind: str,
        file: Path,
        *,
        batch: int,
        dtype: torch.dtype | None,
        reserved: int,
        progress: bool,
    ) -> None:
        self.rows, self.file, self.dtype, self.reserved = rows, file, dtype, reserved
        self.starts = [0, *accumulate(len(row["input_ids"]) for row in rows)]
        self.states: Tensor | None = None
        self.store = {"kind": "off", "bytes": 0}
        for start in track(range(0, len(rows), batch), "frozen layers", unit="batch", shown=progress):
            numbers = range(start, min(start + batch, len(rows)))
            hidden = run(collate([rows[number] for number in numbers]))
            if self.states is None:
                self.states, self.computed = self._room(kind, hidden), hidden.dtype
                if self.states is None:
                    return
            for number, states in zip(numbers, hidden, strict=True):
                target = self.states[self.starts[number] : self.starts[number + 1]]
                target.copy_(states[-len(target) :])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Mapping:
        row = self.rows[index]
        if self.states is None:
            return row
        states = self.states[self.starts[index] : self.starts[index + 1]]
        return {"hidden": states.to(self.computed), "labels": row["labels"]}

    def _room(self, kind: str, hidden: Tensor) -> Tensor | None:
        dtype, shape = self.dtype or hidden.dtype, (self.starts[-1], hidden.shape[-1])
        needed, tried = shape[0] * shape[1] * dtype.itemsize, []
        for place in ("memory", "disk") if kind == "auto" else (kind,):
            free = free_bytes(place, self.file.parent) - (self.reserved if place == "disk" else 0)
            if needed <= SHARE * free:
                self.store = {"kind": place, "bytes": needed}
                if place == "memory":
                    return torch.empty(shape, dtype=dtype)
                return torch.from_file(str(self.file), shared=True, size=shape[0] * shape[1], dtype=dtype).view(shape)
            tried.append(f"{max(free, 0) / 2**20:,.0f} MiB free in {place}")
        reason = f"{needed / 2**20:,.0f} MiB do not fit ({', '.join(tried)}; at most half is used)"
        log.warning("the frozen layers' outputs are not kept: %s; they are computed anew in every epoch", reason)
        return None

"""Rows with the outputs of the frozen layers in place of token ids: frozen layers give the same outputs in every epoch.

Trainer has no such cache: it would run the frozen layers in every epoch. If the last three of eleven layers train, an
epoch with it takes about .6 of the time (benchmarks/README.md); the more layers are frozen, the less.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

import psutil
from torch import Tensor

from common.console.progress import track
from common.training.finetuning.learner import collate

log = logging.getLogger(__name__)

SHARE = 0.5  # of the free memory that the states of a set of rows may take


def with_states(
    rows: Sequence[Mapping], run: Callable[[Mapping[str, Tensor]], Tensor], *, batch: int, progress: bool
) -> tuple[Sequence[Mapping], int]:
    """Return rows of "hidden", the states ``X[boundary]`` [tokens, channels], and labels; and the bytes of the states.

    ``run`` is a function from a batch to its ``X[boundary]`` [rows, tokens, channels]. If the states do not fit into
    memory, the rows are returned as given, and a warning says so.
    """
    tokens, kept, size = sum(len(row["input_ids"]) for row in rows), [], 0
    for start in track(range(0, len(rows), batch), "frozen layers", unit="batch", shown=progress):
        part = [rows[number] for number in range(start, min(start + batch, len(rows)))]
        hidden = run(collate(part)).cpu()
        size = tokens * hidden.shape[-1] * hidden.itemsize
        if not kept and size > SHARE * (free := psutil.virtual_memory().available):
            reason = (
                f"{size / 2**20:,.0f} MiB do not fit ({free / 2**20:,.0f} MiB free in memory; at most half is used)"
            )
            log.warning("the frozen layers' outputs are not kept: %s; they are computed anew in every epoch", reason)
            return rows, 0
        kept += [
            {"hidden": states[-len(row["labels"]) :].clone(), "labels": row["labels"]}
            for row, states in zip(part, hidden, strict=True)
        ]
    return kept, size

"""Columns of flips: items that a row or the original model alone has right (Dutta et al., 2024, arXiv 2407.09141)."""

from collections.abc import Sequence

import numpy as np

from common.records.results import Store
from reproductions.claims import derived_columns
from reproductions.claims.bootstrap import Resampled
from reproductions.claims.derived_columns import FLIPS, Score, Scored
from reproductions.spec import statuses
from reproductions.spec.registry import Column, Row
from reproductions.spec.statuses import Status


def fill(rows: Scored, columns: Sequence[Column], store: Store) -> None:
    """Fill in the columns of flips, in percent: means over the tasks that an average has, where outcomes are stored."""
    following = [column for column in columns if column.derived == FLIPS]
    if not following:
        return
    lookup, columns_by_id = Resampled(store, rows, list(columns)), {column.id: column for column in columns}
    names_of = {
        (column.id, model): derived_columns.parts(column, columns, model, rows)[0]
        for column in following
        for model in {row.model for row, _, _ in rows}
    }
    for row, _, scores in rows:
        for column in following:
            names = names_of[column.id, row.model]
            lacking = [scores[name] for name in names if isinstance(scores.get(name), Status)]
            scores[column.id] = lacking[0] if lacking else _flips(lookup, row, [columns_by_id[name] for name in names])


def _flips(lookup: Resampled, row: Row, tasks: Sequence[Column]) -> Score | Status:
    if row.dense:
        return statuses.NONE
    flips = [lookup.flipped(row, task) for task in tasks]
    if not flips or any(flags is None for flags in flips):
        return statuses.NO_VALUE
    return Score(100 * float(np.mean([flags.mean() for flags in flips])), None)

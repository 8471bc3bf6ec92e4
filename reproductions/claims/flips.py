"""Columns of flips: on how many items a row and the original model differ, one alone being right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.evaluation import significance
from common.records.results import Store
from reproductions.claims import derived_columns
from reproductions.claims.bootstrap import Resampled
from reproductions.claims.derived_columns import FLIPS, Measured, Score
from reproductions.spec import statuses
from reproductions.spec.registry import Column, Row
from reproductions.spec.statuses import Status


def fill(rows: Measured, columns: Sequence[Column], store: Store) -> None:
    """Fill in the columns of flips, in percent: means over the tasks that an average has, where outcomes are stored."""
    following = [column for column in columns if column.derived == FLIPS]
    if not following:
        return
    found, original = Resampled(store, rows, list(columns)), {row.model: row for row, _, _ in rows if row.dense}
    asked = {column.id: column for column in columns}
    for row, _, scores in rows:
        for column in following:
            names, _ = derived_columns.parts(column, columns, row.model, rows)
            lacking = [scores[name] for name in names if isinstance(scores.get(name), Status)]
            tasks = [asked[name] for name in names]
            scores[column.id] = lacking[0] if lacking else _flips(found, row, original.get(row.model), tasks)


def _flips(found: Resampled, row: Row, original: Row | None, tasks: Sequence[Column]) -> Score | Status:
    if row.dense or original is None or row.recipe is None or original.recipe is None:
        return statuses.NONE
    shares = []
    for task in tasks:
        one, other = (found.outcomes(recipe, task) for recipe in (row.recipe, original.recipe))
        if one is None or other is None or len(one) != len(other):
            return statuses.NO_VALUE
        shares.append(significance.flips(one, other))
    return Score(100 * float(np.mean(shares)), None) if shares else statuses.NO_VALUE

"""Decide which columns are read from records of whole test sets and texts, and which from parts of them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from common.records.results import Store
from reproductions.spec import subsets
from reproductions.spec.registry import Column, Row, Table
from reproductions.spec.subjects import Subject


def columns(table: Table, store: Store, subject: Subject, limit: int | None = None) -> list[Column]:
    """Return a table's columns as they are read: the whole benchmark if every row with the part has the whole.

    So rows that are compared have answered the same items. The original model's row belongs to many tables, so it
    changes no column alone.
    """
    columns = table.columns_for(subject)
    names = {column.benchmark for column in columns if column.benchmark}
    parts = {name for name in names if name != subsets.whole(name)}
    rows = table.rows(subject, limit) if parts else []
    whole_names = {name: subsets.whole(name) for name in parts if _answered(rows, store, name)}
    return [replace(column, benchmark=whole_names.get(column.benchmark, column.benchmark)) for column in columns]


def more_items(
    columns: Sequence[Column], rows: Sequence[Row], store: Store
) -> list[tuple[dict[str, Column], list[Row]]]:
    """Return the rows that can be compared by more items than a table shows: ids of columns to read whole, and these rows.

    There is one entry for each set of rows that have answered all of the same columns: the original model's and at
    least two others. Sets of fewer rows, which have answered more, come last.
    """
    wholes = {
        column.id: replace(column, benchmark=subsets.whole(column.benchmark))
        for column in columns
        if column.benchmark and column.benchmark != subsets.whole(column.benchmark)
    }
    rows_with = {
        id_: frozenset(n for n, row in enumerate(rows) if row.recipe and _has_result(row, store, column.benchmark))
        for id_, column in wholes.items()
    }
    groups = set(rows_with.values())
    groups |= {a & b for a, b in combinations(groups, 2)}
    comparable = []
    for group in sorted(groups, key=lambda group: (-len(group), sorted(group))):
        answering = [rows[number] for number in sorted(group)]
        if any(row.dense for row in answering) and sum(not row.dense for row in answering) > 1:
            comparable.append(({id_: column for id_, column in wholes.items() if group <= rows_with[id_]}, answering))
    return comparable


def _answered(rows: Sequence[Row], store: Store, part: str) -> bool:
    """Return whether the rows that have a record of a part, more than the dense one, have one of the whole."""
    any_pruned = False
    for row in rows:
        if row.recipe is None:
            continue
        if _has_result(row, store, subsets.whole(part)):
            any_pruned = any_pruned or not row.dense
        elif _has_result(row, store, part):
            return False
    return any_pruned


def _has_result(row: Row, store: Store, benchmark: str) -> bool:
    record = store.get(row.recipe, benchmark)
    return record is not None and record.status == "ok"

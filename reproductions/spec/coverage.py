"""Decide which columns are read from records of whole test sets and texts, and which from parts of them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from common.records.results import Store
from reproductions.spec import subsets
from reproductions.spec.registry import Column, Row, Table
from reproductions.spec.subjects import Subject


def read(table: Table, store: Store, subject: Subject, limit: int | None = None) -> list[Column]:
    """Return a table's columns as they are read: the whole benchmark if every row with the part has the whole.

    So rows that are compared have answered the same items. The original model's row belongs to many tables, so it
    changes no column alone.
    """
    columns = table.columns_for(subject)
    names = {column.benchmark for column in columns if column.benchmark}
    parts = {name for name in names if name != subsets.whole(name)}
    rows = table.rows(subject, limit) if parts else []
    known = {name: subsets.whole(name) for name in parts if _answered(rows, store, name)}
    return [replace(column, benchmark=known.get(column.benchmark, column.benchmark)) for column in columns]


def more(columns: Sequence[Column], rows: Sequence[Row], store: Store) -> list[tuple[dict[str, Column], list[Row]]]:
    """Return the rows that can be compared by more items than a table shows: ids of columns to read whole, and these rows.

    There is one entry for each set of rows that have answered all of the same columns: the original model's and at
    least two others. Sets of fewer rows, which have answered more, come last.
    """
    having: dict[str, frozenset[int]] = {}
    parts = {
        column.id: column
        for column in columns
        if column.benchmark and column.benchmark != subsets.whole(column.benchmark)
    }
    for key, column in parts.items():
        name = subsets.whole(column.benchmark)
        having[key] = frozenset(
            n for n, row in enumerate(rows) if row.recipe is not None and _measured(row, store, name)
        )
    groups = set(having.values())
    groups |= {one & other for one, other in combinations(groups, 2)}
    found = []
    for group in sorted(groups, key=lambda group: (-len(group), sorted(group))):
        answering = [rows[number] for number in sorted(group)]
        if any(row.dense for row in answering) and sum(not row.dense for row in answering) > 1:
            known = {
                key: replace(parts[key], benchmark=subsets.whole(parts[key].benchmark))
                for key in having
                if group <= having[key]
            }
            found.append((known, answering))
    return found


def _answered(rows: Sequence[Row], store: Store, part: str) -> bool:
    """Return whether the rows that have a record of a part, more than the dense one, have one of the whole."""
    found = False
    for row in rows:
        if row.recipe is None:
            continue
        if _measured(row, store, subsets.whole(part)):
            found = found or not row.dense
        elif _measured(row, store, part):
            return False
    return found


def _measured(row: Row, store: Store, benchmark: str) -> bool:
    record = store.get(row.recipe, benchmark)
    return record is not None and record.status == "ok"

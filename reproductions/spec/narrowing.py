"""Narrow tables to the rows and columns that a command names."""

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import replace

from common.utils.errors import UserError, unknown
from reproductions.spec.changes import Changes
from reproductions.spec.registry import Column, Row, Table
from reproductions.spec.subjects import Subject


def choose_rows(
    table: Table, subject: Subject, models: Sequence[str], pattern: str | None, limit: int | None
) -> list[Row]:
    """Return the rows of a table that a command names.

    models: of the paper; none: all. pattern: of the rows' methods; None: all. limit: items of each task; None: all.

    Raises:
        UserError: a model that the table does not have, or a pattern that matches no row.
    """
    rows = table.rows(subject, limit)
    models_here = {row.model for row in rows}
    for model in models:
        if model not in models_here:
            raise unknown(f"model in the {subject.profile} profile of {table.target}", model, models_here)
    chosen = [row for row in rows if fits(row, models, pattern)]
    unchanged = table.rows(replace(subject, changes=Changes()), limit) if subject.changes else ()
    if all(row.dense for row in chosen) and any(fits(row, models, pattern) for row in unchanged):
        raise UserError(
            f"no row of {table.target} changes with {subject.changes}: those asked for are not calibrated or patched that "
            "way, or are so already. Choose other rows or another target, or leave the option out"
        )
    if pattern is not None and not chosen:
        raise unknown("row", pattern, {row.name for row in rows}, f"`show {table.target}` prints all")
    return chosen


def fitting(
    asked: Iterable[tuple[Table, Subject, Sequence[str]]], pattern: str | None, limit: int | None
) -> list[tuple[Table, Subject, list[Row]]]:
    """Return tables of subjects with the rows that a command names; of several, those without such rows are left out.

    asked: each table and subject, with the paper's models to narrow it to.

    Raises:
        UserError: none has such rows; the message explains it for the first.
    """
    found, problems = [], []
    for table, subject, models in asked:
        try:
            found.append((table, subject, choose_rows(table, subject, models, pattern, limit)))
        except UserError as error:
            problems.append(error)
    if problems and not found:
        raise problems[0]
    return found


def fits(row: Row, models: Sequence[str], pattern: str | None) -> bool:
    """Return whether a row is of one of these models (none: any) and its method matches the pattern (None: any)."""
    if models and row.model not in models:
        return False
    return pattern is None or like(row.name, pattern) or like(row.method, pattern)


def like(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern, ignoring case.

    Names contain brackets (LinearPatch[L]), so only * and ? are wild.
    """
    return fnmatch.fnmatchcase(name.lower(), pattern.lower().replace("[", "[[]"))


def check_columns(tables: Sequence[Table], named: Iterable[Subject], patterns: Sequence[str]) -> None:
    """Refuse a pattern that matches no column of any table and any subject.

    Raises:
        UserError: There is such a pattern.
    """
    columns = [column for subject in named for table in tables for column in table.columns_for(subject)]
    measurable = [column for column in columns if column.benchmark or column.derived]
    for pattern in patterns:
        if not named_columns(measurable, [pattern]):
            raise unknown("column", pattern, {column.label for column in measurable})


def named_columns(columns: Sequence[Column], patterns: Sequence[str]) -> list[Column]:
    """Return the columns to measure for those whose label or id fits a pattern: in place of a derived one its members.

    Without patterns all are named.
    """
    fitting = [c for c in columns if any(like(name, p) for name in (c.label, c.id) for p in patterns or ["*"])]
    ids = {name for c in fitting for name in (c.members(columns) if c.derived else [c.id])}
    return [c for c in columns if c.benchmark and c.id in ids]

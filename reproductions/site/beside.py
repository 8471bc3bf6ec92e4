"""Reported and measured numbers side by side: one row a method, one column a model and number of removed layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reproductions.site.cells import Cell, Grid, Heading, Line

HEADLINES = ("RP", "Per.", "PPL AVG", "QA RP", "Avg.", "AVG", "Weighted AVG")  # shown first where a table has one


@dataclass(frozen=True)
class ValueColumn:
    """One model with one number of removed layers.

    Attributes:
        side: Whose numbers these are: the paper's, or a measured model's.
        model: The model's name.
        sparsity: Its n/N; '' where each row has another, which its cells then say.
        first: Whether it is the first column of its side.
    """

    side: str
    model: str
    sparsity: str
    first: bool = False


@dataclass(frozen=True)
class RowBeside:
    """A cell with the grid that it is from. sparsity: its n/N, '' where its column says so."""

    cell: Cell
    grid: Grid
    sparsity: str = ""


@dataclass(frozen=True)
class ComparedMetric:
    """The numbers of one column of a table. sides: each side with its number of columns."""

    heading: Heading
    sides: tuple[tuple[str, int], ...]
    columns: tuple[ValueColumn, ...]
    rows: tuple[tuple[str, bool, tuple[RowBeside | None, ...]], ...]


def metrics(grids: Sequence[Grid]) -> list[ComparedMetric]:
    """Return one table for every column that has reported numbers and measured ones; the headline metric comes first.

    Args:
        grids: Those of one table or figure.

    Returns:
        The tables; none where no row has both kinds of number.
    """
    groups = [group for grid in sorted(grids, key=lambda grid: not grid.compared) for group in _groups(grid)]
    columns = dict.fromkeys(heading.id for grid in grids if grid.compared for heading in grid.headings)
    found = [metric for column in columns if (metric := _metric(column, groups)) is not None]
    order = {column: at for at, column in enumerate(HEADLINES)}
    return sorted(found, key=lambda metric: order.get(metric.heading.id, len(order)))


@dataclass(frozen=True)
class _Group:
    """The rows of one column, by method; the original model's row is in each column of its model."""

    grid: Grid
    column: ValueColumn
    lines: dict[str, Line]


def _groups(grid: Grid) -> Iterable[_Group]:
    """Split a grid into columns: by n/N where a method has several, else one a model."""
    side = "Reported" if grid.compared else f"Measured on {grid.title.partition(',')[0]}"
    models = dict.fromkeys(line.model for line in grid.lines)
    for model in models:
        lines = [line for line in grid.lines if line.model == model and not line.dense]
        dense = [line for line in grid.lines if line.dense and (line.model == model or not grid.compared)]
        name = model if grid.compared else model.removeprefix(grid.title).strip()
        sizes = dict.fromkeys(line.sparsity for line in lines)
        methods = {line.method for line in lines}
        if len(lines) == len(methods) or not lines:
            size = next(iter(sizes)) if len(sizes) == 1 else ""
            yield _Group(grid, ValueColumn(side, name, size), {line.method: line for line in [*dense, *lines]})
            continue
        for size in sizes:
            own = [line for line in lines if line.sparsity == size]
            yield _Group(grid, ValueColumn(side, name, size), {line.method: line for line in [*dense, *own]})


def _metric(column: str, groups: Sequence[_Group]) -> ComparedMetric | None:
    kept, heading = [], None
    for group in groups:
        at = next((at for at, one in enumerate(group.grid.headings) if one.id == column), None)
        if at is None:
            continue
        heading = heading or group.grid.headings[at]
        cells = {method: line.cells[at] for method, line in group.lines.items() if _has_number(line.cells[at])}
        if any(not group.lines[method].dense for method in cells):
            kept.append((group, cells))
    methods = dict.fromkeys(method for _, cells in kept for method in cells)
    reported = {method for group, cells in kept for method, cell in cells.items() if cell.reported is not None}
    measured = {method for group, cells in kept if not group.grid.compared for method in cells}
    if heading is None or not any(not _dense(method, kept) for method in reported & measured):
        return None
    sides: dict[str, int] = {}
    columns = []
    for group, _ in kept:
        one = group.column
        columns.append(ValueColumn(one.side, one.model, one.sparsity, one.side not in sides))
        sides[one.side] = sides.get(one.side, 0) + 1
    rows = [
        (method, _dense(method, kept), tuple(_entry(group, cells, method) for group, cells in kept))
        for method in methods
    ]
    return ComparedMetric(
        heading, tuple(sides.items()), tuple(columns), tuple(sorted(rows, key=lambda row: not row[1]))
    )


def _has_number(cell: Cell) -> bool:
    return cell.reported is not None or cell.reproduced is not None


def _dense(method: str, kept: Sequence[tuple[_Group, dict[str, Cell]]]) -> bool:
    return any(group.lines[method].dense for group, cells in kept if method in cells)


def _entry(group: _Group, cells: dict[str, Cell], method: str) -> RowBeside | None:
    if method not in cells:
        return None
    line = group.lines[method]
    return RowBeside(cells[method], group.grid, "" if group.column.sparsity or line.dense else line.sparsity)

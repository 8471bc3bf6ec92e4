"""Reported and measured numbers side by side: one row a method, one column a model and number of removed layers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from reproductions.site.table_grids import Cell, Grid, Heading, Line

# Ids of columns that are shown first where they are there.
HEADLINES = ("RP", "Per.", "PPL AVG", "QA RP", "Avg.", "AVG", "Weighted AVG")


@dataclass(frozen=True)
class ValueColumn:
    """One model with one number of removed layers.

    side: origin of the numbers: the paper, or a measured model. sparsity: n/N; '' if each row has another, which its cells
    then state. first: whether it is the first column of its side.
    """

    side: str
    model: str
    sparsity: str
    first: bool = False


@dataclass(frozen=True)
class RowBeside:
    """A cell with its grid. sparsity: its n/N, '' if its column states it."""

    cell: Cell
    grid: Grid
    sparsity: str = ""


@dataclass(frozen=True)
class ComparedRow:
    """A method with its numbers, one per column (None: a column without one).

    label: name of the measured row, or else the paper's. printed: the paper's other names of it.
    """

    label: str
    printed: tuple[str, ...]
    dense: bool
    entries: tuple[RowBeside | None, ...]


@dataclass(frozen=True)
class ComparedMetric:
    """The numbers of one column of a table, the original model's row first.

    sides: each side with its number of columns. shares: whether the paper prints shares of 1 and measured numbers are in
    percent.
    """

    heading: Heading
    sides: tuple[tuple[str, int], ...]
    columns: tuple[ValueColumn, ...]
    rows: tuple[ComparedRow, ...]
    shares: bool = False


def metrics(grids: Sequence[Grid]) -> list[ComparedMetric]:
    """Return one table for every column that has both reported and measured numbers; the headline metric comes first.

    Columns correspond by id. Rows correspond by the id of their method or, if the paper uses another name, by their
    specification. There is no table if no row has both kinds of number.
    """
    ordered = sorted(grids, key=lambda grid: not grid.compared)
    keys = _keys(ordered)
    groups = [group for grid in ordered for group in _groups(grid, keys)]
    columns = dict.fromkeys(heading.id for grid in grids if grid.compared for heading in grid.headings)
    tables = [metric for column in columns if (metric := _metric(column, groups)) is not None]
    order = {name: at for at, name in enumerate(HEADLINES)}
    return sorted(tables, key=lambda metric: order.get(metric.heading.id, len(order)))


def _keys(grids: Iterable[Grid]) -> dict[str, str]:
    """Return a name for each method's id: the first id with the same specification."""
    names, by_spec = {}, {}
    for line in (line for grid in grids for line in grid.lines):
        if line.id not in names:
            names[line.id] = line.id if line.spec is None else by_spec.setdefault(line.spec, line.id)
        if line.spec is not None:
            by_spec.setdefault(line.spec, names[line.id])
    return names


@dataclass(frozen=True)
class _Group:
    """The rows of one column, by method; the original model's row is in each column of its model."""

    grid: Grid
    column: ValueColumn
    lines: dict[str, Line]


def _groups(grid: Grid, keys: dict[str, str]) -> Iterator[_Group]:
    """Split a grid into columns, one a model and, where methods have several n/N, one a n/N."""
    side = "Reported" if grid.compared else f"Measured on {grid.title.partition(',')[0]}"
    models = dict.fromkeys(line.model for line in grid.lines)
    for model in models:
        lines = [line for line in grid.lines if line.model == model and not line.dense]
        dense = [line for line in grid.lines if line.dense and (line.model == model or not grid.compared)]
        name = model if grid.compared else model.removeprefix(grid.title).strip()
        sizes = dict.fromkeys(line.sparsity for line in lines)
        rows_per_method = max(Counter(line.id for line in lines).values(), default=1)
        if len(sizes) == 1 or 1 < rows_per_method >= len(sizes) / 2:
            columns = [(size, [line for line in lines if line.sparsity == size]) for size in sizes]
        else:  # each method has rates of its own: its first ones in one column, its second ones in the next
            by_method: dict[str, list[Line]] = {}
            for line in lines:
                by_method.setdefault(line.id, []).append(line)
            columns = [("", lines_of) for lines_of in zip_longest(*by_method.values())]
        for size, lines_of in columns or [("", [])]:
            rows = [*dense, *filter(None, lines_of)]
            yield _Group(grid, ValueColumn(side, name, size), _by_key(rows, keys))


def _by_key(lines: Iterable[Line], keys: dict[str, str]) -> dict[str, Line]:
    """Return lines by the name of their method; of two with one name, the second by its own id."""
    lines_by_key: dict[str, Line] = {}
    for line in lines:
        key = keys[line.id]
        lines_by_key[line.id if key in lines_by_key else key] = line
    return lines_by_key


def _metric(column: str, groups: Sequence[_Group]) -> ComparedMetric | None:
    with_numbers, heading, units = [], None, set()
    for group in groups:
        at = group.grid.index(column)
        if at is None:
            continue
        heading = heading or group.grid.headings[at]
        cells = {key: line.cells[at] for key, line in group.lines.items() if _has_number(line.cells[at])}
        if any(not group.lines[key].dense for key in cells):
            with_numbers.append((group, cells))
            units.add((group.grid.compared, group.grid.headings[at].unit))
    keys = dict.fromkeys(key for _, cells in with_numbers for key in cells)
    reported = {key for group, cells in with_numbers for key, cell in cells.items() if cell.reported is not None}
    measured = {key for group, cells in with_numbers if not group.grid.compared for key in cells}
    if heading is None or not any(not _dense(key, with_numbers) for key in reported & measured):
        return None
    sides: dict[str, int] = {}
    columns = []
    for group, _ in with_numbers:
        side = group.column.side
        columns.append(replace(group.column, first=side not in sides))
        sides[side] = sides.get(side, 0) + 1
    rows = [_row(key, with_numbers) for key in keys]
    rows.sort(key=lambda row: not row.dense)
    return ComparedMetric(
        heading, tuple(sides.items()), tuple(columns), tuple(rows), {(True, ""), (False, "%")} <= units
    )


def _has_number(cell: Cell) -> bool:
    return cell.reported is not None or cell.reproduced is not None


def _dense(key: str, groups: Sequence[tuple[_Group, dict[str, Cell]]]) -> bool:
    return any(group.lines[key].dense for group, cells in groups if key in cells)


def _row(key: str, groups: Sequence[tuple[_Group, dict[str, Cell]]]) -> ComparedRow:
    lines = [(group.grid.compared, group.lines[key].method) for group, cells in groups if key in cells]
    label = min(lines, key=lambda entry: entry[0])[1]
    printed = dict.fromkeys(name for compared, name in lines if compared and name != label)
    return ComparedRow(
        label, tuple(printed), _dense(key, groups), tuple(_entry(group, cells, key) for group, cells in groups)
    )


def _entry(group: _Group, cells: dict[str, Cell], key: str) -> RowBeside | None:
    if key not in cells:
        return None
    line = group.lines[key]
    return RowBeside(cells[key], group.grid, "" if group.column.sparsity or line.dense else line.sparsity)

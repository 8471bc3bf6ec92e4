"""Cells of a table as a page shows them: text, what stands behind it, and how columns are aligned."""

from collections.abc import Iterable
from dataclasses import dataclass

from reproductions.render.evidence import Evidence
from reproductions.render.tables import LARGE, averaged, left_out_at_chance, unknown_cell
from reproductions.site.claims import PAPERS_OWN
from reproductions.spec import coverage
from reproductions.spec.registry import Column, Row, Table
from reproductions.spec.subjects import PAPER, Subject

UP, DOWN = "↑", "↓"
ARROWS = {"higher": UP, "lower": DOWN, "": ""}
# Statuses of a cell without a number that are said with a sign; any other is said in a word.
SIGNS = {"not-run": "·", "none": ""}


@dataclass(frozen=True)
class ShownNumber:
    """A number to be aligned at its decimal point.

    pad: number of digits by which the column's longest fraction is longer. point: whether the decimal point is missing
    as well.
    """

    text: str
    pad: int = 0
    point: bool = False


@dataclass(frozen=True)
class Cell:
    """One cell: reported and reproduced numbers with error, difference and status (its id).

    sort: sort key. word: text instead of a number. why: explanation of that word. href: the recipe's page. audit: names
    of findings. shape: whether the number follows from the model's shape, without weights. best: whether no row with as
    many removed layers has a better number.
    """

    reported: ShownNumber | None = None
    reproduced: ShownNumber | None = None
    error: str = ""
    difference: str = ""
    status: str = ""
    label: str = ""
    word: str = ""
    why: str = ""
    text: str = ""
    href: str = ""
    audit: tuple[str, ...] = ()
    flag: str = ""
    sort: float | str = ""
    shape: bool = False
    best: bool = False


@dataclass(frozen=True)
class Heading:
    """A column's heading. id: the column's. better: UP or DOWN if one direction is better."""

    id: str
    label: str
    better: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Line:
    """A row: its labels, the page of its recipe, and its cells.

    full: whether it has a number in all columns that a ranking compares. id: its method's. spec: its specification, see
    `Row.spec`.
    """

    model: str
    sparsity: str
    method: str
    dense: bool
    href: str
    note: str
    cells: tuple[Cell, ...]
    full: bool = True
    id: str = ""
    spec: object = None


@dataclass(frozen=True)
class Grid:
    """The rows of one subject.

    compared: with reported numbers. size: measured part of tasks and texts, and the calibration text where it is not the
    paper's; '': all, and its own. left_out: tasks that averages are over if some are left out, and why. shape: whether all
    unreported numbers follow from shapes. absent: columns without any number, which are left out.
    """

    subject: Subject
    title: str
    origin: str
    compared: bool
    headings: tuple[Heading, ...]
    lines: tuple[Line, ...]
    size: str = ""
    left_out: str = ""
    shape: bool = False
    absent: tuple[str, ...] = ()

    def index(self, column: str) -> int | None:
        """Return the place of a column, by its id; None if it is not shown."""
        return next((at for at, heading in enumerate(self.headings) if heading.id == column), None)


def grids(evidence: Evidence, target: str) -> list[Grid]:
    """Return one grid per subject that has rows, the paper's models last."""
    table, subjects, built = evidence.tables[target]
    all_grids = []
    for subject, facts in zip(subjects, built["subjects"], strict=True):
        lines = [line for line in built["rows"] if line["subject"] == subject.name]
        if lines:
            all_grids.append(_grid(evidence, table, subject, facts, lines))
    return all_grids


def _grid(evidence: Evidence, table: Table, subject: Subject, facts: dict, lines: list[dict]) -> Grid:
    columns = {column.label: column for column in coverage.columns(table, evidence.store, subject)}
    all_labels = dict.fromkeys(label for line in lines for label in line["cells"])
    absent = [name for name in all_labels if all(unknown_cell(line["cells"].get(name)) for line in lines)]
    labels = [label for label in all_labels if label not in absent]
    digits = {label: _digits(line["cells"].get(label) for line in lines) for label in labels}
    rows = {row.key: row for row in table.rows(subject, None)}
    shown = []
    for line in lines:
        row = rows[line["model_id"], line["sparsity"], line["method_id"]]
        cells = tuple(_cell(evidence, row, columns[label], line["cells"].get(label), digits[label]) for label in labels)
        note = line.get("gate") or (line["status"] if _empty(line) and line["status_id"] != "failed" else "")
        page = _page(evidence, row.recipe) or _page(evidence, row.shapes)
        names = line["model"], line["sparsity"], line["method"]
        shown.append(Line(*names, line["dense"], page, note, cells, id=row.method, spec=row.spec))
    title = PAPERS_OWN if subject.printed else subject.label
    headings = tuple(_heading(columns[label], facts["over"].get(label)) for label in labels)
    left_out = " ".join(averaged(facts) + left_out_at_chance(facts))
    size = ", ".join(filter(None, (facts["size"], facts["text"])))
    shape = subject.printed and target_of_shapes(evidence, table.target)
    return Grid(
        subject,
        title,
        facts["origin"],
        subject.printed,
        headings,
        tuple(shown),
        size,
        left_out,
        shape,
        tuple(absent),
    )


def target_of_shapes(evidence: Evidence, target: str) -> bool:
    """Return whether everything that a target shows of the paper's models follows from shapes, without weights."""
    places = (place for places_of_recipe in evidence.shown.values() for place in places_of_recipe)
    rows = (place.row for place in places if (place.target, place.subject, place.shape) == (target, PAPER.name, False))
    return all(row.recipe == row.shapes for row in rows)


def _empty(line: dict) -> bool:
    cells = line["cells"].values()
    return all(c["reproduced"] is None and c["reported"] is None and "text" not in c for c in cells)


def _page(evidence: Evidence, recipe) -> str:
    return f"recipes/{recipe.hash}.html" if recipe is not None and recipe.hash in evidence.records else ""


def _heading(column: Column, over: int | None) -> Heading:
    label = f"{column.label} of {over}" if over else column.label
    return Heading(column.id, label, ARROWS[column.better], _unit(column))


def _unit(column: Column) -> str:
    if column.text:
        return ""
    if column.compare == "perplexity":
        return "perplexity"
    return "%" if column.scale == 100 or column.derived is not None else ""


def _digits(cells: Iterable[dict | None]) -> int:
    """Return the digits after the point of a column's longest number."""
    return max(
        (c.get("digits", 2) for c in cells if c and (c["reproduced"] is not None or c["reported"] is not None)),
        default=0,
    )


def number(value: float, digits: int, longest: int) -> ShownNumber:
    """Return a number with its digits and its padding to the column's longest fraction."""
    if isinstance(value, float) and abs(value) >= LARGE:
        return ShownNumber(f"{value:.2e}")
    return ShownNumber(f"{value:,.{digits}f}", longest - digits, longest > 0 and digits == 0)


def _cell(evidence: Evidence, row: Row, column: Column, cell: dict | None, longest: int) -> Cell:
    if cell is None:
        return Cell()
    shape = column.weight_free and row.shapes is not None
    page = _page(evidence, row.shapes) if shape else _page(evidence, row.recipe)
    href = f"{page}#{column.benchmark}" if page and column.benchmark else ""
    digits, value, printed = cell.get("digits", 2), cell["reproduced"], cell["reported"]
    facts = {"href": href, "audit": tuple(cell.get("audit", ())), "flag": cell.get("flag", "")}
    facts["shape"] = shape or row.recipe is not None and row.recipe == row.shapes
    if printed is not None:
        facts |= {"reported": number(printed, digits, longest), "sort": printed}
    elif cell.get("printed"):
        facts |= {"word": cell["printed"]}
    if value is not None:
        error = "" if not cell["stderr"] else f"{cell['stderr']:.{min(digits, 2)}f}"
        facts |= {"reproduced": number(value, digits, longest), "sort": value, "error": error}
        facts["status"] = cell["status_id"]
        if printed is not None:
            change = value - printed
            sign = "−" if change < 0 else "+"
            size = f"{abs(change):,.{digits}f}"
            equal = cell["status_id"] == "match" and not float(size.replace(",", ""))
            facts |= {"difference": "" if equal else f"{sign}{size}", "why": cell.get("explanation", "")}
        return Cell(**facts)
    if "text" in cell:
        return Cell(**facts | {"text": cell["text"], "status": cell["status_id"]})
    status, why = cell["status_id"], cell.get("reason", "")
    label = cell["status"].removesuffix(f": {why}") if why else cell["status"]
    if "reported" not in facts and "word" not in facts or status not in SIGNS:
        facts |= {"word": SIGNS.get(status, label if len(label) < 12 else "x"), "why": why or label}
    return Cell(**facts | {"status": status, "label": label})


def own_models(grids: Iterable[Grid]) -> tuple[int, int]:
    """Return how many reported numbers were measured on the paper's models, and how many need their weights."""
    reported = [c for g in grids if g.compared for line in g.lines for c in line.cells if c.reported and not c.shape]
    return sum(cell.reproduced is not None for cell in reported), len(reported)


def tally(grid: Grid) -> dict[str, int]:
    """Count a grid's reported cells, and its cells of each status."""
    cells = [cell for line in grid.lines for cell in line.cells]
    counts = {"reported": sum(cell.reported is not None for cell in cells)}
    for cell in cells:
        status = "measured" if cell.text else cell.status
        counts[status] = counts.get(status, 0) + 1
    return counts

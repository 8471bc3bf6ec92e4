"""One configuration printed twice with different numbers, and different ones, here or in two papers, with the same."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations

from reproductions.audit.engine import (
    SLIP,
    UNRESOLVED,
    Finding,
    Paper,
    Row,
    about,
    cells_of,
    group,
    named,
    padding,
    place,
    scale,
)
from reproductions.spec import reported
from reproductions.spec.registry import PAPERS
from reproductions.spec.reported import Number, row_name

SETTINGS = ("Ratio", "ratio %", "PR %", "layers", "GPU memory GB", "training time s", "# Parameters B", "TTokens T")
# One task under the papers' names.
TASKS = {"HeSw": "HellaSwag", "WG": "WinoGrande"}
TASKS |= {name: name for name in ("ARC-e", "ARC-c", "OpenbookQA", "BoolQ", "WSC", "CoPa", "MMLU", "CMMLU", "PIQA")}
TASKS |= {name: name for name in ("HellaSwag", "WinoGrande")}
PER_CENTS = ("laco", "7")  # of the dense model, not scores
FEWEST = 4  # scores in common with another paper's row: fewer may agree by chance


def _is_score(column: str) -> bool:
    return column not in SETTINGS and not column.startswith("removed ") and column not in ("C", "L", "H", "I", "T")


def scored_tables(paper: Paper) -> list[str]:
    """Return the tables of a paper, without the numbers of its text."""
    return [table for table in reported.tables(paper.name) if "text" not in table]


def repeated(paper: Paper) -> Iterator[Finding]:
    """Yield disagreements between tables, and repeated rows."""
    yield from _between_tables(paper)
    yield from copied_rows(paper)


def copied_cells(paper: Paper) -> set[tuple]:
    """Return (table, model, sparsity, row name) of rows that copy another row.

    Such a row disagrees with rows of its name for that reason, which is reported once.
    """
    return {cell[1:5] for finding in copied_rows(paper) for cell in finding.cells}


def _between_tables(paper: Paper) -> Iterator[Finding]:
    copied = copied_cells(paper)
    first_prints: dict[tuple, Number] = {}
    pairs: dict[tuple, list[tuple[Number, Number]]] = {}
    for table in scored_tables(paper):
        for number in reported.numbers(paper.name, table):
            if table in paper.shares and number.column != "layers":
                continue
            for key in named(paper, number):
                first_print = first_prints.setdefault(key, number)
                if first_print.table == table or first_print.text == number.text or cell(number)[1:5] in copied:
                    continue
                places = (first_print.table, table, *named(paper, first_print)[0][:2], first_print.row)
                pair = pairs.setdefault(places, [])
                if (first_print, number) not in pair:
                    pair.append((first_print, number))
    alike: dict[tuple, list] = {}
    for cells in pairs.values():
        if any(differ(a, b) for a, b in cells):
            alike.setdefault(tuple((a.text, b.text, b.column) for a, b in cells), []).append(cells)
    for repeats in alike.values():  # one disagreement, however many tables repeat it
        first, second = repeats[0][0]
        tables = [first.table, *dict.fromkeys(cells[0][1].table for cells in repeats)]
        names = dict.fromkeys(row_name(n.method, n.variant) for n in (first, second))
        where = f"Table {' and '.join(map(_table, tables))}, {first.model} {first.sparsity}, {' or '.join(names)}"
        yield disagreement(paper.name, where, repeats[0], [n for cells in repeats for pair in cells for n in pair])


def _table(name: str) -> str:
    return name.replace("summary", "the summary's table ")


def cell(number: Number) -> tuple:
    """Return the first table cell that shows a number."""
    return cells_of([number])[0]


def differ(a: Number, b: Number) -> bool:
    """Return whether two prints of a number differ by more than rounding."""
    if "." not in a.text + b.text:
        return a.value != b.value  # counts are not rounded
    return abs(a.value - b.value) > (a.half_unit + b.half_unit) * (1 + 1e-6)


def disagreement(paper: str, where: str, pairs: list[tuple[Number, Number]], marked: list[Number] = ()) -> Finding:
    """Return the finding about numbers that should be equal. marked: the cells concerned, if there are more."""
    # Once a row disagrees, last digits belong to the story too; a shorter print of the same number does not.
    pairs = [(a, b) for a, b in pairs if differ(a, b) or len(a.text) == len(b.text)]
    return Finding(
        paper,
        "printed twice, differently",
        where,
        "; ".join(f"{a.column} {a.text}" for a, _ in pairs),
        "; ".join(f"{b.column} {b.text}" for _, b in pairs),
        "; ".join(f"{b.column} {b.value - a.value:+.4g}" for a, b in pairs),
        UNRESOLVED,
        "Name the table when citing; differences of this size bound how well the numbers repeat.",
        cells_of(marked or [n for pair in pairs for n in pair]),
    )


def _as_far_as_printed(a: Number, b: Number) -> bool:
    """Return whether two numbers are equal as printed, or to the digits of the shorter print."""
    return a.text == b.text or len(a.text) != len(b.text) and not differ(a, b)


def _layers(paper: Paper, key: tuple) -> set[float]:
    """Return the layers that a row removes, where the paper lists them."""
    rows = group(reported.numbers(paper.name, paper.calibrated))
    return {n.value for c, n in rows.get(key, {}).items() if c.startswith("removed ")}


def _alike(row: dict[str, Number], other: dict[str, Number], same_table: bool) -> int:
    """Return how many scores two rows share, 0 unless all do (across tables: all but one, which may be misprinted)."""
    shared = [c for c in row if c in other]
    equal = [c for c in shared if _as_far_as_printed(row[c], other[c])]
    enough = len(shared) >= 3 if same_table else len(shared) >= 5
    return len(equal) if enough and len(equal) >= len(shared) - (not same_table) else 0


@cache
def copied_rows(paper: Paper) -> tuple[Finding, ...]:
    """Return findings about rows that agree in every score although their model, sparsity or training differs."""
    rows = []
    for table in scored_tables(paper) if paper.copies else ():
        for key, row in group(reported.numbers(paper.name, table)).items():
            scores = {c: n for c, n in row.items() if _is_score(c)}
            if scores:
                rows.append((table, key, scores))
    clusters: list[list[int]] = []
    placed: set[int] = set()
    for i, first in enumerate(rows):
        if i in placed:
            continue
        twins = [j for j in range(i + 1, len(rows)) if j not in placed and _copied(paper, first, rows[j])]
        if twins:
            clusters.append([i, *twins])
            placed |= {i, *twins}
    return tuple(_copy([rows[i] for i in cluster]) for cluster in clusters)


def _copied(paper: Paper, row: tuple, other: tuple) -> bool:
    (table, key, scores), (table2, key2, scores2) = row, other
    if not _alike(scores, scores2, table == table2):
        return False
    name, name2 = ({k[:4] for k in named(paper, next(iter(s.values())))} for s in (scores, scores2))
    if name & name2:
        return False  # the same row in two tables
    a, b = next(iter(name)), next(iter(name2))
    if a[:2] == b[:2] and (a[2] != b[2] or table != table2):
        return False  # two methods may well choose the same layers
    # More calibration samples may choose the same layers.
    return not (key[:3] == key2[:3] and paper.calibrated and _layers(paper, key) == _layers(paper, key2) != set())


def _copy(rows: list[tuple]) -> Finding:
    tables = list(dict.fromkeys(table for table, _, _ in rows))
    names = _row_names([(table if len(tables) > 1 else "", key) for table, key, _ in rows])
    first = rows[0][2]
    shared = [c for c in first if all(c in s for _, _, s in rows)]
    unlike = [c for c in shared if not all(_as_far_as_printed(first[c], s[c]) for _, _, s in rows)]
    numbers = [n for _, _, s in rows[bool(len(tables) > 1) :] for n in s.values()]
    words = f"{len(shared) - len(unlike)} of {len(shared)} scores agree to the last digit"
    if unlike:
        words += "; " + ", ".join(
            f"{c} is {' and '.join(dict.fromkeys(s[c].text for _, _, s in rows))}" for c in unlike
        )
    return about(
        numbers,
        "row printed twice",
        "; ".join(f"{c} {first[c].text}" for c in shared[:4]) + ("; ..." if len(shared) > 4 else ""),
        f"{'two' if len(rows) == 2 else len(rows)} different rows",
        words,
        UNRESOLVED,
        "Equal to the last digit although the calibration differs: an effect of nothing, or a copied row."
        if all("sample" in k[3] for _, k, _ in rows)
        else "One row was probably copied over another; as long as that stands, neither can be cited alone.",
        where=(f"Table {tables[0]}, " if len(tables) == 1 else "") + "; ".join(names),
        headline=f"{', '.join(names[1:])} has, digit for digit, the numbers of {names[0]}." if len(tables) > 1 else "",
    )


def _row_names(rows: list[tuple[str, tuple]]) -> list[str]:
    """Return the rows in words, by method: ``Table O LLaMA-3.1-8B-It 8/32 Taylor[1 sample; 5 samples]``."""
    variants_by_row: dict[tuple, list[str]] = {}
    for table, (model, sparsity, method, variant) in rows:
        variants_by_row.setdefault((f"Table {table}" if table else "", model, sparsity, method), []).append(variant)
    return [
        " ".join(filter(None, key[:3]))
        + " "
        + (row_name(key[3], variants[0]) if len(variants) == 1 else f"{key[3]}[{'; '.join(variants)}]")
        for key, variants in variants_by_row.items()
    ]


@cache
def rows() -> tuple[Row, ...]:
    """Return the scores by task of every row with enough scores, of all papers."""
    tables = [(paper, table) for paper in PAPERS for table in reported.tables(paper)]
    numbers = [n for table in tables if table != PER_CENTS for n in reported.numbers(*table) if n.column in TASKS]
    rows_by_table: dict[tuple, dict[str, Number]] = {}
    for number in numbers:
        rows_by_table.setdefault((number.paper, number.table, number.row), {})[TASKS[number.column]] = number
    return tuple(row for row in rows_by_table.values() if len(row) >= FEWEST)


def measured(row: Row) -> dict[str, tuple[float, float]]:
    """Return each task's score in percent, and its largest distance from the measured one.

    That is half a unit of the last digit that is no padding.
    """
    padded = padding(row.values())
    return {
        task: (100 / scale(number) * number.value, 100 / scale(number) * (number.half_unit + padded))
        for task, number in row.items()
    }


def agreeing(row: Mapping[str, tuple[float, float]], other: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the tasks in which two rows, as `measured`, have the same score, to the digits of the shorter print."""
    return [
        task
        for task, (value, near) in row.items()
        if task in other and abs(value - other[task][0]) <= max(near, other[task][1]) * (1 + 1e-6)
    ]


@cache
def copies() -> tuple[tuple[tuple[Row, Row], ...], Counter]:
    """Find rows of two papers and two models that agree in every score.

    Returns:
        Pairs (copy, source), the row with fewer digits as the copy; and of all pairs with enough scores in common, the
        number that agree in 0, 1, 2, ... scores, which shows how likely such a pair is by chance.
    """
    pairs, tally = [], Counter()
    scores = {id(row): measured(row) for row in rows()}
    for row, other in combinations(rows(), 2):
        (a, *_), (b, *_) = row.values(), other.values()
        shared = row.keys() & other.keys()
        if a.paper == b.paper or a.model == b.model or len(shared) < FEWEST:
            continue
        own, others = scores[id(row)], scores[id(other)]
        equal = agreeing(own, others)
        tally[len(equal)] += 1
        if len(equal) == len(shared):
            task = equal[0]
            pairs.append((other, row) if own[task][1] < others[task][1] else (row, other))
    return tuple(pairs), tally


def source(number: Number) -> list[Number]:
    """Return the numbers that other papers print for another model in this place of an otherwise equal row."""
    return [row[task] for copy, row in copies()[0] for task, own in copy.items() if own == number and task in row]


def elsewhere(paper: Paper) -> Iterator[Finding]:
    """Yield one finding for each row that other papers' tables print under another model."""
    pairs, tally = copies()
    for copy in {id(copy): copy for copy, _ in pairs if next(iter(copy.values())).paper == paper.name}.values():
        sources = [row for duplicate, row in pairs if duplicate is copy]
        tasks = [task for task in copy if task in sources[0]]
        own, other = (next(iter(row.values())) for row in (copy, sources[0]))
        tables = ", ".join(dict.fromkeys(row[tasks[0]].table for row in sources))
        label = " ".join(filter(None, (other.model, other.sparsity, row_name(other.method, other.variant))))
        most_equal = max((equal for equal in tally if equal < len(tasks)), default=0)
        yield about(
            list(copy.values()),
            "another model's row",
            "; ".join(f"{task} {copy[task].text}" for task in tasks),
            f"{PAPERS[other.paper]}'s Tables {tables}, {label}: "
            + "; ".join(f"{task} {sources[0][task].text}" for task in tasks),
            f"{len(tasks)} of {len(tasks)} scores agree to the digits printed. Of {tally.total()} pairs of rows of two "
            f"papers and two models with {FEWEST} scores or more in common, {len(pairs)} agree in all, the others in "
            f"{most_equal} at most",
            SLIP,
            f"The row is {other.model}'s with {other.sparsity} removed: no baseline for {own.model}.",
            where=place(own).rpartition(", ")[0],
        )

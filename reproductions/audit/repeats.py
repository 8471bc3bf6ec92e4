"""The same configuration printed twice with different numbers, and different configurations printed with the same ones."""

from __future__ import annotations

from collections.abc import Iterator

from reproductions import reported
from reproductions.audit.findings import PAPER_NAMES, UNRESOLVED, Finding, cells_of, group, place
from reproductions.reported import Number

# Rows of one configuration under several names: (paper, table, method, variant) -> (method, variant).
ALIASES = {
    ("linearpatch", "5", "Vanilla", ""): ("LLM-Streamline(None)", ""),
    ("linearpatch", "5", "+A", ""): ("LinearPatch", "S/L"),
    ("linearpatch", "5", "+FT", ""): ("LinearPatch", "L +FT, logits, KL"),
    ("linearpatch", "summary1", "LLM-Streamline", ""): ("LLM-Streamline(None)", ""),
    ("linearpatch", "summary1", "LinearPatch", ""): ("LinearPatch", "L"),
    ("linearpatch", "summary1", "LinearPatch + Distillation", ""): ("LinearPatch", "L +FT"),
}
# The same selection under two papers' names.
ACROSS = {"CosSim(BI)": "ShortGPT", "CosSim(CL)": "LLM-Streamline(None)", "Dense": "Dense"}
OURS = ("AVG", "Avg.")


def _tables(paper: str) -> list[str]:
    return [table for table in reported.tables(paper) if "text" not in table]


def _named(number: Number) -> list[tuple]:
    method, variant = ALIASES.get(
        (number.paper, number.table, number.method, number.variant), (number.method, number.variant)
    )
    column = "PPL AVG" if number.column == "AVG" and (number.paper, number.table) in PPL_TABLES else number.column
    return [(number.model, number.sparsity, method, v, column) for v in variant.split("/")]


PPL_TABLES = {("linearpatch", "3"), ("prunecomp", "1"), ("prunecomp", "A1"), ("prunecomp", "4")}


def findings() -> Iterator[Finding]:
    """Disagreements between tables of one paper, between papers, and rows that repeat."""
    for paper in PAPER_NAMES:
        yield from _between_tables(paper)
        yield from _repeated_rows(paper)
    yield from _between_papers()


def _between_tables(paper: str) -> Iterator[Finding]:
    seen: dict[tuple, Number] = {}
    pairs: dict[tuple, list[tuple[Number, Number]]] = {}
    for table in _tables(paper):
        for number in reported.numbers(paper, table):
            for key in _named(number):
                first = seen.setdefault(key, number)
                if first.table != table and _differ(first, number):
                    pair = pairs.setdefault((first.table, table, *first.row), [])
                    if (first, number) not in pair:
                        pair.append((first, number))
    for (one, other, *_), cells in pairs.items():
        yield _disagreement(
            paper, f"Table {one} and {other}, {place(cells[0][0], 'same row').partition(', ')[2]}", cells
        )


def _differ(a: Number, b: Number) -> bool:
    return abs(a.value - b.value) > (a.half_unit + b.half_unit) * (1 + 1e-6)


def _disagreement(paper: str, where: str, pairs: list[tuple[Number, Number]]) -> Finding:
    return Finding(
        paper,
        "printed twice, differently",
        where,
        "; ".join(f"{a.column} {a.text}" for a, _ in pairs),
        "; ".join(f"{b.column} {b.text}" for _, b in pairs),
        "the same configuration under the same protocol, printed in both places",
        UNRESOLVED,
        "Name the table when citing; differences of this size bound how well the numbers repeat.",
        cells_of([n for pair in pairs for n in pair]),
    )


def _between_papers() -> Iterator[Finding]:
    seen = {}
    for table in ("1", "11", "12"):
        for number in reported.numbers("linearpatch", table):
            for key in _named(number):
                seen.setdefault(key, number)
    pairs: dict[tuple, list] = {}
    for table in _tables("prunecomp"):
        for number in reported.numbers("prunecomp", table):
            if number.variant or number.method not in ACROSS or number.column == "RP":
                continue  # RP is defined differently
            for model, sparsity, method, _, column in _named(number):
                other = seen.get((model, sparsity, ACROSS[method], "", column))
                if other is not None and _differ(other, number):
                    pairs.setdefault((other.table, table, number.row), []).append((other, number))
    for (one, *_), cells in pairs.items():
        where = f"LinearPatch's Table {one} and {place(cells[0][1], 'same row')}"
        yield _disagreement("prunecomp", where, cells)


def _repeated_rows(paper: str) -> Iterator[Finding]:
    """Rows of one table that agree in every score though their model, sparsity or training differs."""
    for table in _tables(paper):
        rows = group(reported.numbers(paper, table))
        scores = {
            key: tuple((c, n.text) for c, n in row.items() if c not in ("Ratio", "layers") and not _is_setting(c))
            for key, row in rows.items()
        }
        items = [(key, score) for key, score in scores.items() if len(score) >= 3]
        for i, (key, score) in enumerate(items):
            for other, same in items[i + 1 :]:
                if score != same or key[:2] == other[:2] and key[2] != other[2]:
                    continue  # two methods may well choose the same layers
                numbers = [*rows[key].values(), *rows[other].values()]
                yield Finding(
                    paper,
                    "row printed twice",
                    f"Table {table}, {' '.join(filter(None, key))} and {' '.join(filter(None, other))}",
                    "; ".join(f"{c} {v}" for c, v in score[:4]) + ("; ..." if len(score) > 4 else ""),
                    "two different rows",
                    f"all {len(score)} scores agree to the last digit",
                    UNRESOLVED,
                    "One of the two rows was probably copied; neither can be cited alone.",
                    cells_of(numbers),
                )


def _is_setting(column: str) -> bool:
    return column.startswith(("removed", "GPU memory", "training time", "C", "L", "H", "I", "T")) and column in (
        *(f"removed {i}" for i in range(1, 20)),
        "GPU memory GB",
        "training time s",
    )

"""The papers' own arithmetic, checked: every finding follows from the transcribed numbers, none is listed by hand.

A finding keeps its name (``LP-1``): ``names.csv`` holds the names given so far, ``make audit`` adds new findings' names to
it, and the name of what is found no longer is not given again.
"""

import dataclasses
from functools import cache
from pathlib import Path

from common.utils import csv_rows
from reproductions.audit import laco, linearpatch, prunecomp, reassessing, repeats, scores, tables
from reproductions.audit.engine import KINDS, PREFIXES, Finding, merged

NAMES = Path(__file__).with_name("names.csv")
MODULES = (linearpatch, prunecomp, laco, reassessing)
CHECKS = (
    scores.derived,
    tables.ratios,
    tables.ordered,
    tables.above_dense,
    repeats.repeated,
    repeats.elsewhere,
    tables.listed,
    scores.impossible,
)
FIELDS = ("name", "paper", "kind", "where")


@cache
def names() -> dict[tuple[str, ...], str]:
    """Return the names of all findings so far, by (paper, kind, where), including those no longer found."""
    return {tuple(line[field] for field in FIELDS[1:]): line["name"] for line in csv_rows.read(NAMES)}


def key(finding: Finding) -> tuple[str, ...]:
    """Return the identity of a finding."""
    return finding.paper, finding.kind, finding.where


def questions(paper: str, table: str) -> dict[str, int]:
    """Return the number of test items of a table's columns, by label, where it is known."""
    sizes = [module.PAPER.questions for module in MODULES if module.PAPER.name == paper]
    return {label: n for pairs in sizes for tables, counts in pairs if table in tables for label, n in counts.items()}


@cache
def findings() -> tuple[Finding, ...]:
    """Return every finding, named, in the order of papers, kinds and tables; a new one gets its paper's next number."""
    checked = (f for module in MODULES for check in CHECKS for f in check(module.PAPER))
    all_findings = merged((*checked, *(f for module in MODULES for f in module.findings())))
    names_by_key, named = dict(names()), []
    for paper, prefix in PREFIXES.items():
        last = max((int(name.partition("-")[2]) for (p, *_), name in names_by_key.items() if p == paper), default=0)
        for finding in sorted((f for f in all_findings if f.paper == paper), key=lambda f: list(KINDS).index(f.kind)):
            if key(finding) not in names_by_key:
                last += 1
                names_by_key[key(finding)] = f"{prefix}-{last}"
            named.append(dataclasses.replace(finding, name=names_by_key[key(finding)]))
    return tuple(named)


@cache
def by_cell() -> dict[tuple, tuple[str, ...]]:
    """Return (paper, table, model, sparsity, row name, column) -> names of the findings about that cell."""
    names_by_cell: dict[tuple, tuple[str, ...]] = {}
    for finding in findings():
        for cell in finding.cells:
            names_by_cell[cell] = (*names_by_cell.get(cell, ()), finding.name)
    return names_by_cell

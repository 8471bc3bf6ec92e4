"""The papers' own arithmetic, checked: every finding follows from the transcribed numbers, none is listed by hand."""

from __future__ import annotations

import dataclasses
from functools import cache

from reproductions.audit import claims, counts, derived, laco, ratios, repeats
from reproductions.audit.findings import PREFIXES, Finding


@cache
def findings() -> tuple[Finding, ...]:
    """Every finding, named (``LP-1``) in the order of papers, checks and tables."""
    found = [f for check in (claims, derived, laco, ratios, repeats, counts) for f in check.findings()]
    named = []
    for paper, prefix in PREFIXES.items():
        mine = [f for f in found if f.paper == paper]
        named += [dataclasses.replace(f, name=f"{prefix}-{i}") for i, f in enumerate(mine, 1)]
    return tuple(named)


@cache
def by_cell() -> dict[tuple, tuple[str, ...]]:
    """(paper, table, model, sparsity, row name, column) -> names of the findings about that cell."""
    found: dict[tuple, tuple[str, ...]] = {}
    for finding in findings():
        for cell in finding.cells:
            found[cell] = (*found.get(cell, ()), finding.name)
    return found

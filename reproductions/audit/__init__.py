"""The papers' own arithmetic, checked: every finding follows from the transcribed numbers, none is listed by hand."""

from __future__ import annotations

import dataclasses
from functools import cache

from reproductions.audit import claims, counts, derived, laco, lists, order, ratios, reassessing, repeats
from reproductions.audit.findings import KINDS, PREFIXES, Finding, merged


@cache
def findings() -> tuple[Finding, ...]:
    """Every finding, named (``LP-1``) in the order of papers, kinds and tables."""
    checks = (claims, reassessing, derived, laco, ratios, order, repeats, lists, counts)
    found = merged(f for check in checks for f in check.findings())
    named = []
    for paper, prefix in PREFIXES.items():
        mine = sorted((f for f in found if f.paper == paper), key=lambda f: list(KINDS).index(f.kind))
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

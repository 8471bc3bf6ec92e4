"""Rows that two papers print under different models: what is compared there is not what the label says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations

from reproductions import reported
from reproductions.audit.findings import PAPER_NAMES, SLIP, Finding, cells_of, group, padding, place, scale
from reproductions.reported import Number, row_name

# One task under the papers' names.
TASKS = {"HeSw": "HellaSwag", "WG": "WinoGrande"}
TASKS |= {name: name for name in ("ARC-e", "ARC-c", "OpenbookQA", "BoolQ", "WSC", "CoPa", "MMLU", "CMMLU", "PIQA")}
TASKS |= {name: name for name in ("HellaSwag", "WinoGrande")}
SHARES = ("laco", "7")  # per cent of the dense model, not scores
FEWEST = 4  # scores in common: fewer may agree by chance

Row = dict[str, Number]


@cache
def rows() -> tuple[Row, ...]:
    """Task -> score of every row with enough scores, of all papers."""
    tables = [(paper, table) for paper in PAPER_NAMES for table in reported.tables(paper) if (paper, table) != SHARES]
    found = [row for each in tables for row in group(reported.numbers(*each)).values()]
    scores = [{TASKS[c]: n for c, n in row.items() if c in TASKS} for row in found]
    return tuple(row for row in scores if len(row) >= FEWEST)


def spread(row: Row, task: str) -> float:
    """How far a score may be from the one measured, in per cent: half its last digit, or of the last not padded."""
    return 100 / scale(row[task]) * (row[task].half_unit + padding(row.values()))


def agreeing(one: Row, other: Row) -> list[str]:
    """The tasks in which two rows have one score, as far as the shorter print goes."""
    per_cent = {
        task: [100 / scale(row[task]) * row[task].value for row in (one, other)] for task in one if task in other
    }
    return [
        task
        for task, (a, b) in per_cent.items()
        if abs(a - b) <= max(spread(one, task), spread(other, task)) * (1 + 1e-6)
    ]


@cache
def copies() -> tuple[tuple[tuple[Row, Row], ...], Counter]:
    """Pairs (copy, source) of rows of two papers and two models that agree in every score, the shorter print the copy.

    And of all pairs with enough scores in common, how many agree in how many: the chance of such a pair.
    """
    found, tally = [], Counter()
    for one, other in combinations(rows(), 2):
        (a, *_), (b, *_) = one.values(), other.values()
        both = one.keys() & other.keys()
        if a.paper == b.paper or a.model == b.model or len(both) < FEWEST:
            continue
        equal = agreeing(one, other)
        tally[len(equal)] += 1
        if len(equal) == len(both):
            task = equal[0]
            found.append((other, one) if spread(one, task) < spread(other, task) else (one, other))
    return tuple(found), tally


def source(number: Number) -> list[Number]:
    """What other papers print for another model in place of this number, in a row that is otherwise the same too."""
    return [
        theirs[task] for copy, theirs in copies()[0] for task, mine in copy.items() if mine == number and task in theirs
    ]


def findings() -> Iterator[Finding]:
    """One finding for each row that other papers' tables print under another model."""
    pairs, tally = copies()
    for copy in {id(copy): copy for copy, _ in pairs}.values():
        sources = [row for other, row in pairs if other is copy]
        tasks = [task for task in copy if task in sources[0]]
        (mine, *_), (theirs, *_) = copy.values(), sources[0].values()
        tables = ", ".join(dict.fromkeys(row[tasks[0]].table for row in sources))
        label = " ".join(filter(None, (theirs.model, theirs.sparsity, row_name(theirs.method, theirs.variant))))
        paper = PAPER_NAMES[theirs.paper]
        most = max((equal for equal in tally if equal < len(tasks)), default=0)
        yield Finding(
            mine.paper,
            "another model's row",
            place(mine).rpartition(", ")[0],
            "; ".join(f"{task} {copy[task].text}" for task in tasks),
            f"{paper}'s Tables {tables}, {label}: " + "; ".join(f"{task} {sources[0][task].text}" for task in tasks),
            f"{len(tasks)} of {len(tasks)} scores agree to the digits printed. Of {tally.total()} pairs of rows of two "
            f"papers and two models with {FEWEST} scores or more in common, {len(pairs)} agree in all, the others in "
            f"{most} at most",
            SLIP,
            f"The row is {theirs.model}'s with {theirs.sparsity} removed: no baseline for {mine.model}.",
            cells_of(copy.values()),
        )

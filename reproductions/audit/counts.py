"""Accuracies that are no k/n of their test set, and standard errors that do not fit the accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterator

from reproductions import reported
from reproductions.audit.findings import UNRESOLVED, Finding, agrees, cells_of, group, place, shown
from reproductions.reported import Number

LM_EVAL = {
    "ARC-c": 1172,
    "ARC-e": 2376,
    "BoolQ": 3270,
    "PIQA": 1838,
    "WG": 1267,
    "WSC": 273,
    "Race-h": 1045,
    "CoPa": 100,
}
REASSESSING = {"PIQA": 1838, "OpenbookQA": 500, "ARC-e": 2376, "ARC-c": 1172, "WinoGrande": 1267}
LACO = {"CHID": 202, "WSC_P": 104, "WSC_G": 104, "CSQA": 1221, "BoolQ": 3270, "PIQA": 1838}
LACO |= {"RaceH": 3498, "RaceM": 1436, "C3": 1825}
# (paper, tables) -> test-set sizes. Rows a paper took over from elsewhere carry marks and are left out.
SETS = [
    ("linearpatch", ("1", "2", "5", "14"), LM_EVAL),
    ("prunecomp", ("2", "A2", "A5"), LM_EVAL),
    ("laco", ("1", "9", "10"), LACO),
    ("reassessing", ("1", "2", "4", "7", "A", "C", "E", "F", "K", "L", "M", "N", "O", "P"), REASSESSING),
]
FOREIGN = ("*", "†", "‡")


def possible(number: Number, n: int) -> bool:
    """Whether some k of n questions gives the printed accuracy (percent, or a share below 1)."""
    scale = 1 if "." in number.text and number.value <= 1 else 100
    nearest = round(number.value / scale * n)
    return any(agrees(number, scale * k / n, 0) for k in (nearest - 1, nearest, nearest + 1))


def findings() -> Iterator[Finding]:
    """Cells that no number of right answers gives; a row with several is one finding."""
    for paper, tables, sizes in SETS:
        for table in tables:
            if table not in reported.tables(paper):
                continue
            for key, row in group(reported.numbers(paper, table)).items():
                if any(mark in key[2] for mark in FOREIGN) or (paper == "laco" and key[2] == "Dense"):
                    continue
                wrong = [n for c, n in row.items() if c in sizes and not possible(n, sizes[c])]
                if wrong:
                    yield _finding(paper, row, wrong, sizes)
                yield from _errors(row, sizes)


def _finding(paper: str, row: dict, wrong: list[Number], sizes: dict) -> Finding:
    words, near = [], []
    for number in wrong:
        n = sizes[number.column]
        scale = 1 if number.value <= 1 else 100
        k = math.floor(number.value / scale * n)
        around = [shown(scale * (k + i) / n, number) for i in (0, 1)]
        same = [c for c, other in row.items() if other.text == number.text and c != number.column]
        echo = f"; it repeats the row's {same[0]}" if same else ""
        words.append(f"{number.column}: {k}/{n} = {around[0]}, {k + 1}/{n} = {around[1]}{echo}")
        near.append(f"{number.column} {' or '.join(around)}")
    if len(wrong) == 2 and all(possible(a, sizes[b.column]) for a, b in (wrong, wrong[::-1])):
        words.append("each fits the other's number of questions: the two are probably exchanged")
    return Finding(
        paper,
        "no k of n",
        place(wrong[0], ", ".join(n.column for n in wrong)),
        "; ".join(f"{n.column} {n.text}" for n in wrong),
        "; ".join(near),
        "; ".join(words),
        UNRESOLVED,
        "A misprint, another test set, or an average over runs: the score cannot have come from one pass over it.",
        cells_of(wrong),
    )


def _errors(row: dict, sizes: dict) -> Iterator[Finding]:
    """Standard errors as lm-eval computes them: sqrt(p (1 - p) / (n - 1)); a row with several is one finding."""
    wrong = []
    for column, number in row.items():
        if number.stderr is None or column not in sizes or not 0 < number.value < 1:
            continue
        expected = math.sqrt(number.value * (1 - number.value) / (sizes[column] - 1))
        if abs(expected - number.stderr) > 0.0001:
            wrong.append((number, expected))
    if wrong:
        yield Finding(
            wrong[0][0].paper,
            "standard error",
            place(wrong[0][0], ", ".join(n.column for n, _ in wrong)),
            "; ".join(f"{n.column} {n.text} ± {n.stderr:.4f}" for n, _ in wrong),
            "; ".join(f"± {expected:.4f}" for _, expected in wrong),
            "; ".join(f"sqrt({n.text} * (1 - {n.text}) / ({sizes[n.column]} - 1)) = {e:.4f}" for n, e in wrong),
            UNRESOLVED,
            "Accuracy or error is misprinted.",
            cells_of([n for n, _ in wrong]),
        )

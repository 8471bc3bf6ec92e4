"""Accuracies that are no k/n of their test set, and standard errors that do not fit the accuracy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace

from common.evaluation.scores import MMLU_QUESTIONS
from reproductions import reported
from reproductions.audit.findings import (
    SLIP,
    UNRESOLVED,
    Finding,
    agrees,
    cells_of,
    decimals,
    group,
    padding,
    place,
    scale,
    shown,
)
from reproductions.reported import Number

LM_EVAL = {
    "ARC-c": 1172,
    "ARC-e": 2376,
    "BoolQ": 3270,
    "HeSw": 10042,
    "PIQA": 1838,
    "WG": 1267,
    "WSC": 273,
    "Race-h": 1045,
    "CoPa": 100,
}
REASSESSING = {"PIQA": 1838, "HellaSwag": 10042, "OpenbookQA": 500, "ARC-e": 2376, "ARC-c": 1172, "WinoGrande": 1267}
REASSESSING |= {"MMLU": 14042, "CMMLU": 11582, "HumanEval(Pass@1)": 164}
LACO = {"CHID": 202, "WSC_P": 104, "WSC_G": 104, "CSQA": 1221, "BoolQ": 3270, "PIQA": 1838}
LACO |= {"RaceH": 3498, "RaceM": 1436, "C3": 1825}
GROUPS = dict(zip(("STEM", "Humanities", "Social", "Other"), MMLU_QUESTIONS.values(), strict=True))
# (paper, tables) -> test-set sizes. Rows a paper took over from elsewhere carry marks and are left out.
SETS = [
    ("linearpatch", ("1", "2", "5", "14"), LM_EVAL),
    ("linearpatch", ("12", "15"), GROUPS),
    ("prunecomp", ("2", "A2", "A5"), LM_EVAL),
    ("prunecomp", ("3",), GROUPS),
    ("laco", ("1", "9", "10"), LACO),
    ("reassessing", (*"124567", *"ABCEFHIKLMNOP"), REASSESSING),
]
FOREIGN = ("*", "†", "‡")
POOLED = ("MMLU", "CMMLU")  # their errors are put together from the subjects', which no table prints


def possible(number: Number, n: int, slack: float = 0) -> bool:
    """Whether some k of n questions gives the printed accuracy, or one within ``slack`` of it."""
    nearest = round(number.value / scale(number) * n)
    return any(agrees(number, scale(number) * k / n, slack) for k in (nearest - 1, nearest, nearest + 1))


def findings() -> Iterator[Finding]:
    """Cells that no number of right answers gives; a row with several is one finding."""
    for paper, tables, sizes in SETS:
        for table in tables:
            if table not in reported.tables(paper):
                continue
            rows = group(reported.numbers(paper, table))
            for key, row in rows.items():
                if any(mark in key[2] for mark in FOREIGN) or (paper == "laco" and key[2] == "Dense"):
                    continue
                wider = padding(n for c, n in row.items() if c in sizes)
                wrong = [n for c, n in row.items() if c in sizes and not possible(n, sizes[c], wider)]
                if wrong:
                    yield _finding(paper, row, wrong, sizes)
                yield from _errors(row, sizes)
            if sizes is GROUPS:
                yield from _lost_digits(rows)


def _finding(paper: str, row: dict, wrong: list[Number], sizes: dict) -> Finding:
    words, near = [], []
    for number in wrong:
        n = sizes[number.column]
        k = math.floor(number.value / scale(number) * n)
        around = [shown(scale(number) * (k + i) / n, number) for i in (0, 1)]
        same = [c for c, other in row.items() if other.text == number.text and c != number.column]
        echo = f"; it repeats the row's {same[0]}" if same else ""
        words.append(f"{number.column}: {k}/{n} = {around[0]}, {k + 1}/{n} = {around[1]}{echo}")
        near.append(f"{number.column} {' or '.join(around)}")
    if sizes is not GROUPS and len(wrong) == 2 and all(possible(a, sizes[b.column]) for a, b in (wrong, wrong[::-1])):
        words.append("each fits the other's number of questions: the two are probably exchanged")
    # A group of MMLU may be put together from its subjects' accuracies after those were rounded.
    rounded = sizes is GROUPS and all(possible(n, sizes[n.column], n.half_unit) for n in wrong)
    return Finding(
        paper,
        "no k of n",
        place(wrong[0], ", ".join(n.column for n in wrong)),
        "; ".join(f"{n.column} {n.text}" for n in wrong),
        "; ".join(near),
        "; ".join(words),
        UNRESOLVED,
        "A mean of the subjects' accuracies, each rounded to the digits printed, can be this: harmless."
        if rounded
        else "A misprint, another test set, or an average over runs: the score cannot have come from one pass over it.",
        cells_of(wrong),
    )


def _lost_digits(rows: dict[tuple, dict[str, Number]]) -> Iterator[Finding]:
    """A group of MMLU with one digit less than its column: which digits the row's own total leaves, if not a zero."""
    usual = {c: statistics.mode(decimals(r[c]) for r in rows.values() if c in r) for c in (*GROUPS, "Weighted AVG")}
    for row in rows.values():
        short = [n for c, n in row.items() if c in GROUPS and decimals(n) == usual[c] - 1]
        others = [n for c, n in row.items() if c in GROUPS and n not in short]
        if len(short) != 1 or len(others) < len(GROUPS) - 1 or not all(possible(n, GROUPS[n.column]) for n in others):
            continue
        number, total = short[0], row["Weighted AVG"]
        n = GROUPS[number.column]
        full = [replace(number, text=f"{number.text}{digit}") for digit in range(10)]
        known = [round(other.value / 100 * GROUPS[other.column]) for other in others]
        fitting = [
            (made, k)
            for made in full
            for k in {math.floor(made.value / 100 * n), math.ceil(made.value / 100 * n)}
            if agrees(made, 100 * k / n, 0) and agrees(total, 100 * (sum(known) + k) / sum(GROUPS.values()), 0)
        ]
        if not fitting or full[0] in [made for made, _ in fitting]:
            continue
        yield Finding(
            number.paper,
            "lost digit",
            place(number),
            number.text,
            " or ".join(made.text for made, _ in fitting),
            "; ".join(
                f"{' + '.join(map(str, known))} + {k} of {sum(GROUPS.values())} are {total.text}, and {k}/{n} = {made.text}"
                for made, k in fitting
            )
            + f"; {full[0].text} is "
            + ("another sum" if possible(full[0], n) else f"no k/{n}"),
            SLIP,
            f"The row's {total.column} is right.",
            cells_of([number]),
        )


def _errors(row: dict, sizes: dict) -> Iterator[Finding]:
    """Standard errors as lm-eval computes them: sqrt(p (1 - p) / (n - 1)); a row with several is one finding."""
    wrong = []
    for column, number in row.items():
        if number.stderr is None or column not in sizes or column in POOLED or not 0 < number.value < 1:
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

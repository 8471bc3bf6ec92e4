"""Columns that follow from others in their own row or from a dense row: averages, retained performance, weighted MMLU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from common.evaluation.scores import MMLU_QUESTIONS
from reproductions import reported
from reproductions.audit import elsewhere
from reproductions.audit.findings import (
    EXTRACTION,
    PAPER_NAMES,
    SLIP,
    UNRESOLVED,
    Finding,
    agrees,
    cells_of,
    group,
    mean_slack,
    place,
    shown,
)
from reproductions.reported import Number

LM_EVAL_QA = ("ARC-c", "ARC-e", "BoolQ", "HeSw", "PIQA", "WG", "WSC", "Race-h", "CoPa")
PERPLEXITIES = ("WIKI-2", "C4", "PTB")
MMLU = ("STEM", "Humanities", "Social", "Other")
REASSESSING = ("PIQA", "HellaSwag", "OpenbookQA", "ARC-e", "ARC-c", "MMLU", "CMMLU", "WinoGrande")
LACO = {
    "Reas.": ("CMNLI", "HeSw", "PIQA"),
    "Lang.": ("CHID", "WSC_P", "WSC_G"),
    "Know.": ("CSQA", "BoolQ"),
    "Exam.": ("MMLU", "CMMLU"),
    "Unde.": ("RaceH", "RaceM", "XSum", "C3"),
}
LACO_ALL = tuple(column for columns in LACO.values() for column in columns)

Row = Mapping[str, Number]


@dataclass(frozen=True)
class Rule:
    """How a column follows from a row and the dense row: the value, what rounding allows, and the sum in words."""

    paper: str
    tables: tuple[str, ...]
    column: str
    compute: Callable[[Row, Row], tuple[float, float, str, list[Number]] | None]


def _mean(columns: tuple[str, ...], *, all_of_them: bool = True):
    def compute(row: Row, dense: Row):
        inputs = [row[c] for c in columns if c in row]
        if not inputs or (all_of_them and len(inputs) < len(columns)):
            return None
        value = sum(n.value for n in inputs) / len(inputs)
        words = f"({' + '.join(n.text for n in inputs)}) / {len(inputs)}"
        return value, mean_slack(inputs), words, inputs

    return compute


def _weighted(row: Row, dense: Row):
    inputs = [row[c] for c in MMLU if c in row]
    if len(inputs) < len(MMLU):
        return None
    weights = list(MMLU_QUESTIONS.values())
    value = sum(w * n.value for w, n in zip(weights, inputs, strict=True)) / sum(weights)
    words = " + ".join(f"{w}·{n.text}" for w, n in zip(weights, inputs, strict=True))
    return value, mean_slack(inputs), f"({words}) / {sum(weights)}", inputs


def _mean_of_ratios(row: Row, dense: Row):
    """RP of LinearPatch: the mean of the tasks' ratios to the dense model."""
    if any(c not in row or c not in dense for c in LM_EVAL_QA):
        return None
    pairs = [(row[c], dense[c]) for c in LM_EVAL_QA]
    value = 100 * sum(a.value / b.value for a, b in pairs) / len(pairs)
    slack = 100 * sum((a.half_unit + a.value / b.value * b.half_unit) / b.value for a, b in pairs) / len(pairs)
    return value, slack, "mean over the nine tasks of pruned / dense", [a for a, _ in pairs]


def _ratio_of_means(row: Row, dense: Row):
    """RP of Prune&Comp: the ratio of the average to the dense average."""
    if any(c not in row or c not in dense for c in LM_EVAL_QA):
        return None
    ours = [row[c] for c in LM_EVAL_QA]
    theirs = [dense[c] for c in LM_EVAL_QA]
    top, bottom = sum(n.value for n in ours), sum(n.value for n in theirs)
    slack = 100 * 9 * (mean_slack(ours) + top / bottom * mean_slack(theirs)) / bottom
    return 100 * top / bottom, slack, f"({top:.2f} / 9) / ({bottom:.2f} / 9)", ours


RULES = (
    Rule("linearpatch", ("1", "2", "5", "14"), "AVG", _mean(LM_EVAL_QA)),
    Rule("linearpatch", ("1", "2", "5", "14"), "RP", _mean_of_ratios),
    Rule("linearpatch", ("4", "5", "11", "13"), "PPL AVG", _mean(PERPLEXITIES)),
    Rule("linearpatch", ("3",), "AVG", _mean(PERPLEXITIES)),
    Rule("linearpatch", ("12", "15"), "Weighted AVG", _weighted),
    Rule("prunecomp", ("1", "A1", "4"), "AVG", _mean(PERPLEXITIES)),
    Rule("prunecomp", ("2", "A2", "A5"), "AVG", _mean(LM_EVAL_QA)),
    Rule("prunecomp", ("2", "A2"), "RP", _ratio_of_means),
    Rule("prunecomp", ("3",), "Weighted AVG", _weighted),
    *(
        Rule("reassessing", (table,), "Avg.", _mean(REASSESSING, all_of_them=False))
        for table in ("1", "2", "4", "5", "6", "7", "A", "B", "C", "E", "F", "K", "L", "M", "N", "O", "P")
    ),
    Rule(
        "reassessing",
        ("H",),
        "Avg.",
        _mean(("MMLU", "PIQA", "OpenbookQA", "WinoGrande", "HellaSwag", "ARC-c")),
    ),
)


def dense_row(rows: Mapping[tuple, Row], model: str) -> Row:
    """The unpruned model's row, or nothing."""
    for (name, _, method, _), row in rows.items():
        if name == model and method in ("Dense", "Dense*"):
            return row
    return {}


def _echo(wrong: Number, row: Row) -> str:
    """Whether a derived cell merely repeats another cell of its row."""
    same = [c for c, n in row.items() if c != wrong.column and n.text == wrong.text]
    return f" The printed value repeats the row's {same[0]}." if same else ""


def _missing(rule: Rule, row: Row, wrong: Number, rows: list[Row]) -> str:
    """Whether one score that the text at hand has lost would explain an average over the others."""
    usual = statistics.mode(tuple(c for c in r if c != rule.column) for r in rows if rule.column in r)
    lost = [c for c in usual if c not in row]
    if len(lost) != 1:
        return ""
    needed = wrong.value * len(usual) - sum(row[c].value for c in usual if c in row)
    printed = [r[lost[0]].value for r in rows if lost[0] in r]
    if not min(printed) <= needed <= max(printed):
        return ""
    return f" The text has lost the row's {lost[0]}: with {shown(needed, wrong)} the printed average is right."


def _suspect(rule: Rule, row: Row, dense: Row, wrong: Number, inputs: list[Number], near: list[Row]) -> str:
    """Which single input, misprinted in one digit or copied from the row above or below, would explain the printed value.

    Only what few others explain as well, and what is in line with the same selection's rows elsewhere in the paper.
    """
    if sources := [other for number in inputs for other in elsewhere.source(number)]:
        first = [n for n in sources if n.table == sources[0].table]
        where = f"{PAPER_NAMES[first[0].paper]}'s Table {first[0].table} ({first[0].model} {first[0].sparsity})"
        return f" The cells are right: {where} has {', '.join(f'{n.column} {n.text}' for n in first)}."
    base = rule.compute(row, dense)[0]
    found, printed_elsewhere = [], []
    for number in inputs:
        slope = rule.compute({**row, number.column: _moved(number, 1.0)}, dense)[0] - base
        if not slope:
            continue
        needed = number.value + (wrong.value - base) / slope
        reach = (wrong.half_unit + mean_slack(inputs)) / abs(slope)
        others = _siblings(number)
        misprints = [t for t in _around(needed, reach, number) if _misprint(t, number.text)]
        known = [t for t in misprints if t in {n.text for n in others}]
        if known:
            printed_elsewhere.append(
                f"{number.column} {known[0]}, printed elsewhere, in place of {number.text} would make it right"
            )
        if not _in_line(number, needed, others):
            continue
        if misprints:
            found.append(
                f"{number.column} {misprints[0]} in place of {number.text}, one misprint away, would make it right"
            )
        elif any(other.get(number.column) and other[number.column].text == number.text for other in near):
            about = shown(needed, number)
            found.append(f"{number.column} {number.text} repeats the next row's; about {about} would make it right")
    found = printed_elsewhere or found
    return f" {'; '.join(found)}." if 0 < len(found) <= 2 else ""


def _siblings(number: Number) -> list[Number]:
    """What other rows of the paper print in this column for the same model and selection."""
    tables = [table for table in reported.tables(number.paper) if "text" not in table]
    return [
        n
        for table in tables
        for n in reported.numbers(number.paper, table)
        if (n.model, n.sparsity, n.method, n.column) == (number.model, number.sparsity, number.method, number.column)
        and (table, n.row) != (number.table, number.row)
    ]


def _in_line(number: Number, needed: float, others: list[Number]) -> bool:
    """Whether a value is nearer than the printed one to those of the same model and selection, or close to them."""
    if not others:
        return 0 <= needed <= (100 if number.value > 1 else 1) and abs(needed - number.value) < 0.2 * number.value
    middle = statistics.median(n.value for n in others)
    return abs(needed - middle) <= max(0.02 * middle, abs(number.value - middle) / 2)


def _around(needed: float, reach: float, like: Number) -> Iterator[str]:
    """The numbers with the digits of ``like`` within reach, nearest first."""
    unit = 2 * like.half_unit
    for step in sorted(range(-int(reach / unit) - 1, int(reach / unit) + 2), key=abs):
        value = needed + step * unit
        if abs(value - needed) <= reach + unit / 2:
            yield shown(value, like)


def _misprint(a: str, b: str) -> bool:
    """Whether one digit, or the order of neighbouring digits, tells the two apart."""
    if len(a) != len(b) or a == b:
        return False
    different = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    adjacent = different[-1] - different[0] == len(different) - 1
    return len(different) == 1 or adjacent and len(different) <= 3 and sorted(a) == sorted(b)


def _moved(number: Number, by: float) -> Number:
    return Number(**{**number.__dict__, "text": repr(number.value + by)})


def findings() -> Iterator[Finding]:
    """Every derived column that its own inputs contradict."""
    for rule in RULES:
        for table in rule.tables:
            if table not in reported.tables(rule.paper):
                continue
            rows = group(reported.numbers(rule.paper, table))
            ordered = list(rows.values())
            for position, (key, row) in enumerate(rows.items()):
                if rule.column not in row:
                    continue
                dense = dense_row(rows, key[0])
                computed = rule.compute(row, dense)
                if computed is None or agrees(row[rule.column], computed[0], computed[1]):
                    continue
                value, slack, words, inputs = computed
                wrong = row[rule.column]
                near = ordered[max(position - 1, 0) : position] + ordered[position + 1 : position + 2]
                missing = _missing(rule, row, wrong, list(rows.values()))
                hints = missing or _echo(wrong, row) + _suspect(rule, row, dense, wrong, inputs, near)
                small = abs(wrong.value - value) <= 3 * (slack + wrong.half_unit)
                yield Finding(
                    paper=rule.paper,
                    kind="derived column",
                    where=place(wrong),
                    printed=wrong.text,
                    recomputed=shown(value, wrong),
                    arithmetic=f"{words} = {shown(value, wrong, 1)}.{hints}",
                    verdict=EXTRACTION if missing else UNRESOLVED if hints and "cells are right" not in hints else SLIP,
                    meaning="A few steps of rounding: harmless."
                    if small
                    else "Cite the recomputed value, or the cells.",
                    cells=cells_of([wrong]),
                )

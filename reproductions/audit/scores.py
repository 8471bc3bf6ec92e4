"""A row by itself: columns that follow from others, accuracies that are no k/n, standard errors that do not fit."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from reproductions.audit import repeats
from reproductions.audit.engine import (
    EXTRACTION,
    MMLU,
    SLIP,
    UNRESOLVED,
    Computed,
    Finding,
    Paper,
    Row,
    Rule,
    about,
    agrees,
    decimals,
    group,
    mean_slack,
    padding,
    scale,
    shown,
)
from reproductions.spec import reported
from reproductions.spec.registry import PAPERS
from reproductions.spec.reported import Number

POOLED = ("MMLU", "CMMLU")  # their errors are put together from the subjects', which no table prints


def mean(columns: Iterable[str]) -> Callable[[Row, Row], Computed]:
    """Return the rule of a plain mean over those of these columns that a row has."""

    def compute(row: Row, dense: Row) -> Computed:
        inputs = [row[c] for c in columns if c in row]
        value = sum(n.value for n in inputs) / len(inputs)
        words = f"({' + '.join(n.text for n in inputs)}) / {len(inputs)}"
        return value, mean_slack(inputs), words, inputs

    return compute


def weighted(row: Row, dense: Row) -> Computed:
    """Return the mean of MMLU's groups, weighted by their numbers of items."""
    inputs = [row[c] for c in MMLU]
    weights = list(MMLU.values())
    value = sum(w * n.value for w, n in zip(weights, inputs, strict=True)) / sum(weights)
    words = " + ".join(f"{w}·{n.text}" for w, n in zip(weights, inputs, strict=True))
    return value, mean_slack(inputs), f"({words}) / {sum(weights)}", inputs


def dense_row(rows: Mapping[tuple, Row], model: str) -> Row:
    """Return the original model's row, or {}."""
    for (name, _, method, _), row in rows.items():
        if name == model and method in ("Dense", "Dense*"):
            return row
    return {}


def derived(paper: Paper) -> Iterator[Finding]:
    """Yield every derived column that its own inputs contradict."""
    for rule in paper.rules:
        for table in rule.tables:
            rows = group(reported.numbers(paper.name, table))
            ordered = list(rows.values())
            for position, (key, row) in enumerate(rows.items()):
                if rule.column not in row:
                    continue
                dense = dense_row(rows, key[0])
                computed = rule.compute(row, dense)
                if agrees(row[rule.column], computed[0], computed[1]):
                    continue
                near = ordered[max(position - 1, 0) : position] + ordered[position + 1 : position + 2]
                yield _contradiction(rule, row, dense, computed, ordered, near)


def _contradiction(rule: Rule, row: Row, dense: Row, computed: Computed, rows: list[Row], near: list[Row]) -> Finding:
    value, slack, words, inputs = computed
    wrong = row[rule.column]
    missing, confirmed = _missing(rule, row, wrong, rows), _confirmed(inputs)
    hints = missing or confirmed or _echo(wrong, row) + _suspect(rule, row, dense, wrong, inputs, near)
    small = abs(wrong.value - value) <= 3 * (slack + wrong.half_unit)
    return about(
        [wrong],
        "derived column",
        wrong.text,
        shown(value, wrong),
        f"{words} = {shown(value, wrong, 1)}.{hints}",
        EXTRACTION if missing else UNRESOLVED if hints and not confirmed else SLIP,
        "A few steps of rounding: harmless." if small else "Cite the recomputed value, or the cells.",
    )


def _confirmed(inputs: list[Number]) -> str:
    """Return whether another paper prints the row's scores too, so that not they are misprinted."""
    sources = [other for number in inputs for other in repeats.source(number)]
    same_table = [n for n in sources if n.table == sources[0].table]
    if not same_table:
        return ""
    first = same_table[0]
    where = f"{PAPERS[first.paper]}'s Table {first.table} ({first.model} {first.sparsity})"
    return f" The cells are right: {where} has {', '.join(f'{n.column} {n.text}' for n in same_table)}."


def _echo(wrong: Number, row: Row) -> str:
    """Return whether a derived cell merely repeats another cell of its row."""
    twins = [c for c, n in row.items() if c != wrong.column and n.text == wrong.text]
    return f" The printed value repeats the row's {twins[0]}." if twins else ""


def _missing(rule: Rule, row: Row, wrong: Number, rows: list[Row]) -> str:
    """Return whether one score that the text at hand has lost would explain an average over the others."""
    usual = statistics.mode(tuple(c for c in r if c != rule.column) for r in rows if rule.column in r)
    lost = [c for c in usual if c not in row]
    if len(lost) != 1:
        return ""
    needed = wrong.value * len(usual) - sum(row[c].value for c in usual if c in row)
    return f" The text has lost the row's {lost[0]}: with {shown(needed, wrong)} the printed average is right."


def _suspect(rule: Rule, row: Row, dense: Row, wrong: Number, inputs: list[Number], near: list[Row]) -> str:
    """Return the single input that, misprinted in a digit or copied from a neighbouring row, explains the value.

    Only what few others explain as well, and what is in line with the same selection's rows elsewhere in the paper.
    """
    base = rule.compute(row, dense)[0]
    likely, printed_elsewhere = [], []
    for number in inputs:
        slope = rule.compute({**row, number.column: _moved(number, 1.0)}, dense)[0] - base
        needed = number.value + (wrong.value - base) / slope
        reach = (wrong.half_unit + mean_slack(inputs)) / abs(slope)
        others = _siblings(number)
        misprints = [t for t in _around(needed, reach, number) if _misprint(t, number.text)]
        seen_elsewhere = [t for t in misprints if t in {n.text for n in others}]
        if seen_elsewhere:
            printed_elsewhere.append(
                f"{number.column} {seen_elsewhere[0]}, printed elsewhere, in place of {number.text} would make it right"
            )
        if not _in_line(number, needed, others):
            continue
        if misprints:
            likely.append(
                f"{number.column} {misprints[0]} in place of {number.text}, one misprint away, would make it right"
            )
        elif any(other.get(number.column) and other[number.column].text == number.text for other in near):
            about = shown(needed, number)
            likely.append(f"{number.column} {number.text} repeats the next row's; about {about} would make it right")
    likely = printed_elsewhere or likely
    return f" {'; '.join(likely)}." if 0 < len(likely) <= 2 else ""


def _siblings(number: Number) -> list[Number]:
    """Return what other rows of the paper print in this column for the same model and selection."""
    tables = [table for table in reported.tables(number.paper) if "text" not in table]
    return [
        n
        for table in tables
        for n in reported.numbers(number.paper, table)
        if (n.model, n.sparsity, n.method, n.column) == (number.model, number.sparsity, number.method, number.column)
        and (table, n.row) != (number.table, number.row)
    ]


def _in_line(number: Number, needed: float, others: list[Number]) -> bool:
    """Return whether a value is nearer than the printed one to those of the same model and selection, or close to them."""
    if not others:
        return 0 <= needed <= (100 if number.value > 1 else 1) and abs(needed - number.value) < 0.2 * number.value
    middle = statistics.median(n.value for n in others)
    return abs(needed - middle) <= max(0.02 * middle, abs(number.value - middle) / 2)


def _around(needed: float, reach: float, like: Number) -> Iterator[str]:
    """Yield the numbers with the digits of ``like`` within reach, nearest first."""
    unit = 2 * like.half_unit
    for step in sorted(range(-int(reach / unit) - 1, int(reach / unit) + 2), key=abs):
        value = needed + step * unit
        if abs(value - needed) <= reach + unit / 2:
            yield shown(value, like)


def _misprint(a: str, b: str) -> bool:
    """Return whether one digit, or the order of neighbouring digits, tells the two apart."""
    if len(a) != len(b) or a == b:
        return False
    different = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    adjacent = different[-1] - different[0] == len(different) - 1
    return len(different) == 1 or adjacent and len(different) <= 3 and sorted(a) == sorted(b)


def _moved(number: Number, by: float) -> Number:
    return Number(**{**number.__dict__, "text": repr(number.value + by)})


def possible(number: Number, n: int, slack: float = 0) -> bool:
    """Return whether some k of n questions gives the printed accuracy, or one within ``slack`` of it."""
    nearest = round(number.value / scale(number) * n)
    return any(agrees(number, scale(number) * k / n, slack) for k in (nearest - 1, nearest, nearest + 1))


def impossible(paper: Paper) -> Iterator[Finding]:
    """Yield cells that no number of correct answers gives, or that do not match their standard error.

    A row with several such cells is one finding.
    """
    for tables, sizes in paper.questions:
        for table in tables:
            rows = group(reported.numbers(paper.name, table))
            for key, row in rows.items():
                if any(mark in key[2] for mark in paper.foreign):
                    continue
                wider = padding(n for c, n in row.items() if c in sizes)
                wrong = [n for c, n in row.items() if c in sizes and not possible(n, sizes[c], wider)]
                if wrong:
                    yield _no_count(row, wrong, sizes)
                yield from _errors(row, sizes)
            if sizes is MMLU:
                yield from _lost_digits(rows)


def _no_count(row: Row, wrong: list[Number], sizes: dict) -> Finding:
    words, near = [], []
    for number in wrong:
        n = sizes[number.column]
        k = math.floor(number.value / scale(number) * n)
        around = [shown(scale(number) * (k + i) / n, number) for i in (0, 1)]
        twins = [c for c, other in row.items() if other.text == number.text and c != number.column]
        echo = f"; it repeats the row's {twins[0]}" if twins else ""
        words.append(f"{number.column}: {k}/{n} = {around[0]}, {k + 1}/{n} = {around[1]}{echo}")
        near.append(f"{number.column} {' or '.join(around)}")
    if sizes is not MMLU and len(wrong) == 2 and all(possible(a, sizes[b.column]) for a, b in (wrong, wrong[::-1])):
        words.append("each fits the other's number of questions: the two are probably exchanged")
    # A group of MMLU may be put together from its subjects' accuracies after those were rounded.
    rounded = sizes is MMLU and all(possible(n, sizes[n.column], n.half_unit) for n in wrong)
    return about(
        wrong,
        "no k of n",
        "; ".join(f"{n.column} {n.text}" for n in wrong),
        "; ".join(near),
        "; ".join(words),
        UNRESOLVED,
        "A mean of the subjects' accuracies, each rounded to the digits printed, can be this: harmless."
        if rounded
        else "A misprint, another test set, or an average over runs: the score cannot have come from one pass over it.",
    )


def _lost_digits(rows: dict[tuple, dict[str, Number]]) -> Iterator[Finding]:
    """Yield a group of MMLU that lost a digit against its column, with the digits that the row's total leaves."""
    usual = {c: statistics.mode(decimals(r[c]) for r in rows.values() if c in r) for c in (*MMLU, "Weighted AVG")}
    for row in rows.values():
        short = [n for c, n in row.items() if c in MMLU and decimals(n) == usual[c] - 1]
        rest = [n for c, n in row.items() if c in MMLU and n not in short]
        if len(short) != 1 or len(rest) < len(MMLU) - 1 or not all(possible(n, MMLU[n.column]) for n in rest):
            continue
        number, total = short[0], row["Weighted AVG"]
        n = MMLU[number.column]
        full = [replace(number, text=f"{number.text}{digit}") for digit in range(10)]
        counts = [round(other.value / 100 * MMLU[other.column]) for other in rest]
        fitting = [
            (full_n, k)
            for full_n in full
            for k in {math.floor(full_n.value / 100 * n), math.ceil(full_n.value / 100 * n)}
            if agrees(full_n, 100 * k / n, 0) and agrees(total, 100 * (sum(counts) + k) / sum(MMLU.values()), 0)
        ]
        if not fitting or full[0] in [full_n for full_n, _ in fitting]:
            continue
        yield about(
            [number],
            "lost digit",
            number.text,
            " or ".join(full_n.text for full_n, _ in fitting),
            "; ".join(
                f"{' + '.join(map(str, counts))} + {k} of {sum(MMLU.values())} are {total.text}, and {k}/{n} = {full_n.text}"
                for full_n, k in fitting
            )
            + f"; {full[0].text} is "
            + ("another sum" if possible(full[0], n) else f"no k/{n}"),
            SLIP,
            f"The row's {total.column} is right.",
        )


def _errors(row: Row, sizes: dict) -> Iterator[Finding]:
    """Compare standard errors with lm-eval's, sqrt(p (1 - p) / (n - 1)); a row with several is one finding."""
    wrong = []
    for column, number in row.items():
        if number.stderr is None or column not in sizes or column in POOLED or not 0 < number.value < 1:
            continue
        expected = math.sqrt(number.value * (1 - number.value) / (sizes[column] - 1))
        if abs(expected - number.stderr) > 0.0001:
            wrong.append((number, expected))
    if wrong:
        yield about(
            [n for n, _ in wrong],
            "standard error",
            "; ".join(f"{n.column} {n.text} ± {n.stderr:.4f}" for n, _ in wrong),
            "; ".join(f"± {expected:.4f}" for _, expected in wrong),
            "; ".join(f"sqrt({n.text} * (1 - {n.text}) / ({sizes[n.column]} - 1)) = {e:.4f}" for n, e in wrong),
            UNRESOLVED,
            "Accuracy or error is misprinted.",
        )

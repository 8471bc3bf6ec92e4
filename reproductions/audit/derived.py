"""Columns that follow from others in their own row or from a dense row: averages, retained performance, weighted MMLU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from common.evaluation.scores import MMLU_QUESTIONS
from reproductions import reported
from reproductions.audit.findings import SLIP, UNRESOLVED, Finding, agrees, cells_of, group, mean_slack, place, shown
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


def _suspect(rule: Rule, row: Row, dense: Row, wrong: Number, inputs: list[Number]) -> str:
    """Which single input, and at what value, would make the printed number right (within an accuracy's range)."""
    top = 100.0 if wrong.value > 1 else 1.0
    found = []
    for number in inputs:
        other = rule.compute({**row, number.column: _moved(number, 1.0)}, dense)
        base = rule.compute(row, dense)
        slope = other[0] - base[0]
        needed = number.value + (wrong.value - base[0]) / slope if slope else -1
        if 0 <= needed <= top:
            text = shown(needed, number)
            if sorted(text) == sorted(number.text) or _one_digit(text, number.text):
                found.append(f"{number.column} {text} in place of {number.text} would make it right")
    return f" One misprinted digit could explain it: {'; '.join(found)}." if found else ""


def _moved(number: Number, by: float) -> Number:
    return Number(**{**number.__dict__, "text": repr(number.value + by)})


def _one_digit(a: str, b: str) -> bool:
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1


def findings() -> Iterator[Finding]:
    """Every derived column that its own inputs contradict."""
    for rule in RULES:
        for table in rule.tables:
            if table not in reported.tables(rule.paper):
                continue
            rows = group(reported.numbers(rule.paper, table))
            for key, row in rows.items():
                if rule.column not in row:
                    continue
                dense = dense_row(rows, key[0])
                computed = rule.compute(row, dense)
                if computed is None or agrees(row[rule.column], computed[0], computed[1]):
                    continue
                value, slack, words, inputs = computed
                wrong = row[rule.column]
                hints = _echo(wrong, row) + _suspect(rule, row, dense, wrong, inputs)
                near = abs(wrong.value - value) <= 3 * (slack + wrong.half_unit)
                yield Finding(
                    paper=rule.paper,
                    kind="derived column",
                    where=place(wrong),
                    printed=wrong.text,
                    recomputed=shown(value, wrong),
                    arithmetic=f"{words} = {shown(value, wrong, 1)}.{hints}",
                    verdict=UNRESOLVED if hints else SLIP,
                    meaning="Within a few rounding steps: harmless, but not what the cells give."
                    if near
                    else f"The row's own cells give {shown(value, wrong)}: cite that, or the cells.",
                    cells=cells_of([wrong]),
                )

"""Named suites of multiple-choice tasks: which tasks, which accuracy, and the column each becomes."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import unknown


@dataclass(frozen=True)
class Column:
    """task: its name in `common.evaluation.harness`; label: as printed; metric: 'acc' or 'acc_norm'."""

    task: str
    label: str
    metric: str


@dataclass(frozen=True)
class Suite:
    """Tasks of one table, in the order of its columns. shots: examples before each question."""

    name: str
    columns: tuple[Column, ...]
    shots: int = 0
    source: str = ""

    @property
    def tasks(self) -> list[str]:
        return [column.task for column in self.columns]

    @property
    def labels(self) -> list[str]:
        return [column.label for column in self.columns]


# LinearPatch's text does not say which accuracy it reports. Its dense LLaMA-2-7B row does: 46.25, 74.58, 75.97 and
# 79.11 are the length-normalised values of these four tasks (plain ARC-e is 76.35, plain PIQA 78.07). WSC is wsc273
# (80.59 is 220 of 273). Race-h is lm-eval's `race`, which holds the high-school part alone, with the prompt it had in 0.4.4:
# our `race_v2`, since lm-eval's own has another one by now.
LINEARPATCH_QA = Suite(
    "linearpatch-qa",
    (
        Column("arc_challenge", "ARC-c", "acc_norm"),
        Column("arc_easy", "ARC-e", "acc_norm"),
        Column("boolq", "BoolQ", "acc"),
        Column("hellaswag", "HeSw", "acc_norm"),
        Column("piqa", "PIQA", "acc_norm"),
        Column("winogrande", "WG", "acc"),
        Column("wsc273", "WSC", "acc"),
        Column("race_v2", "Race-h", "acc"),
        Column("copa", "CoPa", "acc"),
    ),
    source="LinearPatch, Table 1; Prune&Comp uses the same",
)

# Plain accuracy: the printed PIQA of Llama-3-8B, .7965, is not length-normalised, nor is HellaSwag, .6014. MMLU and CMMLU
# are lm-eval's groups, zero-shot, their subjects weighted by size (`harness.GROUPS`).
REASSESSING = Suite(
    "reassessing",
    (
        Column("piqa", "PIQA", "acc"),
        Column("hellaswag", "HellaSwag", "acc"),
        Column("openbookqa", "OpenbookQA", "acc"),
        Column("arc_easy", "ARC-e", "acc"),
        Column("arc_challenge", "ARC-c", "acc"),
        Column("mmlu", "MMLU", "acc"),
        Column("cmmlu", "CMMLU", "acc"),
        Column("winogrande", "WinoGrande", "acc"),
    ),
    source="Reassessing, Table 1",
)


def _standin_qa() -> Suite:
    from common.standin import tasks  # reads the corpus's settings; not needed for the papers' suite

    columns = tuple(Column(task, label, metric) for task, (label, metric) in tasks.COLUMNS.items())
    return Suite("standin-qa", columns, source="this repository; held-out docstrings")


_SUITES = {
    "linearpatch-qa": lambda: LINEARPATCH_QA,
    "reassessing": lambda: REASSESSING,
    "standin-qa": _standin_qa,
}
NAMES = tuple(_SUITES)


def get(name: str) -> Suite:
    """The suite of this name; UserError with the nearest names when there is none."""
    if name not in _SUITES:
        raise unknown("suite", name, _SUITES)
    return _SUITES[name]()

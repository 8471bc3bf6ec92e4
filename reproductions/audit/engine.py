"""Audit a paper's tables: findings, facts about the paper, and comparisons of recomputed and printed numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.evaluation.scores import MMLU_QUESTIONS
from reproductions.spec.reported import Number, row_names

SLIP = "paper's slip"
EXTRACTION = "text extraction"
DEFINITION = "definition differs"
UNRESOLVED = "unresolved"
VERDICTS = (SLIP, EXTRACTION, DEFINITION, UNRESOLVED)

PREFIXES = {"linearpatch": "LP", "prunecomp": "PC", "laco": "LC", "reassessing": "RE"}

# The checks, in the report's order.
KINDS = {
    "claim": "Sentences against the tables they sum up",
    "derived column": "Averages and retained performance that the row's own cells do not give",
    "averages against scores": "Averages that the table of scores does not give",
    "share of parameters": "Shares and sizes that the model's shape does not give",
    "memory": "Memory below what the weights take",
    "label": "Rows under a wrong name",
    "order of sparsity": "Better with more removed",
    "above the dense model": "Better than the dense model",
    "printed twice, differently": "One configuration, two numbers",
    "row printed twice": "Two configurations, one row",
    "another model's row": "Rows that another paper prints under another model",
    "list of layers": "Lists of removed layers that cannot be",
    "one set of layers, two scores": "One set of layers, two models",
    "lost digit": "Numbers a digit short",
    "no k of n": "Accuracies that no number of right answers gives",
    "standard error": "Standard errors that do not belong to the accuracy",
}

# Questions of lm-eval's nine tasks, and of MMLU's groups, as LinearPatch and Prune&Comp call them.
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
MMLU = dict(zip(("STEM", "Humanities", "Social", "Other"), MMLU_QUESTIONS.values(), strict=True))
PERPLEXITIES = ("WIKI-2", "C4", "PTB")

# (paper, table, model, sparsity, row name, column)
Cell = tuple[str, str, str, str, str, str]
Row = Mapping[str, Number]
# A value, how far rounding of its inputs can move it, the sum in words, and the inputs.
Computed = tuple[float, float, str, list[Number]]


@dataclass(frozen=True)
class Finding:
    """One disagreement in a paper.

    Attributes:
        paper: Name of the paper.
        kind: The check that found it.
        where: Place in the paper.
        printed: What is printed.
        recomputed: What follows from other printed numbers.
        arithmetic: The computation in words.
        verdict: The judgement.
        meaning: Consequence for a person who cites the number.
        cells: The printed numbers concerned; tables mark them.
        name: Id such as LP-1.
        headline: One sentence for the top of the report, if the finding changes what a reader would conclude from the
            paper.
    """

    paper: str
    kind: str
    where: str
    printed: str
    recomputed: str
    arithmetic: str
    verdict: str
    meaning: str = ""
    cells: tuple[Cell, ...] = ()
    name: str = ""
    headline: str = ""


@dataclass(frozen=True)
class Rule:
    """Rule by which a column of some tables follows from a row and the original model's row."""

    tables: tuple[str, ...]
    column: str
    compute: Callable[[Row, Row], Computed]


@dataclass(frozen=True, eq=False)
class Paper:
    """Facts about a paper's tables that the checks need; its own module finds other errors.

    Attributes:
        name: Name of the paper.
        rules: Rules of derived columns.
        questions: Pairs of tables, and task -> questions in its test set.
        foreign: Marks in the names of rows that the paper took from elsewhere.
        summaries: Tables -> the column that sums a row up, and whether lower is better.
        lists: Table that lists removed layers -> tables with scores of its rows.
        bare_lists: Rows of these lists with a variant are not only pruned.
        alias: Function from a number to (sparsity, method, variant, column) under names that all tables share.
        shares: Tables of percentages of the original model, not scores.
        calibrated: Table that lists layers by calibration samples.
        copies: Whether a repeated row is a finding.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    questions: tuple[tuple[tuple[str, ...], dict[str, int]], ...] = ()
    foreign: tuple[str, ...] = ("*", "†", "‡")
    summaries: Mapping[tuple[str, ...], tuple[str, bool]] = field(default_factory=dict)
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bare_lists: bool = False
    alias: Callable[[Number], tuple[str, str, str, str]] = lambda n: (n.sparsity, n.method, n.variant, n.column)
    shares: tuple[str, ...] = ()
    calibrated: str = ""
    copies: bool = True

    def claim(
        self, where: str, printed: str, value: str, words: str, verdict: str, meaning="", used=(), headline=""
    ) -> Finding:
        """Return a finding about a sentence."""
        cells = cells_of(used)
        return Finding(self.name, "claim", where, printed, value, words, verdict, meaning, cells, headline=headline)


def named(paper: Paper, number: Number) -> list[tuple]:
    """Return (model, sparsity, method, variant, column) under shared names, for each variant of the number."""
    sparsity, method, variant, column = paper.alias(number)
    return [(number.model, sparsity, method, v, column) for v in variant.split("/")]


def cells_of(numbers: Iterable[Number]) -> tuple[Cell, ...]:
    """Return the table cells that show these numbers."""
    return tuple((n.paper, n.table, n.model, n.sparsity, name, n.column) for n in numbers for _, name in row_names(n))


def about(
    numbers: Sequence[Number],
    kind: str,
    printed: str,
    recomputed: str,
    arithmetic: str,
    verdict: str,
    meaning: str = "",
    *,
    where: str = "",
    headline: str = "",
) -> Finding:
    """Return a finding about printed numbers.

    ``where`` is by default the first number's row and all columns. The other arguments are fields of `Finding`.
    """
    where = where or place(numbers[0], ", ".join(number.column for number in numbers))
    facts = (kind, where, printed, recomputed, arithmetic, verdict, meaning, cells_of(numbers))
    return Finding(numbers[0].paper, *facts, headline=headline)


def place(number: Number, column: str | None = None) -> str:
    """Describe the place of a number in words."""
    _, name = next(row_names(number))
    words = " ".join(filter(None, (number.model, number.sparsity, name)))
    heading = {"text": "text", "summarytext": "summary, text"}.get(number.table)
    heading = heading or number.table.replace("summary", "summary, table ") if "summary" in number.table else heading
    return f"{heading or 'Table ' + number.table}, {words}, {column or number.column}".replace(", ,", ",")


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings of the same arithmetic in several places (a row that several tables print) into one."""
    alike: dict[tuple, list[Finding]] = {}
    for finding in findings:
        key = (finding.paper, finding.kind, finding.printed, finding.recomputed, finding.arithmetic)
        alike.setdefault(key, []).append(finding)
    result = []
    for first, *others in alike.values():
        if others:
            cells = tuple(dict.fromkeys(cell for finding in (first, *others) for cell in finding.cells))
            first = replace(first, where=places(cells) or first.where, cells=cells)
        result.append(first)
    return result


def places(cells: Sequence[Cell]) -> str:
    """Describe the places of cells, with each table, model and row named once.

    An example is ``Tables 13, 14, Baichuan2-7B 9/32, SLEB, ShortGPT, Ratio``.
    """
    models = list(dict.fromkeys(" ".join(filter(None, cell[2:4])) for cell in cells))
    tables, rows, columns = (list(dict.fromkeys(cell[i] for cell in cells)) for i in (1, 4, 5))
    heading = f"Table{'s' * (len(tables) > 1)} {', '.join(tables)}"
    return ", ".join([heading, "; ".join(models), *rows, ", ".join(columns)])


def group(numbers: Iterable[Number]) -> dict[tuple, dict[str, Number]]:
    """Return (model, sparsity, method, variant) -> column -> number, in printed order."""
    rows: dict[tuple, dict[str, Number]] = {}
    for number in numbers:
        rows.setdefault(number.row, {})[number.column] = number
    return rows


def mean_slack(inputs: Sequence[Number]) -> float:
    """Return how far rounding of the inputs can move their mean."""
    return sum(n.half_unit for n in inputs) / len(inputs)


def agrees(printed: Number, recomputed: float, slack: float) -> bool:
    """Return whether rounding (of the printed number, and ``slack`` of its inputs) explains the difference."""
    return abs(printed.value - recomputed) <= (printed.half_unit + slack) * (1 + 1e-6)


def scale(number: Number) -> int:
    """Return the factor from a share of right answers to the printed score: 1 for Reassessing, else 100."""
    return 1 if number.paper == "reassessing" and number.column != "HumanEval(Pass@1)" else 100


def decimals(number: Number) -> int:
    """Return how many digits are printed after the point."""
    return len(number.text.partition(".")[2])


def padding(scores: Iterable[Number]) -> float:
    """Return the possible error beyond the last digit if at least four scores all end in zero."""
    scores = list(scores)
    if len(scores) < 4 or not all("." in n.text and n.text.endswith("0") for n in scores):
        return 0.0
    return 9 * scores[0].half_unit


def shown(value: float, like: Number, extra: int = 0) -> str:
    """Return a recomputed number with the printed one's digits."""
    return f"{value:.{decimals(like) + extra}f}"

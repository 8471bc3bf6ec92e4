"""Orders that cannot be: a model that gets better when more is removed from it, or better than the model it was cut from."""

from __future__ import annotations

import math
from collections.abc import Iterator

from common.evaluation.scores import MMLU_QUESTIONS
from reproductions import reported
from reproductions.audit.findings import UNRESOLVED, Finding, cells_of, place
from reproductions.reported import Number, row_name

SHARES = ("Ratio", "ratio %", "PR %", "layers")
PERPLEXITY = {"WIKI-2", "C4", "PTB", "PPL AVG"}
# (paper, tables) -> the column that sums a row up, and whether lower is better in it.
SUMMARIES = {
    ("linearpatch", ("1", "2", "14")): ("RP", False),
    ("linearpatch", ("3",)): ("AVG", True),
    ("linearpatch", ("11", "13")): ("PPL AVG", True),
    ("linearpatch", ("12", "15")): ("Weighted AVG", False),
    ("prunecomp", ("1", "A1")): ("AVG", True),
    ("prunecomp", ("2", "A2")): ("AVG", False),
    ("laco", ("4",)): ("Avg.", False),
    ("reassessing", ("6",)): ("Avg.", False),
}
# Chance alone moves an accuracy; this many standard errors of the difference it does not.
ERRORS = 3.0
QUESTIONS = {column: sum(MMLU_QUESTIONS.values()) for column in ("MMLU", "Weighted AVG")}


def findings() -> Iterator[Finding]:
    """Rows out of the order of their sparsity, and cells above the dense model's."""
    for paper in dict.fromkeys(paper for paper, _ in SUMMARIES):
        yield from _sparsity(paper)
        yield from _above_dense(paper)


def share(sparsity: str) -> float | None:
    """What ``n/N`` or a percentage says is removed, as a share; None for anything else."""
    removed, slash, layers = sparsity.partition("/")
    if slash and removed.isdigit() and layers.isdigit():
        return int(removed) / int(layers)
    return float(sparsity[:-1]) / 100 if sparsity.endswith("%") else None


def _series(paper: str, table: str) -> dict[tuple, list[tuple[float, dict[str, Number]]]]:
    """(model, row name) -> the row at each sparsity, sparsest removal first."""
    rows: dict[tuple, dict[str, Number]] = {}
    for number in reported.numbers(paper, table):
        removed = share(number.sparsity)
        if removed:
            name = row_name(number.method, number.variant)
            rows.setdefault((number.model, name, removed), {})[number.column] = number
    found: dict[tuple, list] = {}
    for (model, name, removed), row in sorted(rows.items()):
        found.setdefault((model, name), []).append((removed, row))
    return found


def gain(column: str, less: Number, more: Number, summary: tuple[str, bool]) -> float:
    """By how much the row with more removed is better (perplexity counts downwards)."""
    lower = column in PERPLEXITY or column == summary[0] and summary[1]
    return (less.value - more.value) if lower else (more.value - less.value)


def _beyond_chance(column: str, less: Number, more: Number) -> bool:
    """Whether an accuracy that rises with what is removed rises by more than chance allows."""
    n = QUESTIONS.get(column)
    if n is None:
        return False
    scale = 100 if less.value > 1 else 1
    variance = sum(v * (1 - v) for v in (less.value / scale, more.value / scale)) / n
    return more.value - less.value > ERRORS * scale * math.sqrt(variance)


def _sparsity(paper: str) -> Iterator[Finding]:
    """One finding for each model and pair of sparsities, with all the tables and rows that are out of order alike."""
    found: dict[tuple, dict[str, tuple[list[str], list[Number], bool]]] = {}
    for (owner, tables), summary in SUMMARIES.items():
        for table in tables if owner == paper else ():
            for key, series in _series(paper, table).items():
                for (_, less), (_, more) in zip(series, series[1:], strict=False):
                    columns = _out_of_order(less, more, summary)
                    if not columns:
                        continue
                    pair = (less[columns[0]].sparsity, more[columns[0]].sparsity)
                    words = [f"{c} {more[c].text} against {less[c].text}" for c in columns]
                    numbers = [n for c in columns for n in (less[c], more[c])]
                    most = summary[0] in columns and 2 * len(columns) > len([c for c in less if c not in SHARES])
                    found.setdefault((*key, *pair), {})[table] = (words, numbers, most)
    alike: dict[tuple, list[str]] = {}
    for (model, name, *pair), parts in found.items():
        words = "; ".join(
            f"Table {t}: {', '.join(parts[t][0])}" for t in sorted(parts, key=reported.tables(paper).index)
        )
        alike.setdefault((model, *pair, words), []).append(name)
    for (model, less, more, words), names in alike.items():
        parts = found[model, names[0], less, more]
        exchanged = len(parts) > 1 and all(most for _, _, most in parts.values())
        numbers = [n for name in names for _, ns, _ in found[model, name, less, more].values() for n in ns]
        tables = sorted(parts, key=reported.tables(paper).index)
        yield Finding(
            paper,
            "order of sparsity",
            f"Table{'s' * (len(tables) > 1)} {', '.join(tables)}, {model}, {' and '.join(names)}",
            f"better with {more} removed than with {less}",
            "worse with more removed",
            words,
            UNRESOLVED,
            "The two rows are probably exchanged: as a baseline, cite neither."
            if exchanged
            else "Removing more should not help: the smaller or the larger removal is in doubt.",
            cells_of(numbers),
            headline=f"{model}, {' and '.join(names)}: the baseline is better with {more} than with {less} removed "
            f"(Tables {', '.join(tables)}); its two rows look exchanged."
            if exchanged
            else "",
        )


def _out_of_order(less: dict[str, Number], more: dict[str, Number], summary: tuple[str, bool]) -> list[str]:
    """Columns that improve, where the summary does or a single accuracy does by more than chance; the summary first."""
    columns = [c for c in less if c in more and c not in SHARES]
    better = [c for c in columns if gain(c, less[c], more[c], summary) > 0]
    first = summary[0]
    if first in better and (summary[1] or first not in QUESTIONS or _beyond_chance(first, less[first], more[first])):
        return [first, *(c for c in better if c != first)]
    return [c for c in better if c != first and _beyond_chance(c, less[c], more[c])]


def _above_dense(paper: str) -> Iterator[Finding]:
    """Accuracies of a pruned model that are above the dense model's by more than chance, in HellaSwag (10,042 questions).

    Small tests (WSC, CoPa) and yes/no ones vary more with pruning, in both directions, than their standard errors say.
    """
    for (owner, tables), _ in SUMMARIES.items():
        for table in tables if owner == paper else ():
            numbers = [n for n in reported.numbers(paper, table) if n.column == "HeSw"]
            dense = {n.model: n for n in numbers if n.method == "Dense"}
            for number in numbers:
                base = dense.get(number.model)
                if base is None or number is base or number.value <= base.value:
                    continue
                yield Finding(
                    paper,
                    "above the dense model",
                    place(number),
                    number.text,
                    f"at most {base.text}",
                    f"{number.text} - {base.text} = {number.value - base.value:+.2f} with {number.sparsity} removed",
                    UNRESOLVED,
                    "A pruned model that beats its dense one here is a misprint until shown otherwise; the row's average "
                    "includes it.",
                    cells_of([number]),
                )

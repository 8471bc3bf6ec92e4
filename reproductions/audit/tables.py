"""The rows of a paper against one another and against the model's shape: orders, lists of layers, shares removed."""

import math
from collections.abc import Iterator

from common.evaluation.scores import MMLU_QUESTIONS
from common.models import registry
from reproductions.audit.engine import (
    DEFINITION,
    SLIP,
    UNRESOLVED,
    Finding,
    Paper,
    about,
    agrees,
    group,
    place,
    shown,
)
from reproductions.spec import printed_rows, reported
from reproductions.spec.reported import Number, row_name

SHARES = ("Ratio", "ratio %", "PR %", "layers")
PERPLEXITY = {"WIKI-2", "C4", "PTB", "PPL AVG"}
# Chance alone moves an accuracy; this many standard errors of the difference it does not.
ERRORS = 3.0
QUESTIONS = {column: sum(MMLU_QUESTIONS.values()) for column in ("MMLU", "Weighted AVG")}


def share(sparsity: str) -> float | None:
    """Return the removed share that ``n/N`` or a percentage states; None for anything else."""
    removed, slash, layers = sparsity.partition("/")
    if slash and removed.isdigit() and layers.isdigit():
        return int(removed) / int(layers)
    return float(sparsity[:-1]) / 100 if sparsity.endswith("%") else None


def _series(paper: str, table: str) -> dict[tuple, list[tuple[float, dict[str, Number]]]]:
    """Return (model, row name) -> the row at each sparsity, sparsest removal first."""
    rows: dict[tuple, dict[str, Number]] = {}
    for number in reported.numbers(paper, table):
        removed = share(number.sparsity)
        if removed:
            name = row_name(number.method, number.variant)
            rows.setdefault((number.model, name, removed), {})[number.column] = number
    series: dict[tuple, list] = {}
    for (model, name, removed), row in sorted(rows.items()):
        series.setdefault((model, name), []).append((removed, row))
    return series


def gain(column: str, less: Number, more: Number, summary: tuple[str, bool]) -> float:
    """Return by how much the row with more removed layers is better (for perplexity, lower is better)."""
    lower = column in PERPLEXITY or column == summary[0] and summary[1]
    return (less.value - more.value) if lower else (more.value - less.value)


def _beyond_chance(column: str, less: Number, more: Number) -> bool:
    """Return whether an accuracy that rises with what is removed rises by more than chance allows."""
    n = QUESTIONS.get(column)
    if n is None:
        return False
    scale = 100 if less.value > 1 else 1
    variance = sum(v * (1 - v) for v in (less.value / scale, more.value / scale)) / n
    return more.value - less.value > ERRORS * scale * math.sqrt(variance)


def ordered(paper: Paper) -> Iterator[Finding]:
    """Yield one finding for each model and pair of sparsities, with all tables and rows that are out of order alike."""
    disorder: dict[tuple, dict[str, tuple[list[str], list[Number], bool]]] = {}
    for tables, summary in paper.summaries.items():
        for table in tables:
            for key, series in _series(paper.name, table).items():
                for (_, less), (_, more) in zip(series, series[1:], strict=False):
                    columns = _out_of_order(less, more, summary)
                    if not columns:
                        continue
                    pair = (less[columns[0]].sparsity, more[columns[0]].sparsity)
                    words = [f"{c} {more[c].text} against {less[c].text}" for c in columns]
                    numbers = [n for c in columns for n in (less[c], more[c])]
                    mostly = summary[0] in columns and 2 * len(columns) > len([c for c in less if c not in SHARES])
                    disorder.setdefault((*key, *pair), {})[table] = (words, numbers, mostly)
    alike: dict[tuple, list[str]] = {}
    for (model, name, *pair), parts in disorder.items():
        words = "; ".join(
            f"Table {t}: {', '.join(parts[t][0])}" for t in sorted(parts, key=reported.tables(paper.name).index)
        )
        alike.setdefault((model, *pair, words), []).append(name)
    for (model, less, more, words), names in alike.items():
        parts = disorder[model, names[0], less, more]
        exchanged = len(parts) > 1 and all(mostly for _, _, mostly in parts.values())
        numbers = [n for name in names for _, ns, _ in disorder[model, name, less, more].values() for n in ns]
        tables = sorted(parts, key=reported.tables(paper.name).index)
        yield about(
            numbers,
            "order of sparsity",
            f"better with {more} removed than with {less}",
            "worse with more removed",
            words,
            UNRESOLVED,
            "The two rows are probably exchanged: as a baseline, cite neither."
            if exchanged
            else "Removing more should not help: the smaller or the larger removal is in doubt.",
            where=f"Table{'s' * (len(tables) > 1)} {', '.join(tables)}, {model}, {' and '.join(names)}",
            headline=f"{model}, {' and '.join(names)}: the baseline is better with {more} than with {less} removed "
            f"(Tables {', '.join(tables)}); its two rows look exchanged."
            if exchanged
            else "",
        )


def _out_of_order(less: dict[str, Number], more: dict[str, Number], summary: tuple[str, bool]) -> list[str]:
    """Return the columns that improve, if the summary or one accuracy does by more than chance; the summary first."""
    columns = [c for c in less if c in more and c not in SHARES]
    better = [c for c in columns if gain(c, less[c], more[c], summary) > 0]
    first = summary[0]
    if first in better and (summary[1] or first not in QUESTIONS or _beyond_chance(first, less[first], more[first])):
        return [first, *(c for c in better if c != first)]
    return [c for c in better if c != first and _beyond_chance(c, less[c], more[c])]


def above_dense(paper: Paper) -> Iterator[Finding]:
    """Yield accuracies of a pruned model above the original model's, by any amount, in HellaSwag (10,042 questions).

    Small tests (WSC, CoPa) and yes/no ones vary more with pruning, in both directions, than their standard errors say.
    """
    for tables in paper.summaries:
        for table in tables:
            numbers = [n for n in reported.numbers(paper.name, table) if n.column == "HeSw"]
            dense = {n.model: n for n in numbers if n.method == "Dense"}
            for number in numbers:
                base = dense.get(number.model)
                if base is None or number is base or number.value <= base.value:
                    continue
                yield about(
                    [number],
                    "above the dense model",
                    number.text,
                    f"at most {base.text}",
                    f"{number.text} - {base.text} = {number.value - base.value:+.2f} with {number.sparsity} removed",
                    UNRESOLVED,
                    "A pruned model that beats its dense one here may be a misprint; the row's average includes it.",
                )


def removed(row: dict[str, Number]) -> list[Number]:
    """Return the layers of a row, in the order of removal."""
    return [number for column, number in row.items() if column.startswith("removed ")]


def listed(paper: Paper) -> Iterator[Finding]:
    """Yield lists of removed layers that have a wrong length, a layer twice, or different scores for one set."""
    for table, scores in paper.lists.items():
        rows = {key: removed(row) for key, row in group(reported.numbers(paper.name, table)).items()}
        for layers in rows.values():
            yield from _list_errors(layers)
        # What is added to a model (compensation, training) changes it; bare pruning is the same wherever it comes from.
        comparable = {key: layers for key, layers in rows.items() if not (paper.bare_lists and key[3])}
        yield from _same_set(paper.name, table, comparable, scores)


def _list_errors(layers: list[Number]) -> Iterator[Finding]:
    first = layers[0]
    count = printed_rows.removed_layers(first)
    listed = [int(n.value) for n in layers]
    words = f"{', '.join(n.text for n in layers)}: {len(listed)} layers, {len(set(listed))} different"
    twice = sorted({n for n in listed if listed.count(n) > 1})
    if twice:
        yield _list(layers, f"layer {', '.join(map(str, twice))} twice", f"{count} different layers", words)
    elif count is not None and len(listed) != count:
        start = sorted(listed[:count])
        if start == list(range(start[0], start[0] + count)):
            words += f"; the first {count} are layers {start[0]} to {start[-1]}"
        yield _list(layers, f"{len(listed)} layers", f"{count} layers", words)


def _list(layers: list[Number], printed: str, computed: str, words: str) -> Finding:
    meaning = "The list does not say which layers were removed: take it with care, or from the code."
    where = place(layers[0], "removed layers")
    return about(layers, "list of layers", printed, computed, words, SLIP, meaning, where=where)


def _same_set(paper: str, table: str, rows: dict, scores: tuple[str, ...]) -> Iterator[Finding]:
    """Yield rows that remove the same layers of the same model and score differently."""
    first_keys: dict[tuple, tuple] = {}
    for key, layers in rows.items():
        if len({n.value for n in layers}) != printed_rows.removed_layers(layers[0]):
            continue
        first = first_keys.setdefault((key[0], frozenset(n.value for n in layers)), key)
        if first == key:
            continue
        pairs = []
        for source in scores:
            table_rows = group(reported.numbers(paper, source))
            first_row, second_row = table_rows.get(first, {}), table_rows.get(key, {})
            shared = [c for c in first_row if c in second_row and not c.startswith("removed")]
            pairs += [(first_row[c], second_row[c]) for c in shared if first_row[c].text != second_row[c].text]
        if not pairs:
            continue
        layers_text = ", ".join(str(int(v)) for v in sorted(n.value for n in layers))
        yield about(
            [n for pair in pairs for n in pair],
            "one set of layers, two scores",
            "; ".join(f"{a.column} {a.text} and {b.text}" for a, b in pairs),
            "equal",
            f"both remove layers {layers_text}, in another order, and nothing else is done to the model",
            UNRESOLVED,
            "The same pruned model: the difference is a misprint, or what repeating the measurement costs.",
            where=f"Table {table} and {', '.join(dict.fromkeys(a.table for a, _ in pairs))}, {key[0]} {key[1]}, "
            f"{row_name(*first[2:])} and {row_name(*key[2:])}",
        )


def removed_share(name: str, removed: int, method: str) -> tuple[float, str]:
    """Return the percentage of a model's parameters that a method removes, and the quotient in words.

    It counts the parameters of ``removed`` layers minus those that the method adds.
    """
    facts = registry.get(name).facts
    added = 0
    if method == "LinearPatch":
        added = facts["hidden"] ** 2
    elif method.startswith("LLM-Streamline(FFN)"):
        added = 3 * facts["hidden"] * facts["intermediate"]
    minus = f" - {added}" if added else ""
    words = f"({removed} * {facts['layer_params']}{minus}) / {facts['params']}"
    return 100 * (removed * facts["layer_params"] - added) / facts["params"], words


def compare_share(printed: Number, marked: Number, value: float, words: str) -> Iterator[Finding]:
    """Yield a share that the removed layers do not give, or only when truncated. marked: the number of layers next to it."""
    if agrees(printed, value, 0):
        return
    cut = 0 <= value - printed.value < 2 * printed.half_unit
    yield about(
        [printed, *([] if printed is marked else [marked])],
        "share of parameters",
        f"{printed.text} %" + ("" if printed is marked else f" with {marked.text} layers left"),
        f"{shown(value, printed)} %",
        f"{words} = {shown(value, printed, 2)} %",
        DEFINITION if cut else SLIP,
        "The paper cuts the number off instead of rounding it." if cut else "Cite the recomputed share.",
        where=place(printed),
    )


def ratios(paper: Paper) -> Iterator[Finding]:
    """Yield printed values of Ratio that do not follow from the removed layers."""
    for table in reported.tables(paper.name):
        for number in reported.numbers(paper.name, table):
            removed = printed_rows.removed_layers(number)
            if number.column == "Ratio" and removed and number.method != "LLM-Pruner":
                value = removed_share(printed_rows.MODELS[number.model], removed, number.method)
                yield from compare_share(number, number, *value)

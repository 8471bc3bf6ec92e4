"""Sentences of Prune&Comp, held against the tables they sum up."""

from __future__ import annotations

from collections.abc import Iterator

from common import model_registry
from reproductions import declare, reported
from reproductions.audit.findings import SLIP, UNRESOLVED, Finding, claim
from reproductions.reported import Number

# What a V100 was sold with, in GB.
GPU_MEMORY = {"V100": (16, 32)}
# The text names a number by its table's last column: text column -> (tables, column).
QUOTED = {
    "PPL AVG": (("1", "4"), "AVG"),
    "RP": (("2",), "RP"),
    "MMLU Weighted AVG": (("3",), "Weighted AVG"),
}


def findings() -> Iterator[Finding]:
    """Claims whose numbers the tables do not give."""
    yield from _quotes()
    yield from _improves()
    yield from _setup()


def _quotes() -> Iterator[Finding]:
    """Numbers of the running text that are not those of the row the sentence names."""
    wrong: dict[tuple, list[tuple[Number, Number, str]]] = {}
    for quote in reported.numbers("prunecomp", "text"):
        tables, column = QUOTED.get(quote.column, ((), ""))
        for table in tables:
            cells = reported.cells("prunecomp", table)
            name = reported.row_name(quote.method, quote.variant)
            there = cells.get((quote.model, quote.sparsity, name, column))
            if there is None or abs(there.value - quote.value) <= there.half_unit + quote.half_unit:
                continue
            twins = [
                k[2] for k, n in cells.items() if k[:2] == there.row[:2] and k[3] == column and n.text == quote.text
            ]
            wrong.setdefault((table, *quote.row[:3]), []).append((quote, there, ", ".join(twins) or "no row"))
    for (table, model, sparsity, method), parts in wrong.items():
        yield claim(
            "prunecomp",
            f"Text on Table {table}, {model} {sparsity} {method}",
            " -> ".join(q.text for q, _, _ in parts),
            " -> ".join(n.text for _, n, _ in parts),
            "; ".join(
                f"{q.text} is the row {twin}; {method} {q.variant} has {n.text}".replace("  ", " ")
                for q, n, twin in parts
            ),
            SLIP,
            "The sentence quotes another metric's rows.",
            [n for _, n, _ in parts],
        )


def _improves() -> Iterator[Finding]:
    """Compensation is said to improve every metric."""
    exceptions, used, settings = [], [], 0
    for table, lower_is_better in (("1", True), ("2", False), ("A1", True), ("A2", False)):
        cells = reported.cells("prunecomp", table)
        for (model, sparsity, name, column), number in cells.items():
            after = cells.get((model, sparsity, f"{name} +Prune&Comp", column))
            if column != "AVG" or after is None:
                continue
            settings += 1
            if after.value != number.value and (after.value > number.value) == lower_is_better:
                exceptions.append(f"Table {table}, {model} {sparsity} {name} {number.text} -> {after.text}")
                used += [number, after]
    main = [text for text in exceptions if "Table A" not in text]
    if exceptions:
        yield claim(
            "prunecomp",
            "Abstract and results, 'consistently enhances', against Tables 1, 2, A1, A2",
            "every metric improves",
            f"{len(exceptions)} of {settings} averages get worse",
            "; ".join(exceptions),
            SLIP,
            f"Name the exceptions; in the main paper: {'; '.join(main)}.",
            used,
            headline=f"'Consistently enhances' has {len(exceptions)} exceptions among {settings} averages, "
            f"{len(exceptions) - len(main)} of them in the appendix.",
        )


def _setup() -> Iterator[Finding]:
    """What the text says about models, captions and hardware."""
    text = {n.column: n for n in reported.numbers("prunecomp", "text")}
    layers = text["layers of the model"]
    real = model_registry.get(declare.MODELS[layers.model]).facts["layers"]
    if layers.value != real:
        printed, counted = f"5 of {layers.text}", f"5 of {real}"
        words = f"{layers.model} has {real} layers, and Table 2 prints {layers.sparsity}"
        yield claim("prunecomp", f"Text on Table 2, {layers.model}", printed, counted, words, SLIP)
    caption = text["metrics named in the caption of table 3"]
    rows = list(dict.fromkeys(n.method for n in reported.numbers("prunecomp", "3")))
    if caption.value != len(rows):
        printed, counted = f"pruned with {caption.method}", f"{len(rows)} metrics"
        yield claim("prunecomp", "Caption of Table 3", printed, counted, f"its rows: {', '.join(rows)}", SLIP)
    announced = next(n for c, n in text.items() if c.startswith("models announced"))
    where = [t for t in reported.tables("prunecomp") if t != "text" and announced.model in
             {n.model for n in reported.numbers("prunecomp", t)}]  # fmt: skip
    if not any(table.isdigit() for table in where):
        words = f"no row in Tables 1-4; rows in Tables {', '.join(where)}"
        yield claim(
            "prunecomp", "Experimental setup, models", f"{announced.model} among the models", "only in the appendix", words,
            UNRESOLVED, "Its numbers are in the appendix that came with the code.",
        )  # fmt: skip
    memory = text["GPU memory GB (V100)"]
    sold = GPU_MEMORY["V100"]
    if memory.value not in sold:
        words = f"V100 cards were sold with {' and '.join(map(str, sold))} GB"
        yield claim("prunecomp", "Experimental setup, hardware", f"{memory.text}GB V100", "no such card", words, SLIP)

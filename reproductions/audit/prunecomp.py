"""Prune&Comp: what its tables are, sentences of the paper held against them, and rows that it shares with LinearPatch."""

from collections.abc import Iterator

from common.models import registry
from reproductions.audit import linearpatch, repeats, tables
from reproductions.audit.engine import (
    LM_EVAL,
    MMLU,
    PERPLEXITIES,
    SLIP,
    UNRESOLVED,
    Computed,
    Finding,
    Paper,
    Row,
    Rule,
    about,
    group,
    mean_slack,
    named,
    place,
)
from reproductions.audit.scores import mean, weighted
from reproductions.spec import printed_rows, reported
from reproductions.spec.reported import Number

# What a V100 was sold with, in GB.
GPU_MEMORY = {"V100": (16, 32)}
# The text names a number by its table's last column: text column -> (tables, column).
QUOTED = {"PPL AVG": (("1", "4"), "AVG"), "RP": (("2",), "RP"), "MMLU Weighted AVG": (("3",), "Weighted AVG")}
# The same selection under LinearPatch's name.
ACROSS = {"CosSim(BI)": "ShortGPT", "CosSim(CL)": "LLM-Streamline(None)", "Dense": "Dense"}
ALIASES = {
    ("4", "CosSim(BI)", "+MagComp +IterPrune"): ("CosSim(BI)", "+Prune&Comp"),
    ("A5", "CosSim(BI)", "+MagComp +IterPrune"): ("CosSim(BI)", "+Prune&Comp"),
}


def alias(number: Number) -> tuple[str, str, str, str]:
    """Return (sparsity, method, variant, column) under the names of Tables 1 and 2."""
    method, variant = ALIASES.get((number.table, number.method, number.variant), (number.method, number.variant))
    column = "PPL AVG" if number.table in ("1", "4", "A1") and number.column == "AVG" else number.column
    return number.sparsity, method, variant, column


def _ratio_of_means(row: Row, dense: Row) -> Computed:
    """Compute Prune&Comp's RP: the ratio of the average to the dense average."""
    inputs = [row[c] for c in LM_EVAL]
    dense_inputs = [dense[c] for c in LM_EVAL]
    top, bottom = sum(n.value for n in inputs), sum(n.value for n in dense_inputs)
    slack = 100 * 9 * (mean_slack(inputs) + top / bottom * mean_slack(dense_inputs)) / bottom
    return 100 * top / bottom, slack, f"({top:.2f} / 9) / ({bottom:.2f} / 9)", inputs


_SCORES = ("1", "2", "3", "A1", "A2", "A5")
PAPER = Paper(
    "prunecomp",
    rules=(
        Rule(("1", "A1", "4"), "AVG", mean(PERPLEXITIES)),
        Rule(("2", "A2", "A5"), "AVG", mean(LM_EVAL)),
        Rule(("2", "A2"), "RP", _ratio_of_means),
        Rule(("3",), "Weighted AVG", weighted),
    ),
    questions=((("2", "A2", "A5"), LM_EVAL), (("3",), MMLU)),
    summaries={("1", "A1"): ("AVG", True), ("2", "A2"): ("AVG", False)},
    lists={"A3": _SCORES, "A4": _SCORES},
    bare_lists=True,
    alias=alias,
)


def findings() -> Iterator[Finding]:
    """Yield claims whose numbers do not follow from the tables, and differences from LinearPatch's print of the same rows."""
    yield from _quotes()
    yield from _improves()
    yield from _setup()
    yield from _between_papers()
    yield from _blocks()


def _quotes() -> Iterator[Finding]:
    """Yield numbers of the running text that are not those of the row the sentence names."""
    wrong: dict[tuple, list[tuple[Number, Number, str]]] = {}
    for quote in reported.numbers("prunecomp", "text"):
        tables, column = QUOTED.get(quote.column, ((), ""))
        for table in tables:
            cells = reported.cells("prunecomp", table)
            name = reported.row_name(quote.method, quote.variant)
            in_table = cells.get((quote.model, quote.sparsity, name, column))
            if in_table is None or abs(in_table.value - quote.value) <= in_table.half_unit + quote.half_unit:
                continue
            twins = [
                k[2] for k, n in cells.items() if k[:2] == in_table.row[:2] and k[3] == column and n.text == quote.text
            ]
            wrong.setdefault((table, *quote.row[:3]), []).append((quote, in_table, ", ".join(twins) or "no row"))
    for (table, model, sparsity, method), parts in wrong.items():
        yield PAPER.claim(
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
    """Check that compensation improves every metric, as the paper says."""
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
        yield PAPER.claim(
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
    """Yield what the text says about models, captions and hardware."""
    text = {n.column: n for n in reported.numbers("prunecomp", "text")}
    layers = text["layers of the model"]
    real = registry.get(printed_rows.MODELS[layers.model]).facts["layers"]
    if layers.value != real:
        printed, computed = f"5 of {layers.text}", f"5 of {real}"
        words = f"{layers.model} has {real} layers, and Table 2 prints {layers.sparsity}"
        yield PAPER.claim(f"Text on Table 2, {layers.model}", printed, computed, words, SLIP)
    caption = text["metrics named in the caption of table 3"]
    rows = list(dict.fromkeys(n.method for n in reported.numbers("prunecomp", "3")))
    if caption.value != len(rows):
        printed, computed = f"pruned with {caption.method}", f"{len(rows)} metrics"
        yield PAPER.claim("Caption of Table 3", printed, computed, f"its rows: {', '.join(rows)}", SLIP)
    announced = next(n for c, n in text.items() if c.startswith("models announced"))
    tables_with = [t for t in reported.tables("prunecomp") if t != "text" and announced.model in
             {n.model for n in reported.numbers("prunecomp", t)}]  # fmt: skip
    if not any(table.isdigit() for table in tables_with):
        words = f"no row in Tables 1-4; rows in Tables {', '.join(tables_with)}"
        yield PAPER.claim(
            "Experimental setup, models", f"{announced.model} among the models", "only in the appendix", words,
            UNRESOLVED, "Its numbers are in the appendix that came with the code.",
        )  # fmt: skip
    memory = text["GPU memory GB (V100)"]
    sold = GPU_MEMORY["V100"]
    if memory.value not in sold:
        words = f"V100 cards were sold with {' and '.join(map(str, sold))} GB"
        yield PAPER.claim("Experimental setup, hardware", f"{memory.text}GB V100", "no such card", words, SLIP)


def _between_papers() -> Iterator[Finding]:
    """Yield rows that Prune&Comp shares with LinearPatch: the same models, selections and protocols."""
    first_numbers, copied = {}, repeats.copied_cells(PAPER)
    for table in ("1", "11", "12"):
        for number in reported.numbers("linearpatch", table):
            for key in named(linearpatch.PAPER, number):
                first_numbers.setdefault(key, number)
    pairs: dict[tuple, list] = {}
    for table in repeats.scored_tables(PAPER):
        for number in reported.numbers("prunecomp", table):
            if (
                number.variant
                or number.method not in ACROSS
                or number.column == "RP"
                or repeats.cell(number)[1:5] in copied
            ):
                continue  # RP is defined differently
            for model, sparsity, method, _, column in named(PAPER, number):
                first = first_numbers.get((model, sparsity, ACROSS[method], "", column))
                if first is not None and repeats.differ(first, number):
                    pairs.setdefault((first.table, table, number.row), []).append((first, number))
    for (their_table, *_), cells in pairs.items():
        where = f"LinearPatch's Table {their_table} and {place(cells[0][1], 'same row')}"
        yield repeats.disagreement("prunecomp", where, cells)


def _blocks() -> Iterator[Finding]:
    """Compare LinearPatch's blocks (Table 9) with the layers that Prune&Comp lists for the same selection."""
    names = {"LinearPatch[S]": "CosSim(BI)", "LinearPatch[L]": "CosSim(CL)"}
    lists = {
        key: tables.removed(row)
        for table in ("A3", "A4")
        for key, row in group(reported.numbers("prunecomp", table)).items()
    }
    blocks = reported.cells("linearpatch", "9")
    for (model, sparsity, name, column), start in blocks.items():
        layers = lists.get((model, sparsity, names[name], ""), [])
        if column != "start" or not layers:
            continue
        end = blocks[model, sparsity, name, "end"]
        block = set(range(int(start.value), int(end.value)))
        listed = [int(n.value) for n in layers][: len(block)]
        if set(listed) != block:
            yield about(
                [*layers, start, end],
                "one set of layers, two scores",
                f"layers {min(listed)} to {max(listed)}",
                f"layers {min(block)} to {max(block)} ({name})",
                f"the selection is the same, {', '.join(map(str, sorted(block ^ set(listed))))} are in one set only",
                UNRESOLVED,
                "Where the two papers print the same scores, one of the two lists is not the model that was measured.",
                where=f"Table {layers[0].table} and LinearPatch's Table 9, {model} {sparsity}, {names[name]}",
            )

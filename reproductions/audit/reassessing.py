"""Sentences of Reassessing Layer Pruning, held against its tables: margins, gains, citations, captions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reproductions import declare, reported
from reproductions.audit import elsewhere
from reproductions.audit.findings import DEFINITION, PAPER_NAMES, SLIP, Finding, claim, group
from reproductions.reported import Number, row_name

PAPER = "reassessing"


def findings() -> Iterator[Finding]:
    """Claims whose numbers the tables do not give."""
    for table in ("4", "5"):
        yield from _margins(table)
    yield from _borrowed()
    yield from _average_gain()
    yield from _less_data()
    yield from _citations()
    yield from _caption()


def _mean(row: dict[str, Number], tasks: list[str]) -> float:
    return sum(row[c].value for c in tasks) / len(tasks)


def margins(table: str) -> dict[str, list[tuple[str, dict[str, Number], dict[str, Number], float, float]]]:
    """Model -> (baseline, its row, the paper's row, printed margin, margin on the tasks both have), dense rows apart."""
    rows = group(reported.numbers(PAPER, table))
    found: dict[str, list] = {}
    for (model, _, method, variant), row in rows.items():
        mine = next(r for k, r in rows.items() if k[0] == model and ("Alpaca" in k[2] or k[2] == "Our"))
        if row is mine or method == "Dense":
            continue
        tasks = [c for c in row if c != "Avg."]
        true = _mean(mine, tasks) - _mean(row, tasks)
        printed = mine["Avg."].value - row["Avg."].value
        found.setdefault(model, []).append((row_name(method, variant), row, mine, printed, true))
    return found


def _margins(table: str) -> Iterator[Finding]:
    """Margins over baselines that rest on other tasks, or on a wrong average; and what becomes of the abstract's range."""
    for model, rows in margins(table).items():
        fewer, wrong = [], []
        for name, row, mine, printed, true in rows:
            if abs(printed - true) >= 0.001:
                (fewer if len(row) < len(mine) else wrong).append((name, row, mine, printed, true))
        if fewer:
            yield claim(
                PAPER,
                f"Table {table}, {model}, margins over {', '.join(name for name, *_ in fewer)}",
                ", ".join(f"{100 * printed:.2f}" for *_, printed, _ in fewer),
                ", ".join(f"{100 * true:.2f}" for *_, true in fewer),
                "; ".join(_on_common(*part) for part in fewer),
                DEFINITION,
                "These averages are over fewer tasks than the paper's own: compare on the common ones.",
                [row["Avg."] for _, row, *_ in fewer],
            )
        for part in wrong:
            name, row, _, printed, true = part
            yield claim(
                PAPER,
                f"Table {table}, {model}, margin over {name}",
                f"{100 * printed:.2f} points",
                f"{100 * true:.2f} points",
                _on_common(*part),
                SLIP,
                "The margin rests on a wrong average.",
                [row["Avg."]],
            )
        yield from _range(table, model, rows)


def _on_common(name: str, row: dict, mine: dict, printed: float, true: float) -> str:
    tasks = [c for c in row if c != "Avg."]
    return f"{name}, {len(tasks)} tasks: {_mean(mine, tasks):.4f} - {_mean(row, tasks):.4f} = {true:+.4f}"


def _range(table: str, model: str, rows: list) -> Iterator[Finding]:
    """The abstract's 'from a to b' over the baselines of a model."""
    text = {
        n.column: n for n in reported.numbers(PAPER, "text") if n.model == model and n.column.startswith("abstract")
    }
    low, high = (next(n for c, n in text.items() if word in c) for word in ("smallest", "largest"))
    true = sorted((100 * part[-1], part[0]) for part in rows)
    (least, weak), (most, strong) = true[0], true[-1]
    if abs(least - low.value) < 0.05 and abs(most - high.value) < 0.05:
        return
    yield claim(
        PAPER,
        f"Abstract against Table {table}, {model}",
        f"ahead by {low.text} to {high.text} %",
        f"{least:.2f} to {most:.2f} points",
        f"least over {weak}, most over {strong}, each on the tasks that both rows have, averages recomputed",
        SLIP
        if any(len(row) == len(mine) and abs(shown - t) >= 0.001 for _, row, mine, shown, t in rows)
        else DEFINITION,
        "Cite the recomputed range, in points.",
        [low, high],
        headline=f"{model}: the abstract's lead of {low.text} to {high.text} % is {least:.2f} to {most:.2f} points once "
        "averages are right and tasks the same.",
    )


def _borrowed() -> Iterator[Finding]:
    """Table 4: what the abstract's range is over when a marked row, and so perhaps all of its mark, is another model's."""
    copied = {copy["PIQA"].row: source["PIQA"] for copy, source in elsewhere.copies()[0] if copy["PIQA"].table == "4"}
    for model, rows in margins("4").items():
        proved = [(name, row) for name, row, *_ in rows if row["PIQA"].row in copied]
        if not proved:
            continue
        marks = tuple({name[-1] for name, _ in proved})
        marked = [part for part in rows if part[0].endswith(marks)]
        own = sorted((100 * true, name) for name, *_, true in rows if not name.endswith(marks))
        names = ", ".join(name for name, *_ in marked)
        first, source = proved[0][0], copied[proved[0][1]["PIQA"].row]
        least, most = (pick(100 * printed for *_, printed, _ in rows) for pick in (min, max))
        yield claim(
            PAPER,
            f"Abstract against Table 4, {model}, rows of another model",
            f"ahead by {least:.2f} to {most:.2f} points",
            f"{own[0][0]:.2f} to {own[-1][0]:.2f} points over the rows without that mark",
            f"{first} is {source.model}'s row; the same mark stands at {names}, whose printed margins are "
            f"{', '.join(f'{100 * printed:.2f}' for *_, printed, _ in marked)}. Without them: "
            + ", ".join(f"{name} {margin:.2f}" for margin, name in own),
            SLIP,
            "Cite no margin over a row with that mark: it may compare two models.",
            [row["Avg."] for _, row, *_ in marked],
            headline=f"Table 4's row {first} for {model} is {PAPER_NAMES[source.paper]}'s row for {source.model} at "
            f"{source.sparsity}, to the digits printed; over rows without its mark the lead is {own[0][0]:.2f} to "
            f"{own[-1][0]:.2f} points, not {least:.2f} to {most:.2f}.",
        )


def _average_gain() -> Iterator[Finding]:
    """Section 3.3: reverse order against PPL over three models."""
    printed = next(n for n in reported.numbers(PAPER, "text") if "average gain over PPL" in n.column)
    rows = group(reported.numbers(PAPER, "1"))
    models = list(dict.fromkeys(key[0] for key in rows))

    def mean(method: str) -> float:
        return sum(100 * rows[model, "8/32", method, "+LoRA"]["Avg."].value for model in models) / len(models)

    gain = mean("Reverse-order") - mean("PPL")
    if abs(gain - printed.value) > 0.01:
        yield claim(
            PAPER,
            "Section 3.3 against Table 1",
            f"{printed.text} % over PPL",
            f"{gain:.2f} points",
            f"means over {len(models)} models: {mean('Reverse-order'):.2f} - {mean('PPL'):.2f} = {gain:.2f}",
            SLIP,
        )


def _less_data() -> Iterator[Finding]:
    """Section E: with a fifth of the data a substantial decline, in the printed averages."""
    rows = {key[3].partition(" ")[0]: row for key, row in group(reported.numbers(PAPER, "C")).items()}
    full, fifth = rows["1.0"], rows["0.2"]
    tasks = [c for c in full if c != "Avg."]
    printed = 100 * (full["Avg."].value - fifth["Avg."].value)
    true = 100 * (_mean(full, tasks) - _mean(fifth, tasks))
    if abs(printed - true) > 0.5:
        yield claim(
            PAPER,
            "Section E against Table C",
            f"a substantial decline with 20 % of the data ({printed:.1f} points)",
            f"{true:.1f} points",
            f"mean of the eight tasks: {_mean(full, tasks):.4f} - {_mean(fifth, tasks):.4f} = {true / 100:.4f}",
            SLIP,
            "A fifth of the data costs little.",
            [fifth["Avg."]],
            headline=f"A fifth of the fine-tuning data costs {true:.1f} points, not {printed:.1f}: Table C's last average is "
            "wrong.",
        )


def _citations() -> Iterator[Finding]:
    """Numbers of the text that are not in the table that the sentence points to."""
    wrong: dict[str, list[tuple[Number, list[str]]]] = {}
    for number in reported.numbers(PAPER, "text"):
        cited = re.search(r"cites: (Table (\w+)|Section \w+)", number.flag)
        if cited and (cited[2] is None or not _is_in(number, cited[2])):
            there = [t for t in reported.tables(PAPER) if t != "text" and _is_in(number, t)]
            wrong.setdefault(cited[1], []).append((number, there))
    for cited, parts in wrong.items():
        tables = list(dict.fromkeys(t for _, there in parts for t in there))
        yield claim(
            PAPER,
            f"Section E, {', '.join(n.method + ' ' + n.text for n, _ in parts)}",
            f"see {cited}",
            f"Table {' or '.join(tables)}",
            "; ".join(f"{n.text} is in Table {' and '.join(there)}" for n, there in parts),
            SLIP,
        )


def _is_in(number: Number, table: str) -> bool:
    """Whether a row of the same model and method has the number, as printed or a hundredth of it."""
    return any(
        n.model == number.model
        and n.method.replace("-It-", "-")
        == number.method.replace("-It-", "-")  # Table 4 has its own name for one model
        and (n.value == number.value or abs(100 * n.value - number.value) < 0.005)
        for n in reported.numbers(PAPER, table)
    )


def _caption() -> Iterator[Finding]:
    """Table N: the caption's example ends at another number of layers than the table's rows."""
    caption = next(n for n in reported.numbers(PAPER, "text") if "table N's caption" in n.column)
    counts = {declare.removed_layers(n) for n in reported.numbers(PAPER, "N")}
    variants = sorted({n.variant.partition(" ")[0] for n in reported.numbers(PAPER, "N") if n.variant[0].isdigit()})
    if counts != {int(caption.value)}:
        yield claim(
            PAPER,
            "Caption of Table N",
            f"{caption.text} layers pruned by the end",
            f"{', '.join(map(str, counts))} layers",
            f"its rows are {', '.join(variants)}",
            SLIP,
        )

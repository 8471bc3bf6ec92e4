"""Sentences of LinearPatch, Prune&Comp and LaCo, held against the tables they sum up."""

from __future__ import annotations

from collections.abc import Iterator

from common import models
from reproductions import declare, reported
from reproductions.audit.findings import DEFINITION, SLIP, UNRESOLVED, Finding, cells_of, group
from reproductions.reported import Number

# What a V100 was sold with, in GB.
GPU_MEMORY = {"V100": (16, 32)}
# Prune&Comp's text names a number by its table's last column: text column -> (tables, column).
QUOTED = {
    "PPL AVG": (("1", "4"), "AVG"),
    "RP": (("2",), "RP"),
    "MMLU Weighted AVG": (("3",), "Weighted AVG"),
}


def get(paper: str, table: str, model: str, sparsity: str, name: str, column: str) -> Number:
    """The printed number of a cell."""
    return reported.cells(paper, table)[model, sparsity, name, column]


def claim(paper: str, where: str, printed: str, value: str, words: str, verdict: str, meaning="", used=(), headline=""):
    """A finding about a sentence."""
    return Finding(paper, "claim", where, printed, value, words, verdict, meaning, cells_of(used), headline=headline)


def findings() -> Iterator[Finding]:
    """Claims whose numbers the tables do not give."""
    yield from _linearpatch()
    yield from _linearpatch_mmlu()
    yield from _linearpatch_summary()
    yield from _prunecomp_quotes()
    yield from _prunecomp_improves()
    yield from _prunecomp_setup()
    yield from _laco()


def _linearpatch() -> Iterator[Finding]:
    ours = get("linearpatch", "1", "LLaMA-3-8B", "5/32", "LinearPatch[L]", "RP")
    best = get("linearpatch", "1", "LLaMA-3-8B", "5/32", "LLM-Streamline(None)", "RP")
    gap = ours.value - best.value
    if round(gap) != 4:
        yield claim(
            "linearpatch",
            "Abstract",
            "ahead by 4 %",
            f"{gap:.2f}",
            f"{ours.text} - {best.text} = {gap:.2f} points of RP; {100 * (ours.value / best.value - 1):.2f} % relative",
            SLIP,
            "Cite the points of RP.",
            headline=f"The abstract's lead of 4 % on LLaMA-3-8B is {gap:.2f} points.",
        )
    times = {
        name: get("linearpatch", "6", "LLaMA-2-7B", "", name, "Time cost (s)")
        for name in ("LinearPatch", "LLM-Streamline(FFN)")
    }
    factor = times["LLM-Streamline(FFN)"].value / times["LinearPatch"].value
    if abs(factor - 190) > 10:
        words = f"{times['LLM-Streamline(FFN)'].text} / {times['LinearPatch'].text} = {factor:.1f}"
        yield claim(
            "linearpatch", "Section 4.4", "about 190 times faster", f"{factor:.0f} times", words, SLIP, "Cite Table 6."
        )
    average = {k[2]: number for k, number in reported.cells("linearpatch", "4").items() if k[3] == "QA AVG"}
    top = max(average, key=lambda k: average[k].value if k.startswith("LinearPatch") else 0)
    for name, number in average.items():
        gap = average[top].value - number.value
        if name.startswith("LLM-Streamline") and abs(gap - 2.13) > 0.01:
            twin = [k for k, n in average.items() if abs(average[top].value - n.value - 2.13) < 0.005]
            words = f"{average[top].text} - {number.text} = {gap:.2f}; 2.13 is the gap to {', '.join(twin) or 'no row'}"
            yield claim(
                "linearpatch", "Section 4.4", "2.13 over LLM-Streamline", f"{gap:.2f}", words, SLIP, "", [number]
            )
    yield from _linearpatch_relative()


def _linearpatch_relative() -> Iterator[Finding]:
    """Improvements of the ablation (Table 5) that are called relative and are differences."""
    rp = {k[2]: number for k, number in reported.cells("linearpatch", "5").items() if k[3] == "RP"}
    for column, before, after in (
        ("relative improvement over the baseline %", "Vanilla", "+A"),
        ("relative RP gain %", "+A", "+FT"),
    ):
        printed = next(n for n in reported.numbers("linearpatch", "text") if n.column == column)
        points, relative = rp[after].value - rp[before].value, 100 * (rp[after].value / rp[before].value - 1)
        if abs(printed.value - relative) > 0.05:
            words = f"{rp[after].text} - {rp[before].text} = {points:.2f}; the ratio less 1 is {relative:.2f} %"
            yield claim(
                "linearpatch",
                f"Section 4.4, {before} to {after}",
                f"a relative {printed.text} %",
                f"{points:.2f} points, {relative:.2f} % relative",
                words,
                DEFINITION,
                "The sentence gives points of RP.",
                [rp[after]],
            )


def _linearpatch_mmlu() -> Iterator[Finding]:
    """Appendix E.2: gains on MMLU; the patch is to be held against the same selection without it."""
    cells = reported.cells("linearpatch", "12")
    worse, used, rows = [], [], set()
    for (model, sparsity, name, column), number in cells.items():
        bare = {"LinearPatch[S]": "ShortGPT", "LinearPatch[L]": "LLM-Streamline(None)"}.get(name)
        other = cells.get((model, sparsity, bare, column))
        if column != "Weighted AVG" or other is None:
            continue
        rows.add(number)
        if number.value < other.value and number not in used:
            worse.append(f"{model} {sparsity} {number.text} < {other.text} ({bare})")
            used.append(number)
    if worse:
        yield claim(
            "linearpatch",
            "Appendix E.2 against Table 12",
            "significant improvements across models and ratios",
            f"worse than the unpatched layers in {len(worse)} of {len(rows)} rows",
            "; ".join(worse),
            SLIP,
            f"On MMLU the patch wins {len(rows) - len(worse)} times and loses {len(worse)}: no gain to cite.",
            used,
            headline=f"On MMLU (Table 12) the patch is below the same layers unpatched in {len(worse)} of {len(rows)} rows; "
            "the text speaks of significant improvements.",
        )


def _linearpatch_summary() -> Iterator[Finding]:
    """The blog summary: a rotation alone is the identity, and a value that belongs to another setting."""
    rows = {k[2]: n for k, n in reported.cells("linearpatch", "summary2").items() if k[3] == "AVG"}
    bare = rows["No patch (direct pruning)"]
    rotated = rows["Hadamard only"]
    if rotated.value != bare.value:
        yield claim(
            "linearpatch",
            "Summary, table 2, Hadamard only",
            rotated.text,
            bare.text,
            f"H H^T = I: rotating there and back changes nothing, so it must give the unpatched {bare.text}",
            SLIP,
            "The summary's ablation cannot have been measured: cite Table 5.",
            [rotated],
        )
    paper = {(t, *k): n for t in ("1", "2") for k, n in reported.cells("linearpatch", t).items() if k[3] == "AVG"}
    right = get("linearpatch", "5", "LLaMA-2-7B", "9/32", "+FT", "AVG")
    for name, number in rows.items():
        same = [
            k for k, n in paper.items() if n.text == number.text and k[1] == number.model and k[2] != number.sparsity
        ]
        if same and "Distillation" in name:
            table, model, sparsity, method, _ = same[0]
            yield claim(
                "linearpatch",
                "Summary, table 2, LinearPatch + Distillation",
                number.text,
                right.text,
                f"{number.text} is {method} at {sparsity} in Table {table}, not distilled; "
                f"Table 5 has {right.text} for {number.sparsity}",
                SLIP,
                "A value of another setting.",
                [number],
            )


def _prunecomp_quotes() -> Iterator[Finding]:
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


def _prunecomp_improves() -> Iterator[Finding]:
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


def _prunecomp_setup() -> Iterator[Finding]:
    """What the text says about models, captions and hardware."""
    text = {n.column: n for n in reported.numbers("prunecomp", "text")}
    layers = text["layers of the model"]
    real = models.get(declare.MODELS[layers.model]).facts["layers"]
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


def _laco() -> Iterator[Finding]:
    """LaCo is said to be ahead in four categories, to keep 80 % at 25-30 %, and about 70 % near one half."""
    tables = {t: group(reported.numbers("laco", t)) for t in ("1", "2", "4")}
    lost, used = [], []
    for model in dict.fromkeys(key[0] for key in tables["2"]):
        rows = {k[2]: row for k, row in tables["2"].items() if k[0] == model and not k[2].startswith("Dense")}
        for category in ("Lang.", "Know.", "Exam.", "Unde."):
            best = max(rows, key=lambda k, c=category, r=rows: r[k][c].value)
            if best != "LaCo":
                lost.append(f"{model} {category} {best} {rows[best][category].text} > {rows['LaCo'][category].text}")
                used.append(rows["LaCo"][category])
    if lost:
        yield claim(
            "laco", "Section 3.5 against Table 2", "ahead in Language, Knowledge, Examination and Understanding",
            f"{len(lost)} of 16 cells are a baseline's", "; ".join(lost), SLIP, "", used,
        )  # fmt: skip
    yield from _laco_eighty(tables)
    for key, row in tables["4"].items():
        dense = next(r for k, r in tables["4"].items() if k[0] == key[0] and k[2] == "Dense*")
        kept = 100 * row["Avg."].value / dense["Avg."].value
        removed = float(key[1].rstrip("%"))
        if removed >= 45 and abs(kept - 70) > 5:
            words = f"{row['Avg.'].text} / {dense['Avg.'].text} = {kept:.1f} %"
            printed = "about 70 % at close to 50 %"
            yield claim(
                "laco", f"Section 4.3, {key[0]} {key[1]}", printed, f"{kept:.1f} %", words, SLIP, "", [row["Avg."]]
            )


def _laco_eighty(tables: dict[str, dict]) -> Iterator[Finding]:
    """The abstract's 80 % at pruning ratios of 25-30 %."""
    shares, kept = {}, {}
    for key, row in tables["1"].items():
        if key[2] == "LaCo":
            facts = models.get(declare.MODELS[key[0]]).facts
            shares[key[0]] = 100 * (facts["layers"] - row["layers"].value) * facts["layer_params"] / facts["params"]
            kept[key[0]] = tables["2"][key[0], "", "LaCo", ""]["Per."]
    both = [model for model in shares if 25 <= shares[model] <= 30 and kept[model].value > 80]
    if len(both) < len(shares):
        yield claim(
            "laco",
            "Abstract",
            "over 80 % at pruning ratios of 25-30 %",
            f"{len(both)} of {len(shares)} models",
            "; ".join(f"{m}: {shares[m]:.1f} % removed, {kept[m].text} % kept" for m in shares),
            SLIP,
            "Say which model: the others lose less than 25 % of their parameters, or keep less than 80 % of the score.",
            list(kept.values()),
            headline=f"'Over 80 % at pruning ratios of 25-30 %' holds for {len(both)} of {len(shares)} models "
            f"({', '.join(both)}); the others lose {min(shares.values()):.1f} to "
            f"{max(v for m, v in shares.items() if m not in both):.1f} % of their parameters.",
        )

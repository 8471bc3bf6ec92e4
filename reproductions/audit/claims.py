"""Sentences of the papers, held against the tables they sum up."""

from __future__ import annotations

from collections.abc import Iterator

from reproductions import reported
from reproductions.audit.findings import DEFINITION, SLIP, Finding, cells_of
from reproductions.reported import Number


def _get(paper: str, table: str, model: str, sparsity: str, name: str, column: str) -> Number:
    return reported.cells(paper, table)[model, sparsity, name, column]


def findings() -> Iterator[Finding]:
    """Claims whose numbers the tables do not give."""
    yield from _linearpatch()
    yield from _prunecomp()
    yield from _laco()
    yield from _reassessing()


def _claim(paper: str, where: str, printed: str, value: str, arithmetic: str, verdict: str, meaning: str, used=()):
    return Finding(paper, "claim", where, printed, value, arithmetic, verdict, meaning, cells_of(used))


def _linearpatch() -> Iterator[Finding]:
    ours = _get("linearpatch", "1", "LLaMA-3-8B", "5/32", "LinearPatch[L]", "RP")
    best = _get("linearpatch", "1", "LLaMA-3-8B", "5/32", "LLM-Streamline(None)", "RP")
    gap = ours.value - best.value
    if round(gap) != 4:
        words = f"{ours.text} - {best.text} = {gap:.2f}"
        yield _claim("linearpatch", "Abstract", "ahead by 4 %", f"{gap:.2f}", words, SLIP, "Cite the points of RP.")
    times = {
        name: _get("linearpatch", "6", "LLaMA-2-7B", "", name, "Time cost (s)")
        for name in ("LinearPatch", "LLM-Streamline(FFN)")
    }
    factor = times["LLM-Streamline(FFN)"].value / times["LinearPatch"].value
    if abs(factor - 190) > 10:
        words = f"{times['LLM-Streamline(FFN)'].text} / {times['LinearPatch'].text} = {factor:.1f}"
        yield _claim("linearpatch", "Section 4.4", "about 190 times faster", f"{factor:.0f} times", words, SLIP, "")
    rows = reported.cells("linearpatch", "4")
    average = {key[2]: number for key, number in rows.items() if key[3] == "QA AVG"}
    top = max(average, key=lambda k: average[k].value if k.startswith("LinearPatch") else 0)
    for name, number in average.items():
        if name in (top, "Dense"):
            continue
        gap = average[top].value - number.value
        if name.startswith("LLM-Streamline") and abs(gap - 2.13) > 0.01:
            twin = [k for k, n in average.items() if abs(average[top].value - n.value - 2.13) < 0.005]
            words = f"{average[top].text} - {number.text} = {gap:.2f}; 2.13 is the gap to {', '.join(twin) or 'no row'}"
            yield _claim(
                "linearpatch", "Section 4.4", "2.13 over LLM-Streamline", f"{gap:.2f}", words, SLIP, "", [number]
            )


def _prunecomp() -> Iterator[Finding]:
    """Compensation is said to improve every metric."""
    for table, lower_is_better in (("1", True), ("2", False), ("A1", True), ("A2", False)):
        cells = reported.cells("prunecomp", table)
        for (model, sparsity, name, column), number in cells.items():
            after = cells.get((model, sparsity, f"{name} +Prune&Comp", column))
            if column != "AVG" or after is None or (after.value > number.value) != lower_is_better:
                continue
            yield _claim(
                "prunecomp",
                f"'consistently enhances' against Table {table}, {model} {sparsity} {name}",
                "improved by Prune&Comp",
                f"{number.text} -> {after.text}",
                f"{'perplexity' if lower_is_better else 'accuracy'}: {after.text} - {number.text} "
                f"= {after.value - number.value:+.2f}",
                SLIP,
                "The claim has exceptions; name them.",
                [number, after],
            )


def _laco() -> Iterator[Finding]:
    """LaCo is said to win four of the five categories on every model."""
    cells = reported.cells("laco", "2")
    categories = ("Reas.", "Lang.", "Know.", "Exam.", "Unde.")
    for model in dict.fromkeys(key[0] for key in cells):
        scores: dict[str, dict[str, Number]] = {}
        for (label, _, name, column), number in cells.items():
            if label == model and column in categories and not name.startswith("Dense"):
                scores.setdefault(column, {})[name] = number
        lost = [c for c, row in scores.items() if max(row, key=lambda k, row=row: row[k].value) != "LaCo"]
        if len(lost) > 1:
            words = "; ".join(f"{c}: {', '.join(f'{k} {n.text}' for k, n in scores[c].items())}" for c in lost)
            won = f"{len(scores) - len(lost)} of {len(scores)}"
            yield _claim("laco", f"Section 4.2 and Table 2, {model}", "best in four of five", won, words, SLIP, "")


def _reassessing() -> Iterator[Finding]:
    rows: dict[tuple, dict[str, Number]] = {}
    for (model, _, name, column), number in reported.cells("reassessing", "4").items():
        rows.setdefault((model, name), {})[column] = number
    for model in dict.fromkeys(m for m, _ in rows):
        mine = next(row for (m, name), row in rows.items() if m == model and "Alpaca" in name)
        for (other, name), row in rows.items():
            tasks = [c for c in row if c != "Avg."]
            if other != model or row is mine or name == "Dense":
                continue
            shown_gap = mine["Avg."].value - row["Avg."].value
            true = sum(mine[c].value - row[c].value for c in tasks) / len(tasks)
            if abs(shown_gap - true) < 0.001:
                continue
            fewer = len(tasks) < len(mine) - 1
            common = sum(mine[c].value for c in tasks) / len(tasks)
            yield _claim(
                "reassessing",
                f"Section 5 and Table 4, {model}, margin over {name}",
                f"{100 * shown_gap:.2f} points",
                f"{100 * true:.2f} points",
                f"on the {len(tasks)} tasks of {name}: {common:.4f} - {sum(row[c].value for c in tasks) / len(tasks):.4f}",
                DEFINITION if fewer else SLIP,
                "The two averages are over different tasks; compare on the common ones."
                if fewer
                else "The margin rests on a wrong average.",
                [row["Avg."]],
            )

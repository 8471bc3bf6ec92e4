"""What the targets that look for causes say, in tables that documents show: every number from records."""

from __future__ import annotations

from common.records.results import Store
from common.utils.text_tables import markdown
from extensions.league import answers
from reproductions.linearpatch.patch_ablation import CAUSES
from reproductions.render import show


def text(store: Store) -> str:
    """LinearPatch's Figure 6: changes of perplexity against the cut alone, a line a row, a column a cut of each model."""
    from figures.patch_ablation import Change, changes

    columns: dict[str, dict[str, Change]] = {}
    for subject in show.published(CAUSES, store):
        entries = show.entries(CAUSES, store, subject, CAUSES.rows(subject))
        of = {(entry["group"], entry["sparsity"], entry["method"]): entry for entry in entries}
        for key, change in changes(entries).items():
            name = "the stand-in" if subject.standin else subject.label.partition(",")[0]
            cut = f"{name}, [{of[key]['variant'] or 'L'}] {key[1]}"
            columns.setdefault(cut, {})[of[key]["name"]] = change
    methods = dict.fromkeys(method for found in columns.values() for method in found)
    if not methods:
        return "Not measured yet."
    lines = [[method, *(_cell(found.get(method)) for found in columns.values())] for method in methods]
    return markdown(["Change of perplexity, %", *columns], lines, "lr")


def endings(store: Store) -> str:
    """`league-answers`: changes against no repair after the same choice of layers, a table a model, a line a repair."""
    from figures.answers import against_none

    parts = []
    for subject in show.published(answers.ANSWERS, store):
        profile = subject.profile
        label, tasks = answers.TEXTS[profile][0], answers.ASKED[profile]
        columns = [label, answers.SCALED.format(label)]
        columns += [ending.format(tasks[0]) for ending in (answers.RIGHT, answers.WRONG)]
        columns += [answers.GAP.format(task) for task in tasks]
        columns.append(answers.AVERAGE)
        labels = {column.id: column.label for column in answers.columns(profile)}
        heads = [f"{labels[label]}, %", "logits scaled, %", *(labels[name] for name in columns[2:])]
        lines = []
        entries = show.entries(answers.ANSWERS, store, subject, answers.ANSWERS.rows(subject))
        rows, names = against_none(entries), {entry["method"]: entry["name"] for entry in entries}
        for (sparsity, method), changes in rows.items():
            digits = [1, 1, *([0] * (len(columns) - 3)), 1]
            cells = [_cell(changes.get(name), number) for name, number in zip(columns, digits, strict=True)]
            lines.append([sparsity, names[method], *cells])
        if rows:
            parts.append(f"{subject.label}:\n\n{markdown(['Removed', 'Repair', *heads], lines, 'rlr')}")
    return "\n\n".join(parts) or "Not measured yet."


def _cell(change: tuple[float, float, float] | None, digits: int = 1) -> str:
    if change is None:
        return "·"
    value, low, high = (f"{part:+.{digits}f}".replace("-", "−") for part in change)
    return f"{value} [{low}, {high}]"

"""What LinearPatch's Figure 6 (ours) says of the patch, in a table that its README shows: every number from records."""

from __future__ import annotations

from common.results import Store
from reproductions import show
from reproductions.linearpatch.causes import CAUSES


def text(store: Store) -> str:
    """Changes of perplexity against the cut alone: a line for each row, a column for each cut of each model."""
    from figures.causes import Change, changes

    columns: dict[str, dict[str, Change]] = {}
    for subject in show.published(CAUSES, store):
        found = changes(show.entries(CAUSES, store, subject, CAUSES.rows(subject)))
        for (label, sparsity, method), change in found.items():
            name = "the stand-in" if subject.standin else subject.label.partition(",")[0]
            cut = f"{name}, {'[L]' if label == subject.label else '[S]'} {sparsity}"
            columns.setdefault(cut, {})[method] = change
    methods = dict.fromkeys(method for found in columns.values() for method in found)
    if not methods:
        return "Not measured yet."
    lines = [["Change of perplexity, %", *columns], ["---", *(["---:"] * len(columns))]]
    lines += [[method, *(_cell(found.get(method)) for found in columns.values())] for method in methods]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(change: tuple[float, float, float] | None) -> str:
    if change is None:
        return "·"
    value, low, high = (f"{part:+.1f}".replace("-", "−") for part in change)
    return f"{value} [{low}, {high}]"

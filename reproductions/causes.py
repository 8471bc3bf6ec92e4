"""What LinearPatch's Figure 6 (ours) says of the patch, in a list that its README shows: every number from records."""

from __future__ import annotations

from common.results import Store
from reproductions import show
from reproductions.linearpatch.causes import CAUSES, CUT

Change = tuple[float, float, float]


def text(store: Store) -> str:
    """A table of changes of perplexity against the cut alone: a line for each row, a column for each cut of each model."""
    columns: dict[str, dict[str, Change]] = {}
    for subject in show.published(CAUSES, store):
        for (label, sparsity, method), found in show.changes(CAUSES, store, subject).items():
            name = "the stand-in" if subject.standin else subject.label.partition(",")[0]
            cut = f"{name}, {'[S]' if label != subject.label else '[L]'} {sparsity}"
            columns.setdefault(cut, {})[method] = next(iter(found.values()))
    methods = dict.fromkeys(method for found in columns.values() for method in found if method != CUT)
    if not methods:
        return "Not measured yet."
    lines = [["Change of perplexity, %", *columns], ["---", *(["---:"] * len(columns))]]
    lines += [[method, *(_cell(found.get(method)) for found in columns.values())] for method in methods]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(change: Change | None) -> str:
    if change is None:
        return "·"
    value, low, high = (f"{part:+.1f}".replace("-", "−") for part in change)
    return f"{value} [{low}, {high}]"

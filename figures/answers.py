"""The league's answers: what a repair does to text, to right and wrong endings, and to the gap between them."""

from __future__ import annotations

import numpy as np

from figures.style import BLUE, GREY, ORANGE, PURPLE, caption, plt

NONE = ", none"  # ends the name of the row that the others of its choice of layers are held against
SCALED, RIGHT, WRONG, GAP = ", logits scaled", ", right", ", wrong", ", gap"
COLOURS = (BLUE, ORANGE, PURPLE)  # one a task

Change = tuple[float, float, float]  # and the ends of its 95 % interval


def draw(entries: list[dict], profile: str) -> plt.Figure | None:
    """A row of axes for each number of layers, a line for each repair: three kinds of change against no repair.

    Of perplexity (percent; open: with the best factor on the logits), of the losses of endings (nats per character; open:
    wrong ones), of the gap between wrong and right ones. None where there is nothing to show.
    """
    found = [(entry, none) for entry in entries if (none := _alone(entry, entries)) is not None]
    if not found:
        return None
    sparsities = list(dict.fromkeys(entry["sparsity"] for entry, _ in found))
    methods = {s: [entry["method"] for entry, _ in found if entry["sparsity"] == s] for s in sparsities}
    heights = [len(methods[s]) for s in sparsities]
    figure, grid = plt.subplots(
        len(sparsities),
        3,
        figsize=(7.6, 1.5 + 0.42 * sum(heights)),
        gridspec_kw={"height_ratios": heights},
        sharex="col",
        squeeze=False,
    )
    for row, sparsity in zip(grid, sparsities, strict=True):
        pairs = [pair for pair in found if pair[0]["sparsity"] == sparsity]
        for place, (entry, none) in enumerate(pairs):
            _line(row, place, entry, none)
        for axes in row:
            axes.axvline(0, color=GREY, lw=0.8)
            axes.set(ylim=(len(pairs) - 0.5, -0.5), yticks=range(len(pairs)), yticklabels=[])
        row[0].set_yticklabels([_short(name) for name in methods[sparsity]])
        row[0].set_ylabel(f"{sparsity} removed")
    for axes, text in zip(grid[-1], ("perplexity (%)", "loss of endings", "gap, wrong less right"), strict=True):
        axes.set_xlabel(f"change of {text}" if text != "gap, wrong less right" else f"change of the {text}")
    _legend(figure, grid[0, 0], [column.removesuffix(GAP) for column in _columns(found, GAP)])
    caption(figure, [entry for pair in found for entry in pair])
    return figure


def _alone(entry: dict, entries: list[dict]) -> dict | None:
    """The row of the same layers removed without a repair, if both have numbers and this is another one."""
    choice = entry["method"].partition(",")[0]
    place = (entry["model"], entry["sparsity"], choice + NONE)
    others = (e for e in entries if (e["model"], e["sparsity"], e["method"]) == place and e is not entry)
    none = next(others, None)
    return none if none is not None and entry["scores"].keys() & none["scores"].keys() else None


def _columns(found: list[tuple[dict, dict]], ending: str) -> list[str]:
    names = dict.fromkeys(name for entry, none in found for name in entry["scores"] if name in none["scores"])
    return [name for name in names if name.endswith(ending)]


def _line(row: np.ndarray, place: int, entry: dict, none: dict) -> None:
    """One repair's marks in the three axes."""
    tasks = [name.removesuffix(GAP) for name in _columns([(entry, none)], GAP)]
    text = next((name.removesuffix(SCALED) for name in _columns([(entry, none)], SCALED)), None)
    if text is not None:
        for shift, column, face in ((-0.12, text, BLUE), (0.12, text + SCALED, "white")):
            if column in entry["scores"] and column in none["scores"]:
                _mark(row[0], place + shift, _ratio(entry, none, column), BLUE, face)
    for number, (task, colour) in enumerate(zip(tasks, COLOURS, strict=False)):
        shift = 0.24 * (number - (len(tasks) - 1) / 2)
        for ending, face in ((RIGHT, colour), (WRONG, "white")):
            _mark(row[1], place + shift, _difference(entry, none, task + ending), colour, face)
        _mark(row[2], place + shift, _difference(entry, none, task + GAP), colour, colour)


def _mark(axes: plt.Axes, y: float, change: Change, colour: str, face: str) -> None:
    value, low, high = change
    ends = [[max(value - low, 0.0)], [max(high - value, 0.0)]]
    axes.errorbar(value, y, xerr=ends, fmt="o", ms=4, color=colour, mfc=face, capsize=2, lw=1)


def _ratio(entry: dict, none: dict, column: str) -> Change:
    """Percent, the interval that of the ratio on the same draws of windows."""
    ratios = entry["replicates"](column) / none["replicates"](column)
    parts = (entry["scores"][column] / none["scores"][column], *np.percentile(ratios, (2.5, 97.5)))
    return tuple(100 * (float(part) - 1) for part in parts)


def _difference(entry: dict, none: dict, column: str) -> Change:
    """The interval is that of the difference on the same draws of items."""
    apart = entry["replicates"](column) - none["replicates"](column)
    return (entry["scores"][column] - none["scores"][column], *map(float, np.percentile(apart, (2.5, 97.5))))


def _short(method: str) -> str:
    return method.replace(", 3 layers, ridge from held-out text (ours)", " (ours)").replace(", least squares", "")


def _legend(figure: plt.Figure, axes: plt.Axes, tasks: list[str]) -> None:
    for task, colour in zip(tasks, COLOURS, strict=False):
        axes.plot([], [], "o", ms=4, color=colour, label=task)
    axes.plot([], [], "o", ms=4, color=GREY, label="perplexity as it is; right endings")
    axes.plot([], [], "o", ms=4, color=GREY, mfc="white", label="with the best factor on the logits; wrong endings")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)

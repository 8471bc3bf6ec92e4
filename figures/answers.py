"""The league's answers: what a repair does to text, to right and wrong endings, and to the gap between them."""

import numpy as np
from matplotlib.lines import Line2D

from figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, above, plt, removed, whiskers

NONE = "none"  # the repair of the row that the others of its choice of layers are held against
SCALED, RIGHT, WRONG, GAP = "/scaled", "/right", "/wrong", "/gap"  # end the ids of columns
AVERAGE = "average"
SHORT = {"refit": "refit (extension)", "replaceme": "ReplaceMe"}  # repairs in few words
TASKS = {  # tasks in full words
    "HeSw": "HellaSwag",
    "ARC-e": "ARC-Easy",
    "Continue": "continuation",
    "ParType": "type of a parameter",
    "ParText": "meaning of a parameter",
}
COLOURS = (BLUE, ORANGE, PURPLE)  # one a task
ROOM = 0.95  # inches below an axis for its ticks and label
MARK = {"marker": "o", "ms": 4}
# Of perplexity: how far below the middle of its line a mark stands, and what it is.
PLAIN_LOOK, SCALED_LOOK = (-0.12, {"color": BLACK}), (0.12, {"color": GREEN, "marker": "s"})

COLUMNS = (  # title, label of the axis
    ("perplexity", "change, %\n(less is better)"),
    ("loss on right and\non wrong answers", "change, nats per\n1,000 characters"),
    ("gap: loss on wrong\nminus right answers", "change, nats per\n1,000 characters\n(more is better)"),
    ("accuracy, mean\nof the tasks", "change, points\n(more is better)"),
)

Change = tuple[float, float, float]  # and the ends of its 95 % interval
Changes = dict[str, Change]  # by column


def against_none(entries: list[dict]) -> dict[tuple[str, str], Changes]:
    """Return the change against no repair of the same layers, by (sparsity, method) and column.

    Perplexities change in percent. Intervals are paired: of ratios and differences on the same draws of sequences and
    items. Rows without losses of endings are left out.
    """
    texts = {name.removesuffix(SCALED) for entry in entries for name in entry["scores"] if name.endswith(SCALED)}
    changes_by_row = {}
    for entry in entries:
        none = alone(entry, entries)
        shared = [name for name in entry["scores"] if name in none["scores"]] if none is not None else []
        changes = {
            name: difference(entry, none, name) for name in shared if name.endswith((RIGHT, WRONG, GAP, AVERAGE))
        }
        changes |= {name: ratio(entry, none, name) for name in shared if name.removesuffix(SCALED) in texts}
        if any(name.endswith(GAP) for name in changes):
            changes_by_row[entry["sparsity"], entry["method"]] = changes
    return changes_by_row


def alone(entry: dict, entries: list[dict]) -> dict | None:
    """Return the row with the same layers removed and no repair; None for that row itself, and if there is none."""
    if entry["dense"] or entry["spec"].repair == NONE:
        return None

    def removal(row: dict) -> tuple:
        return row["group"], row["sparsity"], row["spec"].selection

    unrepaired = (row for row in entries if not row["dense"] and row["spec"].repair == NONE)
    return next((row for row in unrepaired if removal(row) == removal(entry)), None)


def ratio(entry: dict, none: dict, column: str) -> Change:
    """Return the difference of a number from the row without a repair, in percent, with its 95 % interval."""
    ratios = entry["replicates"](column) / none["replicates"](column)
    parts = (entry["scores"][column] / none["scores"][column], *np.percentile(ratios, (2.5, 97.5)))
    return tuple(100 * (float(part) - 1) for part in parts)


def difference(entry: dict, none: dict, column: str) -> Change:
    """Return the difference of a number from the row without a repair, with its 95 % interval."""
    apart = entry["replicates"](column) - none["replicates"](column)
    return (entry["scores"][column] - none["scores"][column], *map(float, np.percentile(apart, (2.5, 97.5))))


def draw(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw four kinds of change against no repair: a row of axes for each number of layers, a line for each repair.

    They are the change of perplexity (percent; squares: with the best factor on the logits), of the losses of endings
    (nats per 1,000 characters; open: wrong ones), of the gap between wrong and right ones, and of the tasks' average. A
    column with several marks has a legend below. None if there is nothing to show.
    """
    changes_by_row = against_none(entries)
    if not changes_by_row:
        return None
    by_size: dict[str, dict[str, Changes]] = {}
    for (sparsity, method), changes in changes_by_row.items():
        by_size.setdefault(sparsity, {})[method] = changes
    columns = dict.fromkeys(name for changes in changes_by_row.values() for name in changes)
    specs = {entry["method"]: entry["spec"] for entry in entries}
    tasks = [name.removesuffix(GAP) for name in columns if name.endswith(GAP)]
    heights = [len(rows) for rows in by_size.values()]
    figure, grid = plt.subplots(
        len(by_size),
        4,
        figsize=(8.0, 2.6 + 0.5 * sum(heights)),
        gridspec_kw={"height_ratios": heights},
        sharex="col",
        squeeze=False,
    )
    for axes, (sparsity, rows) in zip(grid, by_size.items(), strict=True):
        for place, changes in enumerate(rows.values()):
            _line(axes, place, changes, tasks)
        for panel in axes:
            panel.axvline(0, color=GREY, lw=0.8)
            panel.set(ylim=(len(rows) - 0.5, -0.5), yticks=range(len(rows)), yticklabels=[])
        axes[0].set_yticklabels([_short(specs[method]) for method in rows])
        axes[0].set_ylabel(f"{sparsity} removed")
    for (top, bottom), (title, label) in zip(grid[[0, -1]].T, COLUMNS, strict=True):
        top.set_title(title, fontsize=9)
        bottom.set_xlabel(label)
    _legends(figure, grid[-1], tasks)
    shown = [entry for entry in entries if (entry["sparsity"], entry["method"]) in changes_by_row]
    above(figure, f"{removed(shown)}; change of each repair against no repair (bars: 95 % paired bootstrap)")
    return figure


def _line(row: np.ndarray, place: int, changes: Changes, tasks: list[str]) -> None:
    """Draw one repair's marks in the four axes."""
    for column, change in changes.items():
        if column == AVERAGE:
            _mark(row[3], place, change, color=BLACK)
        elif not column.endswith((RIGHT, WRONG, GAP)):
            apart, look = SCALED_LOOK if column.endswith(SCALED) else PLAIN_LOOK
            _mark(row[0], place + apart, change, **look)
    room = 0.84 / max(len(tasks), 1)  # of a line, for one task
    for number, (task, colour) in enumerate(zip(tasks, COLOURS, strict=False)):
        y = place + room * (number - (len(tasks) - 1) / 2)
        marks = ((1, RIGHT, -room / 4, colour), (1, WRONG, room / 4, "white"), (2, GAP, 0, colour))
        for axes, ending, apart, face in marks:  # right and wrong ones do not cover one another
            if task + ending in changes:
                _mark(row[axes], y + apart, changes[task + ending], color=colour, mfc=face)


def _mark(axes: plt.Axes, y: float, change: Change, **look) -> None:
    value, low, high = change
    axes.errorbar(value, y, xerr=whiskers(value, low, high), **MARK | look, ls="none", capsize=2, lw=1)


def _short(spec) -> str:
    """Return a row in few words: of how it was refitted, and of ReplaceMe's objectives, there is one here."""
    repair = SHORT.get(spec.repair, spec.repaired)
    return f"{spec.selected}, {repair}" + (",\ncalibrated on HellaSwag" if spec.text else "")


def _legends(figure: plt.Figure, bottom: np.ndarray, tasks: list[str]) -> None:
    """Draw below each column what its marks are."""
    colours = [(TASKS.get(task, task), {"color": colour}) for task, colour in zip(tasks, COLOURS, strict=False)]
    endings = [("right answers", {"color": GREY}), ("wrong answers", {"color": GREY, "mfc": "white"})]
    perplexities = [("unscaled logits", PLAIN_LOOK[1]), ("logits at the best\ntemperature", SCALED_LOOK[1])]
    for axes, marks in zip(bottom, (perplexities, colours + endings, colours), strict=False):
        handles = [Line2D([], [], **MARK | look, linestyle="none", label=label) for label, look in marks]
        below = -ROOM / (axes.get_position().height * figure.get_figheight())
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, below), fontsize=7.5, handletextpad=0.2)

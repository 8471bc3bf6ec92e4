"""Loss curves of trainings, from the records of what they trained."""

import textwrap
from collections.abc import Callable, Iterable
from statistics import fmean, geometric_mean

import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter

from figures.style import BLACK, BLUE, GREEN, GREY, OLIVE, ORANGE, PURPLE, SKY, VERMILION, WINE, break_below

COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, GREY, SKY, WINE, BLACK, OLIVE)
LABEL_WIDTH = 46  # characters; longer labels are wrapped, so that the legend is no wider than its panel
STYLES = ("-", "--", "-.", ":")  # so that lines differ without colour too
WIDEST = 2.8  # points: the first line; each later one is narrower, so that none is hidden by those drawn over it
MARKS = ("o", "s", "^", "D", "v", "<", ">", "p", "h", "d")  # one to a colour
FARTHEST = 0.004  # of the steps: how far a validation mark may stand from its own, so that none lies on another
ALONG = 6  # marks on a line that has no validation losses
NAMES = {
    "kl": "KL to the teacher (nats per token)",
    "mse": "mean squared error",
    "ce": "loss (nats per token)",
}


def draw(entries: Iterable[dict], profile: str, group: Callable[[dict], str] = lambda entry: "", against: str = ""):
    """Draw loss against step, raw (faint) and smoothed: a panel for each kind of loss, a line for each trained row.

    Validation losses, if there are any, are in a panel below, those of one step side by side. Without them marks
    distinguish lines that coincide. None if no training has been recorded.

    Args:
        entries: Entries of `reproductions.render.show.drawn`. A result of a trained model has the details ``training``:
            ``losses``, and if they are means of several steps ``steps_per_point``; perhaps ``validation``, pairs of a
            step and a loss; ``loss`` names their kind; ``status`` says whether it diverged, which a cross marks.
        profile: Profile of the models.
        group: Function from an entry to the title of its panel; each group has panels of its own.
        against: Method whose losses are subtracted step by step in its panel. Losses of the same batches rise and fall
            together, far more than they differ.
    """
    panels: dict[tuple[str, str], list[tuple[str, str, dict]]] = {}
    entries = list(entries)
    settings_differ = len({(entry["model"], entry["sparsity"]) for entry in entries}) > 1
    for entry in entries:
        curve = trained(entry)
        if curve is not None:
            label = f"{entry['name']}, {entry['model']} {entry['sparsity']}" if settings_differ else entry["name"]
            panels.setdefault((group(entry), curve.get("loss", "ce")), []).append((entry["method"], label, curve))
    if not panels:
        return None
    below = any(curve.get("validation") for lines in panels.values() for *_, curve in lines)
    size = 0.6 + 3.8 * len(panels), 6.6 if below else 4.2
    figure, grid = plt.subplots(1 + below, len(panels), figsize=size, squeeze=False)
    for axes, ((title, kind), lines) in zip(grid.T, sorted(panels.items())):
        axes[0].set_title(title)
        baselines = ((dict(enumerate(curve["losses"])), label) for method, label, curve in lines if method == against)
        less, against_label = next(baselines, ({}, ""))
        # One label looks the same in all panels; of a method that was trained towards several losses, one look a loss.
        labels_in_order = list(dict.fromkeys(label for panel_lines in panels.values() for _, label, _ in panel_lines))
        for place, (_, label, curve) in enumerate(lines):
            number = labels_in_order.index(label)
            look = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": STYLES[number % len(STYLES)],
                "linewidth": WIDEST - (WIDEST - 1) * number / max(1, len(labels_in_order) - 1),
                "marker": MARKS[number % len(MARKS)],
                "markeredgecolor": "white",
                "markeredgewidth": 0.5,
                "markersize": 5,
            }
            marked = [] if below else _marked(len(curve["losses"]), number / len(labels_in_order))
            _line(axes[0], label, curve, look | {"markevery": marked}, less, kind != "ce")
            if below:
                apart = FARTHEST * max(len(curve["losses"]) * curve.get("steps_per_point", 1) for *_, curve in lines)
                _validation(axes[1], curve, look, apart * (2 * place / max(1, len(lines) - 1) - (len(lines) > 1)))
        for axis, of in zip(axes, ("", "validation ")):
            axis.set_ylabel(of + NAMES.get(kind, kind) + (f"\nless that of {against_label}" if less and not of else ""))
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            if kind != "ce":
                axis.set_yscale("log")  # starts far apart
                axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.yaxis.set_major_formatter("{x:g}")
                axis.yaxis.set_minor_formatter(NullFormatter())
            elif of or not less:
                break_below(axis)
        axes[0].set_xlabel("step (smoothed)" if less else "step (faint: raw; line: smoothed)")
        if below:
            axes[1].set(xlabel="step (marks of one step side by side)", xlim=axes[0].get_xlim())
            validated_steps = {step for *_, curve in lines for step, _ in curve.get("validation", ())}
            axes[1].xaxis.set_major_locator(FixedLocator(sorted(validated_steps), nbins=8))
        handles, labels = axes[0].get_legend_handles_labels()
        axes[-1].legend(handles, labels, loc="upper left", bbox_to_anchor=(-0.12, -0.2), fontsize=7.5, handlelength=3)
    return figure


def trained(entry: dict) -> dict | None:
    """Return the training details of an entry's results; they are the same in all of them."""
    curves = (record["details"].get("training") or {} for record in entry["records"].values())
    return next((curve for curve in curves if curve.get("losses")), None)


def _line(axis, label: str, curve: dict, look: dict, less: dict[int, float], logarithmic: bool) -> None:
    diverged = curve.get("status") == "diverged"
    losses, stretch = curve["losses"], curve.get("steps_per_point", 1)
    if less:  # where the other has ended nothing can be subtracted
        losses = [loss - less[point] for point, loss in enumerate(losses) if point in less]
    label = textwrap.fill(label + (" (diverged)" if diverged else ""), LABEL_WIDTH)
    steps = [stretch * (point + 1) for point in range(len(losses))]
    if not less:
        axis.plot(steps, losses, color=look["color"], alpha=0.25, linewidth=0.6)
    axis.plot(steps, _smoothed(losses, logarithmic), **look, label=label)
    if diverged:
        axis.plot(steps[-1:], losses[-1:], "x", color=look["color"], markersize=7, markeredgewidth=2)


def _validation(axis, curve: dict, look: dict, beside: float) -> None:
    """Draw the validation losses, so many steps beside their own."""
    if curve.get("validation"):
        steps, losses = zip(*curve["validation"], strict=True)
        axis.plot([step + beside for step in steps], losses, **look | {"linewidth": 1, "clip_on": False})


def _marked(points: int, share: float) -> list[int]:
    """Return the points of a line that are marked: every ``points / ALONG`` of them from a share of that on."""
    return sorted({int((number + share) * points / ALONG) for number in range(ALONG)})


def _smoothed(losses: list[float], geometric: bool) -> list[float]:
    """Means over about a tenth of the curve, centred; of fewer towards its start, where it falls fast, the first point alone.

    geometric: for a logarithmic axis, where one loss a hundred times the others would lift an arithmetic mean above all of
    them.
    """
    half = max(1, len(losses) // 20)
    parts = (losses[i - min(half, i) : i + min(half, i) + 1] for i in range(len(losses)))
    return [geometric_mean(part) if geometric and min(part) > 0 else fmean(part) for part in parts]

"""Loss curves of trainings, from the records of what they trained."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable

import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION

COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, GREY)
LABEL_WIDTH = 46  # characters; longer labels are wrapped, so that the legend is no wider than its panel
STYLES = ("-", "--", "-.", ":")  # so that lines differ without colour too
WIDEST = 2.8  # points: the first line; each later one is narrower, so that none is hidden by those drawn over it
MARKS = ("o", "s", "^", "D")  # of validation losses, one to a style
NAMES = {
    "kl": "KL to the teacher (nats per token)",
    "mse": "mean squared error",
    "ce": "loss (nats per token)",
}


def draw(entries: Iterable[dict], profile: str, group: Callable[[dict], str] = lambda entry: ""):
    """One panel per kind of loss (and ``group`` of entries, its title), one line per row that was trained: loss against step,
    raw (faint) and smoothed; marks where a validation loss was taken.

    entries: as `reproductions.show.drawn` makes them. A record of a trained model has the details ``training``:
    ``losses``, and if they are means of several steps ``steps_per_point``; perhaps ``validation``, pairs of a step and a
    loss; ``loss`` names their kind; ``status`` tells whether it diverged, which a cross marks.
    """
    panels: dict[tuple[str, str], list[tuple[str, dict]]] = {}
    entries = list(entries)
    several = len({(entry["model"], entry["sparsity"]) for entry in entries}) > 1
    for entry in entries:
        curve = trained(entry)
        if curve is not None:
            label = f"{entry['method']}, {entry['model']} {entry['sparsity']}" if several else entry["method"]
            panels.setdefault((group(entry), curve.get("loss", "ce")), []).append((label, curve))
    if not panels:
        figure = plt.figure(figsize=(4.4, 1))
        figure.text(0.5, 0.5, "no training has been recorded", ha="center", va="center", color=GREY)
        return figure
    figure, axes = plt.subplots(1, len(panels), figsize=(0.6 + 3.8 * len(panels), 4.2), squeeze=False)
    for axis, ((title, kind), lines) in zip(axes[0], sorted(panels.items())):
        axis.set_title(title)
        # One label looks the same in all groups.
        known = list(dict.fromkeys(label for (_, other), own in panels.items() if other == kind for label, _ in own))
        for label, curve in lines:
            number = known.index(label)
            width = WIDEST - (WIDEST - 1) * number / max(1, len(known) - 1)
            _line(axis, label, curve, COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)], width)
        validated = any(curve.get("validation") for _, curve in lines)
        axis.set_xlabel("step (faint: raw; line: smoothed" + ("; marks: validation)" if validated else ")"))
        axis.set_ylabel(NAMES.get(kind, kind))
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if kind != "ce":
            axis.set_yscale("log")  # starts far apart
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        axis.legend(loc="upper left", bbox_to_anchor=(-0.12, -0.2), fontsize=7.5, handlelength=3)
    return figure


def trained(entry: dict) -> dict | None:
    """The training details of an entry's records; they are the same in all of them."""
    for record in entry["records"].values():
        curve = record["details"].get("training")
        if curve and curve.get("losses"):
            return curve
    return None


def _line(axis, label: str, curve: dict, colour: str, style: str, width: float) -> None:
    diverged = curve.get("status") == "diverged"
    losses, stretch = curve["losses"], curve.get("steps_per_point", 1)
    label = textwrap.fill(label + (" (diverged)" if diverged else ""), LABEL_WIDTH)
    steps = [stretch * (point + 1) for point in range(len(losses))]
    axis.plot(steps, losses, color=colour, alpha=0.25, linewidth=0.6)
    axis.plot(steps, _smoothed(losses), style, color=colour, linewidth=width, label=label)
    if curve.get("validation"):
        mark = MARKS[STYLES.index(style)]
        axis.plot(*zip(*curve["validation"], strict=True), mark, color=colour, markersize=5, markeredgecolor="white")
    if diverged:
        axis.plot(steps[-1:], losses[-1:], "x", color=colour, markersize=7, markeredgewidth=2)


def _smoothed(losses: list[float]) -> list[float]:
    """Means over about a tenth of the curve, centred, shorter at the ends."""
    half = max(1, len(losses) // 20)
    parts = (losses[max(0, i - half) : i + half + 1] for i in range(len(losses)))
    return [sum(part) / len(part) for part in parts]

"""The league's picture, perplexity against layers removed; entries are rows of `reproductions.show.drawn`."""

from __future__ import annotations

import textwrap
from itertools import cycle, pairwise

import numpy as np

from figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, caption, plt, round_ticks

COLUMN = "PPL AVG"
NONE = "none"
OURS = "(ours)"
SLICES = "slices of layers"
# NBL takes fewer parameters than the layers have that the others remove; the matrix is within a percent of Ghosted Layers'.
LEFT_OUT = ("NBL", "least-squares matrix, massive tokens as they are (ours)")
LABEL_WIDTH = 90  # characters; longer labels are wrapped
_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE)
# Colour, line and mark of each repair that pictures of several models show: the same in all of them.
LOOKS = {
    "refitted, 3 layers, ridge from held-out text (ours)": (BLUE, "-", "o"),
    "neurons carried over, refitted, 3 layers, ridge from held-out text (ours)": (VERMILION, "-", "s"),
    "Ghosted Layers": (GREEN, "-", "^"),
    "ReplaceMe, least squares": (ORANGE, "-", "D"),
    "LLM-Pruner": (PURPLE, "-", "v"),
    "SliceGPT": (BLUE, "--", "o"),
    "LinearPatch's A": (VERMILION, "--", "s"),
    "Prune&Comp's factor": (GREEN, "--", "^"),
    "neurons carried over (ours)": (ORANGE, "--", "D"),
    "LinearPatch +FT (trained)": (PURPLE, "--", "v"),
    NONE: (GREY, ":", "P"),
}
_FURTHER = [(colour, "-.", mark) for colour, mark in zip(_COLOURS, "X*<>p", strict=True)]  # of any other repair


def draw(entries: list[dict], profile: str) -> plt.Figure | None:
    """Average perplexity against layers removed: a line for each repair, each time after the best of the choices measured.

    Bars and bands are 95 % intervals of the ratio to the dense model, drawn anew from the windows that both answered, times
    the dense model's perplexity; lines stand side by side, so that bars do. None while nothing pruned has an average.
    """
    measured = [entry for entry in entries if COLUMN in entry["scores"]]
    dense = next((entry for entry in measured if entry["dense"]), None)
    lines = best(measured)
    if not lines:
        return None
    shown = [entry for found in lines.values() for entry in found]
    counts = sorted(set(map(_removed, shown)))
    apart = 0.25 * min((b - a for a, b in pairwise(counts)), default=1) / len(lines)
    labels = {repair: _label(repair, found) for repair, found in lines.items()}
    below = 1 + sum(label.count("\n") + 1 for label in labels.values())  # lines of the legend
    figure, axes = plt.subplots(figsize=(6.9, 3.6 + 0.16 * below))
    further = cycle(_FURTHER)
    for number, (repair, found) in enumerate(lines.items()):
        colour, style, mark = LOOKS.get(repair) or next(further)
        places = [_removed(entry) + apart * (number - (len(lines) - 1) / 2) for entry in found]
        values = [entry["scores"][COLUMN] for entry in found]
        look = {"color": colour, "marker": mark, "ms": 4, "lw": 1.3}
        look |= {"mfc": "white"} if style in ("--", "-.") else {}
        axes.plot(places, values, style, label=labels[repair], **look)
        bands = [_band(entry, dense) for entry in found]
        if all(bands):
            lows, highs = zip(*bands, strict=True)
            axes.vlines(places, lows, highs, color=colour, lw=1.3)
            axes.fill_between(places, lows, highs, color=colour, alpha=0.13, lw=0)
    if dense is not None:
        axes.axhline(
            dense["scores"][COLUMN], color="black", ls=":", lw=1, label=f"dense, {dense['scores'][COLUMN]:.1f}"
        )
    axes.set_yscale("log")
    round_ticks(axes)
    layers = shown[0]["sparsity"].partition("/")[2]
    axes.set_xticks(counts, [f"{count}/{layers}" for count in counts])
    axes.set(xlabel="layers removed (bars: 95 %, paired with the dense model)", ylabel="average perplexity (log scale)")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.15), ncols=1, fontsize=7.5)
    caption(figure, shown)
    return figure


def best(entries: list[dict]) -> dict[str, list[dict]]:
    """Repair -> by layers removed its entry of lowest perplexity, whatever the choice of layers; the best at the end first.

    Every repair of a paper, and "none"; of ours those measured at every number of layers, so that variants tried at some are
    left to the tables. No single points where there are lines.
    """
    found: dict[str, dict[int, dict]] = {}
    for entry in entries:
        if not entry["dense"] and _parts(entry)[1] not in LEFT_OUT:
            by_count, count = found.setdefault(_parts(entry)[1], {}), _removed(entry)
            if count not in by_count or entry["scores"][COLUMN] < by_count[count]["scores"][COLUMN]:
                by_count[count] = entry
    lines = {repair: [by_count[count] for count in sorted(by_count)] for repair, by_count in found.items()}
    if any(len(points) > 1 for points in lines.values()):
        lines = {repair: points for repair, points in lines.items() if len(points) > 1}
    most = max(map(len, lines.values()), default=0)
    kept = [repair for repair, points in lines.items() if not repair.endswith(OURS) or len(points) == most]
    kept.sort(key=lambda repair: (-_removed(lines[repair][-1]), lines[repair][-1]["scores"][COLUMN]))
    return {repair: lines[repair] for repair in kept}


def _parts(entry: dict) -> tuple[str, str]:
    """Choice of layers, repair: a row's name."""
    selection, _, repair = entry["method"].partition(", ")
    return selection, repair


def _label(repair: str, entries: list[dict]) -> str:
    """A repair, and after which choice of layers it is shown; at which numbers, where they differ."""
    by_selection: dict[str, list[str]] = {}
    for entry in entries:
        by_selection.setdefault(_parts(entry)[0], []).append(str(_removed(entry)))
    whole = len(by_selection) == 1
    chosen = "; ".join(name + ("" if whole else f" at {', '.join(at)}") for name, at in by_selection.items())
    after = "" if chosen == SLICES else "after "
    return textwrap.fill(f"{'no repair' if repair == NONE else repair}, {after}{chosen}", LABEL_WIDTH)


def _removed(entry: dict) -> int:
    return int(entry["sparsity"].partition("/")[0])


def _band(entry: dict, dense: dict | None) -> tuple[float, float] | None:
    """The interval of an entry's perplexity, what it shares with the dense model's left out; None where none is known."""
    own, whole = (None if one is None else one["replicates"](COLUMN) for one in (entry, dense))
    if own is None or whole is None or not np.ndim(own) or not np.isfinite(own).all():
        return None
    low, high = np.percentile(own / whole, (2.5, 97.5)) * dense["scores"][COLUMN]
    return float(low), float(high)

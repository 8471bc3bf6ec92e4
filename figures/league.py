"""The league's picture, perplexity against layers removed; entries are rows of `reproductions.show.drawn`."""

from __future__ import annotations

import math
import re
from statistics import fmean

import numpy as np

from figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, plt

COLUMN = "PPL AVG"
MOST = 9  # lines; "none" is one of them
NONE, TRAINED = "none", "(trained)"
_VARIANT = re.compile(r", (seed|text) ")  # rows that repeat another one with other calibration
_LOOKS = [(c, m) for m in ("-", "--") for c in (BLUE, VERMILION, GREEN, ORANGE, PURPLE)]
_MARKS = "os^Dv"


def draw(entries: list[dict], profile: str) -> plt.Figure | None:
    """Average perplexity for each number of removed layers: a line for each repair, after the choice of layers best for it.

    Bands are 95 % intervals of the ratio to the dense model, drawn anew from the windows that both answered, times the dense
    model's perplexity. None while nothing pruned has an average.
    """
    measured = [entry for entry in entries if COLUMN in entry["scores"]]
    dense = next((entry for entry in measured if entry["dense"]), None)
    lines = best(measured)
    if not lines:
        return None
    figure, axes = plt.subplots(figsize=(6.9, 3.6 + 0.18 * len(lines)))  # the legend below has a line for each
    looks = iter(_LOOKS)
    for number, (repair, (selection, found)) in enumerate(lines.items()):
        colour, style = (GREY, ":") if repair == NONE else next(looks)
        label = f"{repair}, after {selection}" if repair != NONE else f"no repair, after {selection}"
        counts = [_removed(entry) for entry in found]
        values = [entry["scores"][COLUMN] for entry in found]
        mark = _MARKS[number % len(_MARKS)]
        axes.plot(counts, values, style, marker=mark, color=colour, ms=4, lw=1.4, label=label)
        bands = [_band(entry, dense) for entry in found]
        if all(bands):
            axes.fill_between(counts, *zip(*bands, strict=True), color=colour, alpha=0.15, lw=0)
    if dense is not None:
        axes.axhline(
            dense["scores"][COLUMN], color="black", ls=":", lw=1, label=f"dense, {dense['scores'][COLUMN]:.1f}"
        )
    axes.set_yscale("log")
    _ticks(axes)
    counts = sorted({_removed(entry) for _, found in lines.values() for entry in found})
    layers = next(iter(lines.values()))[1][0]["sparsity"].partition("/")[2]
    axes.set_xticks(counts, [f"{count}/{layers}" for count in counts])
    axes.set(
        xlabel="layers removed (bands: 95 %, paired with the dense model)", ylabel="average perplexity (log scale)"
    )
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.15), ncols=1, fontsize=7.5)
    return figure


def best(entries: list[dict]) -> dict[str, tuple[str, list[dict]]]:
    """Repair -> its selection and that one's entries by layers removed; the repair best at the end first, "none" included.

    A repair's selection is the one measured at most numbers of layers; of these the one with the lowest perplexity, by the
    mean of its logarithm.
    """
    found: dict[str, dict[str, list[dict]]] = {}
    for entry in entries:
        if not entry["dense"] and not _VARIANT.search(entry["method"]):
            selection, _, repair = entry["method"].partition(", ")
            found.setdefault(repair, {}).setdefault(selection, []).append(entry)
    lines = {}
    for repair, selections in found.items():
        selection = min(selections, key=lambda name: (-len(selections[name]), _level(selections[name])))
        lines[repair] = selection, sorted(selections[selection], key=_removed)
    ranked = sorted(lines, key=lambda repair: (-len(lines[repair][1]), _level(lines[repair][1])))
    kept = [repair for repair in ranked if repair != NONE][: MOST - (NONE in lines)] + [NONE] * (NONE in lines)
    kept.sort(key=lambda repair: (-_removed(lines[repair][1][-1]), lines[repair][1][-1]["scores"][COLUMN]))
    return {repair: lines[repair] for repair in kept}


def _level(entries: list[dict]) -> float:
    return fmean(math.log(entry["scores"][COLUMN]) for entry in entries)


def _removed(entry: dict) -> int:
    return int(entry["sparsity"].partition("/")[0])


def _band(entry: dict, dense: dict | None) -> tuple[float, float] | None:
    """The interval of an entry's perplexity, what it shares with the dense model's left out; None where none is known."""
    own, whole = (None if one is None else one["replicates"](COLUMN) for one in (entry, dense))
    if own is None or whole is None or not np.ndim(own) or not np.isfinite(own).all():
        return None
    low, high = np.percentile(own / whole, (2.5, 97.5)) * dense["scores"][COLUMN]
    return float(low), float(high)


def _ticks(axes: plt.Axes) -> None:
    """Few round numbers on the logarithmic axis, spelled out."""
    low, high = axes.get_ylim()
    round_ones = [base * 10**power for power in range(7) for base in (1, 1.5, 2, 3, 5, 7)]
    shown = [value for value in round_ones if low <= value <= high]
    axes.set_yticks(shown, [f"{value:g}" for value in shown])
    axes.yaxis.set_minor_locator(plt.NullLocator())

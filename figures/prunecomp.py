"""Prune&Comp's figures, from records: entries are rows of `reproductions.show.drawn`."""

from __future__ import annotations

import math

from figures.style import BLUE, GREEN, GREY, ORANGE, VERMILION, plt

WIDTH = 4.2  # of one column, in inches
_BARS = {
    "CosSim(BI)": ("baseline", GREY),
    "CosSim(BI) +IterPrune": ("+IterPrune", ORANGE),
    "CosSim(BI) +MagComp": ("+MagComp", BLUE),
    "CosSim(BI) +MagComp +IterPrune": ("both", GREEN),
}
_REPAIRS = ("none", "factor", "d", "A", "d, least squares", "matrix, least squares")


def average(entry: dict) -> float | None:
    """Mean perplexity of an entry's texts; None while one of them is missing or diverged."""
    texts = [record["values"] for name, record in entry["records"].items() if name.startswith("perplexity")]
    found = [values.get("perplexity", math.nan) for values in texts]
    mean = sum(found) / len(found) if found else math.nan
    return mean if math.isfinite(mean) else None


def figure1(entries: list[dict], profile: str) -> plt.Figure:
    """Average perplexity for each number of pruned layers: nothing, one part of the method, the other, both."""
    figure, axes = plt.subplots(figsize=(WIDTH, 2.8))
    settings = list(dict.fromkeys(e["sparsity"] for e in entries if e["method"] in _BARS))
    for index, (method, (label, colour)) in enumerate(_BARS.items()):
        for place, sparsity in enumerate(settings):
            found = [e for e in entries if (e["method"], e["sparsity"]) == (method, sparsity)]
            value = average(found[0]) if found else None
            if value is not None:
                x = place + (index - 1.5) * 0.2
                axes.bar(x, value, 0.18, color=colour, label=label if place == 0 else None)
                axes.text(x, value, f"{value:.1f}", ha="center", va="bottom", fontsize=7)
    dense = [value for e in entries if e["method"] == "Dense" and (value := average(e)) is not None]
    if dense:
        axes.axhline(dense[0], color=VERMILION, ls=":", lw=1.2, label=f"dense, {dense[0]:.1f}")
    axes.set_xticks(range(len(settings)), [f"{sparsity} layers pruned" for sparsity in settings])
    axes.set_ylabel("average perplexity")
    axes.grid(axis="x", visible=False)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, columnspacing=1.0, handletextpad=0.4)
    return figure


def figure2(entries: list[dict], profile: str) -> plt.Figure:
    """Magnitude gain ratio of each layer, one panel a model."""
    figure, panels = plt.subplots(len(entries), 1, figsize=(WIDTH, 2.4 * len(entries)), squeeze=False)
    for entry, axes in zip(entries, panels[:, 0]):
        gains = entry["records"]["magnitude-gains"]["details"]["gains"]
        axes.bar(range(len(gains)), gains, 0.8, color=[VERMILION if gain < 0 else BLUE for gain in gains])
        axes.axhline(0, color=GREY, lw=0.8)
        axes.set(xlabel="layer", ylabel="magnitude gain, %", title=entry["model"])
        first, second = sorted(gains, reverse=True)[:2]
        if first > 4 * second > 0:  # one bar would hide the others: cut it off and write its height
            axes.set_ylim(min(0, *gains) * 1.15, 1.25 * second)
            axes.text(gains.index(first) + 0.6, 1.22 * second, f"{first:.0f} %", va="top", fontsize=8)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="x", visible=False)
        axes.set_axisbelow(True)
    return figure


def grid(entries: list[dict], profile: str) -> plt.Figure:
    """Average perplexity of every metric and schedule (rows) with every repair (columns), darker is better."""
    cells = {}
    for entry in entries:
        metric, _, rest = entry["method"].partition(", ")
        schedule, _, repair = rest.partition(", ")
        if repair:
            cells[f"{metric}, {schedule}", repair.partition(" (")[0]] = average(entry)
    names = list(dict.fromkeys(name for name, _ in cells))
    values = [[cells.get((name, repair)) for repair in _REPAIRS] for name in names]
    shown = [[math.nan if value is None else math.log(value) for value in row] for row in values]
    figure, axes = plt.subplots(figsize=(6.4, 0.34 * len(names) + 1.2))
    image = axes.imshow(shown, cmap="Blues_r", aspect="auto")
    low, high = image.get_clim()
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if value is not None:
                dark = math.log(value) < (low + high) / 2
                axes.text(
                    x, y, f"{value:.1f}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
                )
    axes.set_xticks(range(len(_REPAIRS)), [repair.replace(" ", "\n") for repair in _REPAIRS])
    axes.set_yticks(range(len(names)), names)
    axes.xaxis.tick_top()
    axes.set_xlabel("average perplexity: darker is lower")
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    return figure

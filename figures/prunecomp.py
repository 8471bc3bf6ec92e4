"""Prune&Comp's figures, from records: entries are rows of `reproductions.render.show.drawn`."""

import math

from matplotlib.colors import LogNorm
from matplotlib.ticker import NullLocator

from figures.style import BLUE, GREEN, GREY, ORANGE, VERMILION, break_axis, plt, removed

WIDTH = 4.2  # of one column, in inches
_BARS = {
    "CosSim(BI)": ("baseline", GREY),
    "CosSim(BI) +IterPrune": ("+IterPrune", ORANGE),
    "CosSim(BI) +MagComp": ("+MagComp", BLUE),
    "CosSim(BI) +MagComp +IterPrune": ("both", GREEN),
}
MOST = 3.0  # times the middle perplexity: what is more has the colour of this
# Repair -> what its column says: where it goes, what it is made from.
_COLUMNS = {
    "none": "no repair",
    "factor": "factor,\nfused;\nmagnitudes",
    "d": "d;\nmagnitudes",
    "A": "A;\nmagnitudes,\nrotated",
    "d-least-squares": "d;\nleast\nsquares",
    "matrix-least-squares": "matrix;\nleast\nsquares",
}


def average(entry: dict, entries: list[dict]) -> float | None:
    """Return the mean perplexity of an entry's texts.

    None if one of them diverged, or if a text is missing that another entry has.
    """
    texts = [record["values"] for name, record in entry["records"].items() if name.startswith("perplexity")]
    most = max(sum(name.startswith("perplexity") for name in row["records"]) for row in entries)
    perplexities = [values.get("perplexity", math.nan) for values in texts]
    mean = sum(perplexities) / len(perplexities) if perplexities and len(perplexities) == most else math.nan
    return mean if math.isfinite(mean) else None


def average_error(entry: dict) -> float | None:
    """Return the standard error of `average`, with texts taken as independent; None if a result has none."""
    texts = [record for name, record in entry["records"].items() if name.startswith("perplexity")]
    errors = [record.get("stderr", {}).get("perplexity") for record in texts]
    if not errors or not all(error is not None and math.isfinite(error) for error in errors):
        return None
    return math.hypot(*errors) / len(errors)


def texts_of(entries: list[dict]) -> str:
    """Return the labels of the texts that `average` is over; '' if entries do not state them."""
    every = ([label for label in entry.get("scores", ()) if label != "AVG"] for entry in entries)
    names = max(every, key=len, default=[])
    return "of " + ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else ""


def figure1(entries: list[dict], profile: str) -> plt.Figure:
    """Draw average perplexity by number of removed layers: without the method, with one part, the other, and both.

    All rows are measured on the same texts, so their differences are more precise than the bars.
    """
    figure, axes = plt.subplots(figsize=(WIDTH, 3.3))
    settings = list(dict.fromkeys(e["sparsity"] for e in entries if e["method"] in _BARS))
    for index, (method, (label, colour)) in enumerate(_BARS.items()):
        for place, sparsity in enumerate(settings):
            matching = [e for e in entries if (e["method"], e["sparsity"]) == (method, sparsity)]
            value = average(matching[0], entries) if matching else None
            x = place + (index - 1.5) * 0.2
            if value is None:
                _absent(axes, x, matching, colour)
            else:
                error = average_error(matching[0])
                axes.bar(x, value, 0.18, yerr=error, ecolor="black", color=colour, label=label)
                label = None
                axes.text(x, value + (error or 0), f"{value:.1f}", ha="center", va="bottom", fontsize=7)
    dense = [value for e in entries if e["method"] == "Dense" and (value := average(e, entries)) is not None]
    if dense:
        axes.axhline(dense[0], color=VERMILION, ls=":", lw=1.2, label=f"dense, {dense[0]:.1f}")
    axes.set_xticks(range(len(settings)), [f"{sparsity} layers pruned" for sparsity in settings])
    axes.set_xlabel("layers chosen by CosSim(BI)")
    axes.set_ylabel(f"average perplexity ± standard error\n{texts_of(entries)}".rstrip())
    axes.grid(axis="x", visible=False)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, columnspacing=1.0, handletextpad=0.4)
    return figure


def _absent(axes: plt.Axes, x: float, rows: list[dict], colour: str) -> None:
    """Say in a bar's place why it is not there."""
    values = [record["values"].get("perplexity", 0.0) for entry in rows for record in entry["records"].values()]
    why = "not run" if all(map(math.isfinite, values)) else "diverged"
    where = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "rotation": 90}
    axes.annotate(why, (x, 0), **where, fontsize=8, fontweight="bold", color=colour)


def figure2(entries: list[dict], profile: str) -> plt.Figure:
    """Draw the magnitude gain ratio of each layer, one panel per model."""
    figure, panels = plt.subplots(len(entries), 1, figsize=(WIDTH, 2.4 * len(entries)), squeeze=False)
    for entry, axes in zip(entries, panels[:, 0]):
        gains = entry["records"]["magnitude-gains"]["details"]["gains"]
        gain_bars(axes, gains)
        axes.set_title(removed([entry]) if len(entries) > 1 else "", fontsize=9)
    return figure


def gain_bars(axes: plt.Axes, gains: list[float]) -> None:
    """Draw the magnitude gain of each layer, in percent.

    A bar that would hide the others is cut off, with a mark and its height.
    """
    axes.bar(range(len(gains)), gains, 0.8, color=[VERMILION if gain < 0 else BLUE for gain in gains])
    axes.axhline(0, color=GREY, lw=0.8)
    axes.set(xlabel="layer", ylabel="magnitude gain, %")
    first, second = sorted(gains, reverse=True)[:2]
    if first > 4 * second > 0:  # one bar would hide the others: cut it off and write its height
        axes.set_ylim(min(0, *gains) * 1.15, 1.35 * second)
        axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 1.12 * second])  # none above the break
        axes.set_ylim(min(0, *gains) * 1.15, 1.35 * second)
        _broken(axes, gains.index(first), 1.12 * second)
        axes.text(gains.index(first) + 0.7, 1.32 * second, f"{first:.0f} %, cut off", va="top", fontsize=8)
    axes.set_xlim(-0.7, len(gains) - 0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="x", visible=False)
    axes.set_axisbelow(True)


def _broken(axes: plt.Axes, bar: int, height: float) -> None:
    """Draw a break across a bar and its axis at a height: what is above it is not to scale."""
    slant = 0.02 * (axes.get_ylim()[1] - axes.get_ylim()[0])
    ends = [bar - 0.6, bar + 0.6]
    axes.plot(ends, [height - slant, height + slant], color="white", lw=4, solid_capstyle="butt")
    for shift in (-1, 1):
        around = [height - slant + 1.3 * shift * slant, height + slant + 1.3 * shift * slant]
        axes.plot(ends, around, color="black", lw=0.8)
    low, high = axes.get_ylim()
    break_axis(axes, (height - low) / (high - low))


def grid(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw the average perplexity of every metric and schedule (rows) with every measured repair (columns).

    Darker is better. None if only the original model is measured.
    """
    cells = {}
    for entry in entries:
        if row := entry["spec"]:
            cells[f"{row.metric}, {row.schedule}", row.repair] = average(entry, entries)
    dense = next((average(entry, entries) for entry in entries if entry["method"] == "Dense"), None)
    names = list(dict.fromkeys(name for name, _ in cells))
    repairs = [repair for repair in _COLUMNS if any(cells.get((name, repair)) is not None for name in names)]
    values = [[cells.get((name, repair)) for repair in repairs] for name in names]
    measured = [value for row in values for value in row if value is not None]
    if not measured:
        return None
    most = MOST * sorted(measured)[len(measured) // 2]
    scale = LogNorm(0.95 * min([dense or math.inf, *measured]), min(max(measured), most), clip=True)
    figure, axes = plt.subplots(figsize=(2.7 + 0.7 * max(len(repairs), 3), 0.34 * len(names) + 1.6))
    shown = [[math.nan if value is None else value for value in row] for row in values]
    image = axes.imshow(shown, cmap="Blues_r", aspect="auto", norm=scale)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if value is None:
                axes.text(x, y, "not run", ha="center", va="center", fontsize=7, color=GREY)
            else:
                dark = scale(value) < 0.5
                axes.text(
                    x, y, f"{value:.1f}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
                )
    axes.set_xticks(range(len(repairs)), [_COLUMNS[repair] for repair in repairs], fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_facecolor("#eeeeee")  # of what was not run: white is the other end of the scale
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("column by column: what is put at each interface,\nand what it is estimated from")
    bar = figure.colorbar(image, ax=axes, pad=0.02, extend="max" if max(measured) > most else "neither")
    bar.set_label(" ".join(filter(None, ("average perplexity", texts_of(entries), "(log scale)"))), fontsize=8)
    ticks = [value for value in (20, 30, 40, 50, 60, 80, 100, 150, 200, 500, 1e3, 1e4) if bar.vmin < value < bar.vmax]
    bar.set_ticks(ticks, labels=[f"{value:g}" for value in ticks], minor=False)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    if dense is not None:
        bar.ax.axhline(dense, color=VERMILION, lw=3)
        bar.ax.set_title(f"dense\n{dense:.1f}", fontsize=8, color=VERMILION)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    return figure

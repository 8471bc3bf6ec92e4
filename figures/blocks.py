"""Draw perplexity without each block of layers, by its first layer, and the blocks that are selected."""

import math

from matplotlib.lines import Line2D
from scipy.special import stdtrit

from figures.style import BLUE, GREEN, GREY, ORANGE, above, plt, removed, round_ticks

MOST = 60  # times the dense model's perplexity; what is more stands as a triangle at the edge
LOOKS = {
    "plain": ("no repair", BLUE, "o-"),
    "kept": ("first token's state restored", ORANGE, "s--"),
    "carried": ("neuron grafting (extension)", GREEN, "D:"),
}
# The benchmark's names of what chooses a block -> what an arrow says.
CHOICES = {"cosine": "cosine", "least_left": "least residual", "least_loss": "least loss"}
CHOSEN = (
    "selected on calibration text: cosine, by the smallest change of the residual stream; least residual, by the residual\n"
    "error of a least-squares repair; least loss, by the loss of the text"
)
# Protocol -> tokens of a sequence, the text's name.
TEXTS = {"league-wikitext2": (512, "WIKI-2"), "standin-learning-quarter": (256, "its learning docstrings")}


def draw(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw perplexity without each block of layers, by its first layer, with a panel for each number of layers.

    Bars are 95 % intervals of the ratio to the original model, paired over sequences. Blocks with the layer that writes
    the first token's massive activation are shaded. Triangles above the axis are values off its scale, a line for each
    kind. None if nothing is measured.
    """
    measured = [
        (entry, record) for entry in entries for name, record in entry["records"].items() if name.startswith("windows@")
    ]
    if not measured:
        return None
    across = 2 if len(measured) > 1 else 1
    down = -(-len(measured) // across)
    figure, grid = plt.subplots(
        down, across, figsize=(1.0 + 3.4 * across, 0.9 + 2.5 * down), squeeze=False, sharey=True
    )
    for axes in grid.flat[len(measured) :]:
        axes.set_visible(False)
    for axes, (entry, record) in zip(grid.flat, measured, strict=False):
        _panel(axes, entry, record)
    dense = [record["values"]["dense"] for _, record in measured]
    plain = [
        [row["plain"]["more"] + _errors(record) * row["plain"]["se"] for row in record["details"]["rows"]]
        for _, record in measured
    ]
    most = [min(max(ends), math.log(MOST)) for ends in plain]
    highest = max(value * math.exp(more) for value, more in zip(dense, most, strict=True))
    grid[0, 0].set_ylim(0.85 * min(dense), 1.05 * highest)
    for row in grid:
        row[0].set_ylabel("perplexity without the block\n(log scale; bars: 95 % CI)")
    handle_by_label = {}  # of all panels, since not each has every line
    for axes in grid.flat[: len(measured)]:
        round_ticks(axes)
        handle_by_label |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if any(line.get_marker() == "^" for axes in grid.flat for line in axes.lines):
        handle_by_label[f"off the scale, above {MOST} times dense"] = Line2D(
            [], [], marker="^", color=GREY, ms=4, ls=""
        )
    figure.legend(
        handle_by_label.values(),
        handle_by_label,
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        title=CHOSEN,
        title_fontsize=8,
    )
    above(figure, f"{removed(entries)}; {_text(measured[0][1])}")
    return figure


def _text(record: dict) -> str:
    """Return what was read: how many sequences of which text."""
    window, name = TEXTS[record["benchmark"].partition("@")[2]]
    return f"{_sequences(record)} sequences of {window} tokens of {name}"


def _sequences(record: dict) -> int:
    return record["details"]["tokens"] // TEXTS[record["benchmark"].partition("@")[2]][0]


def _errors(record: dict) -> float:
    """Return the standard errors that a 95 % interval has on either side, by Student's t of so few sequences."""
    return float(stdtrit(_sequences(record) - 1, 0.975))


def _panel(axes: plt.Axes, entry: dict, record: dict) -> None:
    values, details = record["values"], record["details"]
    count, dense = int(entry["sparsity"].partition("/")[0]), math.log(values["dense"])
    if "writer" in values:
        first, last = values["writer"] - count + 1, values["writer"]
        label = f"with layer {values['writer']:.0f}, which writes the massive activation"
        axes.axvspan(first - 0.5, last + 0.5, color=GREY, alpha=0.15, lw=0, label=label)
    top = MOST * values["dense"]
    for number, (name, (label, colour, look)) in enumerate(LOOKS.items()):
        rows = [row for row in details["rows"] if name in row]  # none is carried where that layer stays
        if not rows:
            continue
        starts = [row["start"] for row in rows]
        logs = [dense + row[name]["more"] for row in rows]
        errors = [_errors(record) * row[name]["se"] for row in rows]
        middle = [math.exp(value) if value < math.log(top) else math.nan for value in logs]
        down = [m - math.exp(v - e) for m, v, e in zip(middle, logs, errors, strict=True)]
        up = [math.exp(v + e) - m for m, v, e in zip(middle, logs, errors, strict=True)]
        axes.errorbar(starts, middle, yerr=[down, up], fmt=look, color=colour, ms=3, lw=1, elinewidth=0.8, label=label)
        beyond = [start for start, value in zip(starts, middle, strict=True) if math.isnan(value)]
        if beyond:  # nothing, unclipped, would stand where the axis has no place
            height = 1.0 + 0.035 * number
            where = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(beyond, [height] * len(beyond), "^", color=colour, ms=3.5, **where)
    starts = [row["start"] for row in details["rows"]]
    marks: dict[int, list[str]] = {}
    for key, label in CHOICES.items():
        if details["chosen"].get(key) in starts:
            marks.setdefault(details["chosen"][key], []).append(label)
    for place, (start, labels) in enumerate(sorted(marks.items())):
        height = math.exp(dense + details["rows"][starts.index(start)]["plain"]["more"])
        side = "left" if place or start <= len(starts) / 4 else "right" if len(marks) > 1 else "center"
        axes.annotate(
            ", ".join(labels), (start, height), xytext=(start, 1.0 - 0.09 * place), textcoords=axes.get_xaxis_transform(),
            ha=side, va="top", fontsize=7, bbox={"fc": "white", "ec": "none", "alpha": 0.75, "pad": 0.5},
            arrowprops={"arrowstyle": "->", "lw": 0.7, "relpos": ({"left": 0, "right": 1, "center": 0.5}[side], 0)},
        )  # fmt: skip
    axes.axhline(values["dense"], color="black", ls=":", lw=1, label="dense")
    axes.set_yscale("log")
    axes.set_title(f"{entry['sparsity']} removed", fontsize=9, pad=12)
    axes.set_xlabel(f"first of the {count} layers removed")
    axes.xaxis.get_major_locator().set_params(integer=True)

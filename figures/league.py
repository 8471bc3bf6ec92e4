"""The league's picture, perplexity by layers removed; entries are rows of `reproductions.render.show.drawn`."""

import textwrap

import numpy as np
from matplotlib.lines import Line2D

from figures.choices import COLUMN, before
from figures.style import BLUE, GREY, ORANGE, PURPLE, caption, plt, round_ticks, whiskers

NONE, SLICES = "none", "slices"
# NBL takes fewer parameters than the layers have that the others remove; the matrix is within a percent of Ghosted Layers'.
LEFT_OUT = ("nbl", "least-squares-spared")
LABEL_WIDTH = 46  # characters; longer labels are wrapped
# Who a repair is by: colour and mark.
KINDS = {
    "extension": {"color": BLUE, "marker": "o"},
    "published": {"color": ORANGE, "marker": "D"},
    "published, trained": {"color": PURPLE, "marker": "s"},
    "no repair": {"color": GREY, "marker": "P"},
}


def draw(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw average perplexity as a multiple of the original model's: a line per repair, axes for each number of layers.

    Each point is after the best measured selection of layers. Bars are 95 % intervals, bootstrapped over the sequences
    that both models answered. A dotted line marks the lowest. None while no pruned model, or no original, has an
    average.
    """
    measured = [entry for entry in entries if COLUMN in entry["scores"]]
    dense = next((entry for entry in measured if entry["dense"]), None)
    lines = best(measured)
    if not lines or dense is None:
        return None
    shown = [entry for points in lines.values() for entry in points]
    counts = sorted(set(map(_removed, shown)))
    labels = [_label(points) for points in lines.values()]
    tall = sum(0.1 + 0.14 * (label.count("\n") + 1) for label in labels)
    figure, row = plt.subplots(1, len(counts), figsize=(9.6, 1.5 + tall), sharey=True, squeeze=False)
    for axes, count in zip(row[0], counts, strict=True):
        lowest = []
        for place, points in enumerate(lines.values()):
            for entry in points:
                if _removed(entry) == count:
                    lowest.append(_mark(axes, place, entry, dense, KINDS[_kind(entry)]))
        axes.axvline(min(lowest), color=GREY, ls=":", lw=1)
        axes.set_title(f"{count}/{shown[0]['sparsity'].partition('/')[2]} removed", fontsize=9)
        axes.set_xscale("log")
        axes.margins(x=0.13)  # room for the numbers
        round_ticks(axes, "x")
    row[0, 0].set_ylim(len(lines) - 0.5, -0.6)
    row[0, 0].set_yticks(range(len(lines)), labels, fontsize=7.5)
    title = (
        f"average perplexity / the original model's ({dense['scores'][COLUMN]:.1f}); "
        "bars: 95 % paired bootstrap; each axis has its own logarithmic scale"
    )
    kinds = dict.fromkeys(_kind(points[0]) for points in lines.values())
    handles = [Line2D([], [], ls="none", ms=5, label=kind, **look) for kind, look in KINDS.items() if kind in kinds]
    handles.append(Line2D([], [], color=GREY, ls=":", lw=1, label="lowest in this column"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, title=title)
    caption(figure, shown)
    return figure


def best(entries: list[dict]) -> dict[str, list[dict]]:
    """Return each repair's entry of lowest perplexity over all selections, by number of removed layers.

    The best repair at the largest number comes first. There is every repair of a paper, and "none"; of extensions those
    measured at every number of layers, so that variants tried at some are left to the tables.
    """
    by_repair: dict[str, dict[int, dict]] = {}
    for entry in entries:
        if not entry["dense"] and entry["spec"].repair not in LEFT_OUT:
            by_count, count = by_repair.setdefault(entry["spec"].repair, {}), _removed(entry)
            if count not in by_count or before(entry, by_count[count]):
                by_count[count] = entry
    lines = {repair: [by_count[count] for count in sorted(by_count)] for repair, by_count in by_repair.items()}
    most = max(map(len, lines.values()), default=0)
    repairs = [repair for repair, points in lines.items() if not points[0]["spec"].own_repair or len(points) == most]
    repairs.sort(key=lambda repair: (-_removed(lines[repair][-1]), lines[repair][-1]["scores"][COLUMN]))
    return {repair: lines[repair] for repair in repairs}


def _label(entries: list[dict]) -> str:
    """Return a repair's entries: its label, and after which choice of layers they are.

    At which numbers, where they differ.
    """
    by_selection: dict[str, list[str]] = {}
    for entry in entries:
        by_selection.setdefault(entry["spec"].selected, []).append(str(_removed(entry)))
    spec = entries[0]["spec"]
    several = len(by_selection) > 1
    selections = "; ".join(name + (f" at {', '.join(at)}" if several else "") for name, at in by_selection.items())
    after = "" if {entry["spec"].selection for entry in entries} == {SLICES} else "after "
    return textwrap.fill(f"{'no repair' if spec.repair == NONE else spec.repaired}, {after}{selections}", LABEL_WIDTH)


def _kind(entry: dict) -> str:
    if entry["spec"].repair == NONE:
        return "no repair"
    if entry["spec"].own_repair:
        return "extension"
    return "published, trained" if entry["spec"].trained else "published"


def _removed(entry: dict) -> int:
    return int(entry["sparsity"].partition("/")[0])


def _mark(axes: plt.Axes, place: int, entry: dict, dense: dict, look: dict) -> float:
    """Draw one entry, its number beside it; returns that."""
    value = entry["scores"][COLUMN] / dense["scores"][COLUMN]
    band = _band(entry, dense)
    axes.errorbar(value, place, xerr=whiskers(value, *band) if band else None, ms=4.5, lw=1.3, ls="none", **look)
    axes.annotate(f"{value:.2f}", (value, place), (0, 4), textcoords="offset points", ha="center", fontsize=6.5)
    return value


def _band(entry: dict, dense: dict) -> tuple[float, float] | None:
    """Return the interval of an entry's perplexity over the dense model's, what they share left out.

    None where none is known.
    """
    pruned, original = (row["replicates"](COLUMN) for row in (entry, dense))
    if pruned is None or original is None or not np.ndim(pruned) or not np.isfinite(pruned).all():
        return None
    low, high = np.percentile(pruned / original, (2.5, 97.5))
    return float(low), float(high)

"""One look for every figure: readable at column width, told apart without colour, saved as SVG (PNG and PDF on request)."""

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

# The published pictures; `reproductions.documents.published_figures` alone writes them.
RENDERED = Path(__file__).parent / "rendered"
DRAWN = Path(__file__).parents[1] / "build" / "figures"  # where commands draw; git ignores it
FORMS = ("svg", "png", "pdf")
# Okabe and Ito's palette, safe for the common forms of colour blindness.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"
# For pictures of more lines; of Okabe and Ito's, and of Paul Tol's muted ones.
SKY, BLACK, WINE, OLIVE = "#56B4E9", "#000000", "#882255", "#999933"

plt.rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "legend.frameon": False,
        "svg.hashsalt": "figures",  # the same drawing gives the same file
        "svg.fonttype": "none",
        "image.interpolation": "none",  # an SVG then holds the values themselves, whatever its resolution
        "figure.constrained_layout.use": True,
    }
)


UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def whiskers(value: float, low: float, high: float) -> list[list[float]]:
    """Return an interval as ``errorbar`` takes it: the distances of its ends from the value, at least zero."""
    return [[max(value - low, 0.0)], [max(high - value, 0.0)]]


def removed(entries: list[dict]) -> str:
    """Return the models of a figure and n of N layers removed; original models count only if there are no others."""
    parts = []
    for model in dict.fromkeys(entry["model"] for entry in entries):
        sizes = list(dict.fromkeys(entry["sparsity"] for entry in entries if entry["model"] == model))
        pruned = sorted((s for s in sizes if s and not s.startswith("0")), key=lambda s: int(s.partition("/")[0]))
        dense = next((f"{size.partition('/')[2]} layers, none removed" for size in sizes if size.startswith("0/")), "")
        parts.append(", ".join(filter(None, (model, f"{_listed(pruned)} layers removed" if pruned else dense))))
    return "; ".join(parts)


def _listed(words: list[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


# Numbers between 1 and 10 that are ticks of a logarithmic axis, from many to few.
ROUND = ((1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,))
APART = 0.06, 1.2  # the least distance between two ticks: as a share of the axis, and in heights of their letters


def round_ticks(axes: plt.Axes, along: str = "y") -> None:
    """Set round numbers, spelled out, on the logarithmic axis ("x" or "y"): as many as have room."""
    axis = getattr(axes, f"{along}axis")
    low, high = getattr(axes, f"get_{along}lim")()
    place, (width, height) = axes.get_position(), axes.figure.get_size_inches()
    # In points, before the layout takes some of it; letters are about as wide, three of them, as 1.5 are tall.
    size = 72 * (place.height * height if along == "y" else place.width * width / 1.5)
    apart = max(APART[0], APART[1] * plt.rcParams["font.size"] / size)
    for bases in ROUND:
        every = [float(f"{base}e{power}") for power in range(-6, 8) for base in bases]
        shown = [value for value in every if low <= value <= high]
        if all(math.log(b / a) >= apart * math.log(high / low) for a, b in pairwise(shown)):
            break
    axis.set_ticks(shown, [_spelled(value) for value in shown])
    axis.set_minor_locator(plt.NullLocator())


def _spelled(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-") if value < 1e-3 else f"{value:g}"


BREAK = "_break"  # the label of its lines, which no legend has


def break_axis(axes: plt.Axes, height: float) -> None:
    """Draw a break across the vertical axis at a share of its height, where the scale leaves something out."""
    shared = {"transform": axes.transAxes, "clip_on": False, "solid_capstyle": "butt", "zorder": 5, "label": BREAK}
    axes.plot([0, 0], [height - 0.012, height + 0.012], color="white", lw=3, **shared)
    for shift in (-0.012, 0.012):
        ends = [height + shift - 0.012, height + shift + 0.012]
        axes.plot([-0.018, 0.018], ends, color="black", lw=0.8, **shared)


def break_below(axes: plt.Axes) -> None:
    """Add space and an axis break below the lowest point; neither if the axis reaches zero, or would with the space."""
    low, high = axes.get_ylim()
    foot = low - 0.07 * (high - low)
    if low <= 0:
        return
    axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= high])  # none at the break
    axes.set_ylim(max(foot, 0.0), high)
    if foot > 0:
        break_axis(axes, 0.035)


def caption(figure: plt.Figure, entries: list[dict]) -> None:
    """State above a figure which models it is of, if it does not state it itself."""
    if not figure.get_suptitle():
        above(figure, removed(entries))


def above(figure: plt.Figure, text: str) -> None:
    """Write a title above a figure, in as many lines as its width requires."""
    letters = int(figure.get_figwidth() * 15)  # of this size in an inch
    figure.suptitle("\n".join(textwrap.wrap(text, letters)), fontsize=8, color=GREY)


def save(figure: plt.Figure, name: str, folder: Path | None = None, forms: Sequence[str] = FORMS[:1]) -> list[Path]:
    """Write a figure to files, close it, and return their paths.

    Args:
        figure: The figure.
        name: Name of the files without ending.
        folder: Folder (default: `DRAWN`).
        forms: Formats, of `FORMS`.
    """
    folder = folder or DRAWN
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{form}" for form in forms]
    for path in paths:
        figure.savefig(path, dpi=160, metadata=UNDATED.get(path.suffix))
    plt.close(figure)
    return paths

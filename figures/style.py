"""One look for every figure: readable at column width, told apart without colour, saved as SVG and PNG."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

RENDERED = Path(__file__).parent / "rendered"
# Okabe and Ito's palette, safe for the common forms of colour blindness.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"

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
        "figure.constrained_layout.use": True,
    }
)


def save(figure: plt.Figure, name: str, folder: Path = RENDERED) -> list[Path]:
    """Write ``name``.svg and ``name``.png; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in ("svg", "png")]
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=160, metadata=metadata)
    plt.close(figure)
    return paths

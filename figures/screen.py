"""README's screen as a picture: every claim of the papers, in colour what became of it in print and on measured models."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.patches import FancyBboxPatch

from figures.style import GREEN, GREY, VERMILION, plt

# Colour, mark and letters of a verdict; the mark tells them apart without colour.
LOOKS = {"holds": (GREEN, "✓", "white"), "fails": (VERMILION, "✗", "white"), "within noise": ("#d9d9d9", "≈", "black")}
_OPEN = ("white", "", GREY)  # not measured, no number
_WIDTHS = (4.6, 1.9, 2.7, 2.7)  # of the claim and of the sides, in inches
_ROW, _LETTERS = 0.3, 74  # height of a line in inches, letters of a claim that fit into one
_BOX = 46  # letters of a box's text that fit into it


@dataclass(frozen=True)
class Line:
    """A claim in words, and for every side its verdict ('' for none) and what stands beside that."""

    claim: str
    sides: Sequence[tuple[str, str]]


def draw(groups: Mapping[str, Sequence[Line]], sides: Sequence[str]) -> plt.Figure:
    """Claims by paper, a box for each side; below, what the colours and marks say."""
    rows = sum(1 + len(lines) for lines in groups.values())
    height = (rows + 2.8) * _ROW
    figure, axes = plt.subplots(figsize=(sum(_WIDTHS), height), layout=None)
    axes.set_position((0, 0, 1, 1))
    axes.set(xlim=(0, sum(_WIDTHS)), ylim=(height, 0))
    axes.axis("off")
    lefts = [sum(_WIDTHS[: place + 1]) for place in range(len(sides))]
    for left, width, side in zip(lefts, _WIDTHS[1:], sides, strict=True):
        _write(axes, left + width / 2, 0.5, side, ha="center", weight="bold")
    top = 1.0
    for title, lines in groups.items():
        _write(axes, 0.1, top + 0.6, title, weight="bold", size=10)
        top += 1
        for line in lines:
            words = textwrap.wrap(line.claim, _LETTERS)
            _write(axes, 0.1, top + 0.5, "\n".join(words), size=8 if len(words) == 1 else 6.5)
            for left, width, (verdict, more) in zip(lefts, _WIDTHS[1:], line.sides, strict=True):
                _box(axes, left, width, top, verdict, more)
            top += 1
    _legend(axes, top + 0.7)
    return figure


def _box(axes: plt.Axes, left: float, width: float, top: float, verdict: str, more: str) -> None:
    colour, mark, letters = LOOKS.get(verdict, _OPEN)
    place = ((left + 0.06), (top + 0.1) * _ROW)
    shape = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch(place, width - 0.12, 0.8 * _ROW, shape, facecolor=colour, edgecolor="none"))
    size = 7.5 * min(1.0, _BOX / len(more)) if more else 7.5
    _write(axes, left + width / 2, top + 0.5, f"{mark}  {more}".strip(), ha="center", size=size, color=letters)


def _legend(axes: plt.Axes, top: float) -> None:
    left = 0.1
    for verdict, (colour, mark, letters) in LOOKS.items():
        place = (left, (top + 0.1) * _ROW)
        axes.add_patch(FancyBboxPatch(place, 0.26, 0.8 * _ROW, "round,pad=0,rounding_size=0.06", fc=colour, ec="none"))
        _write(axes, left + 0.13, top + 0.5, mark, ha="center", color=letters)
        _write(axes, left + 0.36, top + 0.5, verdict, size=8)
        left += 1.3
    told = (
        "numbers: comparisons that hold; the one least in the claim's favour, with its 95 % interval, paired over items"
    )
    _write(axes, left + 0.1, top + 0.5, told, size=8, color=GREY)


def _write(axes: plt.Axes, left: float, line: float, text: str, **look) -> None:
    axes.text(left, line * _ROW, text, **{"va": "center", "ha": "left", "size": 9} | look)

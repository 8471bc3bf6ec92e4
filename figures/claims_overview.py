"""README's overview of claims as a picture: colours tell what became of each in print and on measured models."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.patches import FancyBboxPatch

from figures.style import GREY, plt

# Colour, mark and letters of a verdict; the mark tells them apart without colour. Okabe and Ito's green and vermilion, so
# dark that small white letters can be read on them.
LOOKS = {
    "supported": ("#00795c", "✓", "white"),
    "contradicted": ("#b84f00", "✗", "white"),
    "inconclusive": ("#d9d9d9", "≈", "black"),
}
_OPEN = ("white", "", GREY)  # not tested, no number
_LEAST = 10.0  # width of the picture, which its legend needs
_CLAIM, _PRINTED, _MODEL, _COUNT = 3.3, 2.5, 3.0, 1.4  # widths: of the claim, and of the sides, in inches
_ROW, _LETTERS, _BOX = 0.34, 46, 39  # height of a line in inches; letters that fit into a line of a claim, into a box


@dataclass(frozen=True)
class ClaimLine:
    """A claim in words, and for every side its verdict ('' for none) and the text beside it."""

    claim: str
    sides: Sequence[tuple[str, str]]


def draw(groups: Mapping[str, Sequence[ClaimLine]], sides: Mapping[str, str]) -> plt.Figure:
    """Draw claims by paper, a box for each side, and beside each paper's title the number of each verdict.

    Args:
        groups: Title of a paper -> its claims.
        sides: Name of each side -> its description in smaller letters; the last one counts models.
    """
    widths = (_CLAIM, _PRINTED, *[_MODEL] * (len(sides) - 2), _COUNT)
    rows = sum(1 + len(lines) for lines in groups.values())
    height = (rows + 3.4) * _ROW
    figure, axes = plt.subplots(figsize=(max(sum(widths), _LEAST), height), layout=None)
    axes.set_position((0, 0, 1, 1))
    axes.set(xlim=(0, max(sum(widths), _LEAST)), ylim=(height, 0))
    axes.axis("off")
    places = [(sum(widths[: place + 1]), width) for place, width in enumerate(widths[1:])]
    for (left, width), (side, description) in zip(places, sides.items(), strict=True):
        _write(axes, left + width / 2, 0.45, side, ha="center", weight="bold")
        _write(axes, left + width / 2, 1.0, description, ha="center", size=8, color=GREY)
    top = 1.3
    for title, lines in groups.items():
        _write(axes, 0.1, top + 0.55, title, weight="bold", size=11)
        for (left, width), verdicts in zip(places, zip(*([v for v, _ in line.sides] for line in lines)), strict=True):
            counts = [f"{verdicts.count(name)} {mark}" for name, (_, mark, _) in LOOKS.items() if name in verdicts]
            _write(axes, left + width / 2, top + 0.6, "   ".join(counts), ha="center", weight="bold")
        top += 1
        for line in lines:
            _write(axes, 0.1, top + 0.5, _wrapped(line.claim, _LETTERS), size=8.5)
            for (left, width), (verdict, detail) in zip(places, line.sides, strict=True):
                _box(axes, left, width, top, verdict, detail)
            top += 1
    _legend(axes, top + 0.6)
    return figure


def _box(axes: plt.Axes, left: float, width: float, top: float, verdict: str, detail: str) -> None:
    colour, mark, letters = LOOKS.get(verdict, _OPEN)
    _patch(axes, left + 0.05, width - 0.1, top, colour)
    text, fits = f"{mark}  {detail}".strip(), _BOX * width / _MODEL
    if len(detail) > 1.3 * fits:  # in two lines
        broken = text.replace(", 95 % CI", ",\n95 % CI")
        text = broken if "\n" in broken else _wrapped(text, int(1.2 * fits))
        fits = 0.85 * len(detail)
    size = 8.5 * min(1.0, fits / max(1, len(detail)))
    _write(axes, left + width / 2, top + 0.5, text, ha="center", size=size, color=letters)


def _wrapped(text: str, letters: int) -> str:
    return "\n".join(textwrap.wrap(text, letters, break_on_hyphens=False))


def _legend(axes: plt.Axes, top: float) -> None:
    left = 0.1
    for verdict, (colour, mark, letters) in LOOKS.items():
        _patch(axes, left, 0.28, top, colour)
        _write(axes, left + 0.14, top + 0.5, mark, ha="center", color=letters)
        _write(axes, left + 0.36, top + 0.5, verdict)
        left += 1.3
    explanation = (
        "beside the mark: how many of a claim's comparisons support it; then the one that favours it least\n"
        "(of points more is better, of perplexity lower; CI: confidence interval, paired over items)"
    )
    _write(axes, left + 0.3, top + 0.5, explanation, size=8, color=GREY)


def _patch(axes: plt.Axes, left: float, width: float, top: float, colour: str) -> None:
    shape = "round,pad=0,rounding_size=0.06"
    place = left, (top + 0.08) * _ROW
    axes.add_patch(FancyBboxPatch(place, width, 0.84 * _ROW, shape, facecolor=colour, edgecolor="none"))


def _write(axes: plt.Axes, left: float, line: float, text: str, **look) -> None:
    axes.text(left, line * _ROW, text, **{"va": "center", "ha": "left", "size": 9} | look)

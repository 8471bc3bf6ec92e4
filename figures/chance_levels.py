"""Draw what is retained of a model's scores and of the part above chance level.

Rows are `Retained` of `reproductions.render.chance_levels`.
"""

from collections.abc import Mapping, Sequence

from figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, above, plt, whiskers

_LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "v"), (VERMILION, "D"))


def draw(shown: Mapping[str, Sequence], title: str) -> plt.Figure:
    """Draw retained accuracy (across) and its part above chance level (up), a look for each label.

    The grey diagonal shows where points would lie if chance level were zero.
    """
    figure, axes = plt.subplots(figsize=(6.4, 4.5))
    every = [row for rows in shown.values() for row in rows]
    low = min(row.interval[0] if row.interval else row.above for row in every)
    axes.plot([35, 100], [35, 100], color=GREY, lw=0.8, label="if chance level were 0")
    axes.axhline(0, color="black", ls=":", lw=1, label="chance level")
    for (label, rows), (colour, mark) in zip(shown.items(), _LOOKS, strict=False):
        look = {"color": colour, "marker": mark, "ms": 4, "ls": "", "mfc": "none", "mew": 0.9}  # none hides another
        for row in rows:
            if row.interval is not None:
                bars = whiskers(row.above, *row.interval)
                axes.errorbar(row.retained, row.above, bars, color=colour, lw=0.8, capsize=2)
        axes.plot([row.retained for row in rows], [row.above for row in rows], label=label, **look)
    axes.set(xlim=(38, 101), ylim=(min(low, -10) - 3, 103))
    axes.set(
        xlabel="retained of the dense model's scores, as the paper averages them (%)",
        ylabel="retained above chance level (%)",
    )
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    above(figure, title)
    return figure

"""Draw the effect of the calibration text on perplexity, and on the tasks that no row has read."""

from figures.answers import alone, difference, ratio
from figures.style import BLUE, GREEN, GREY, ORANGE, caption, plt, whiskers

PERPLEXITY, AVERAGE = "PPL AVG", "average"
ROW = ("l", "refit")  # selection and repair with which all texts are compared
# What a row's repair was calibrated on.
TEXTS = {
    "items": ("questions", ORANGE, "s"),
    "both-texts": ("both, in turn", GREEN, "^"),
    "": ("plain text", BLUE, "o"),
}


def draw(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw one point per text against no repair: across, the change of perplexity (percent); up, of accuracy (points).

    There are axes for each number of removed layers. None if no row has both.
    """
    by_size: dict[str, list[tuple[dict, dict]]] = {}  # each row with the one without a repair
    for entry in entries:
        compared = entry["spec"] and (entry["spec"].selection, entry["spec"].repair) == ROW
        none = alone(entry, entries) if compared else None
        if none is not None and {PERPLEXITY, AVERAGE} <= entry["scores"].keys() & none["scores"].keys():
            by_size.setdefault(entry["sparsity"], []).append((entry, none))
    if not by_size:
        return None
    figure, grid = plt.subplots(
        1, len(by_size), figsize=(1.2 + 3.2 * len(by_size), 3.2), sharex=True, sharey=True, squeeze=False
    )
    for axes, (sparsity, rows) in zip(grid[0], by_size.items(), strict=True):
        for entry, none in rows:
            label, colour, mark = TEXTS[entry["spec"].text]
            (x, *ends), (y, *sides) = ratio(entry, none, PERPLEXITY), difference(entry, none, AVERAGE)
            look = {"fmt": mark, "ms": 5, "color": colour, "capsize": 2, "label": label}
            axes.errorbar(x, y, xerr=whiskers(x, *ends), yerr=whiskers(y, *sides), **look)
        axes.axhline(0, color=GREY, lw=0.8)
        axes.axvline(0, color=GREY, lw=0.8)
        axes.set(title=f"{sparsity} removed", xlabel="change of average perplexity (%)")
    grid[0, 0].set_ylabel("accuracy on tasks not read\n(points against no repair; bars: 95 % CI)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, title="calibrated on", loc="outside right center", fontsize=8)
    caption(figure, [entry for rows in by_size.values() for entry, _ in rows])
    return figure

"""LinearPatch's Figure 6 (ours): what each piece of the patch does to perplexity, row by row."""

from __future__ import annotations

from figures.style import BLUE, GREY, ORANGE, plt

MARKS = {"o": BLUE, "s": ORANGE}  # a cut each
REACH = 3.0  # the axis ends at so many times the third quartile of |change|; beyond is written


def draw(entries: list[dict], profile: str) -> plt.Figure | None:
    """A line a row: the change of perplexity against the cut alone in percent, one mark a cut, with its 95 % interval.

    None where no row can be held against its cut.
    """
    shown = [entry for entry in entries if entry["change"] and any(entry["change"].values())]
    cuts = list(dict.fromkeys((entry["model"], entry["sparsity"]) for entry in shown))
    names = list(dict.fromkeys(entry["method"] for entry in shown))
    names = [name for name in names if any(_change(e)[1] != _change(e)[2] for e in shown if e["method"] == name)]
    if not names:
        return None
    figure, axes = plt.subplots(figsize=(5.6, 1.0 + 0.27 * len(names)))
    sizes = sorted(abs(_change(entry)[0]) for entry in shown)
    reach = REACH * max(sizes[3 * len(sizes) // 4], 1.0)
    for place, (cut, (mark, colour)) in enumerate(zip(cuts, MARKS.items())):
        for entry in (e for e in shown if (e["model"], e["sparsity"]) == cut and e["method"] in names):
            value, low, high = _change(entry)
            y = names.index(entry["method"]) + 0.3 * (place - (len(cuts) - 1) / 2)
            if abs(value) > reach:
                side = 1 if value > 0 else -1
                axes.annotate(f"{value:+.0f} %", (side * reach, y), color=colour, ha="right" if side > 0 else "left",
                              va="center", fontsize=7)  # fmt: skip
                continue
            axes.errorbar(value, y, xerr=[[value - low], [high - value]], fmt=mark, color=colour, ms=4, capsize=2, lw=1)
        axes.plot([], [], mark, color=colour, ms=4, label=f"{'[S]' if cut[0].endswith(' [S]') else '[L]'}, {cut[1]}")
    axes.axvline(0, color=GREY, lw=0.8)
    axes.set(xlim=(-1.05 * reach, 1.05 * reach), ylim=(len(names) - 0.5, -0.5))
    axes.set(xlabel="change of perplexity against the cut alone (%)", yticks=range(len(names)), yticklabels=names)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(cuts))
    return figure


def _change(entry: dict) -> tuple[float, float, float]:
    return next(iter(entry["change"].values()))

"""Draw LinearPatch's Figure 6 (extension): the effect of each part of the patch on perplexity.

Entries are of `reproductions.render.show`.
"""

from figures.answers import Change, ratio
from figures.style import BLUE, GREY, ORANGE, above, plt, removed, whiskers

NO_REPAIR = "cut"  # what the others are held against
# Rows in full words, by group and method.
GROUPS = {
    "the patch and its parts": {
        "a": "A (LinearPatch)",
        "d": "d (LinearPatch without the rotation)",
        "one-factor": "one factor: the mean of d",
        "one-factor-diagonal": "one factor: A's diagonal",
        "a-on-massive-channels": "A on massive channels, d on the others",
        "d-on-massive-channels": "d on massive channels, A on the others",
    },
    "a weaker or stronger patch, I + s (A − I)": {
        "a-at-25": "s = 25 %",
        "a-at-50": "s = 50 %",
        "a-at-75": "s = 75 %",
        "a-at-125": "s = 125 %",
    },
    "calibrated on fewer tokens: 32 sequences": {
        "a-of-fewer-tokens": "A",
        "a-without-first-tokens": "A, without first tokens",
        "d-of-fewer-tokens": "d",
        "d-without-first-tokens": "d, without first tokens",
        "a-by-least-squares": "A by least squares",
        "a-of-another-draw": "A, second sample of the text",
        "a-of-a-third-draw": "A, third sample of the text",
        "a-of-another-text": "A, another text",
    },
    "the same; massive tokens apart": {
        "a-spared": "A, massive tokens unchanged",
        "d-spared": "d, massive tokens unchanged",
        "a-by-least-squares-spared": "A by least squares, massive tokens unchanged",
        "a-on-massive-tokens": "A on massive tokens alone",
    },
}
TERMS = (
    "d: one scale per channel. A: scales in the rotated basis, as one matrix, H diag(d) Hᵀ.",
    "Massive: channels (tokens) more than ten times as large as the median one.",
)
SELECTIONS = {"L": "contiguous block", "S": "lowest block influence"}  # by a row's variant
LOOKS = (("o", BLUE), ("s", ORANGE))  # one a pruning interface
REACH = 3.0  # the axis ends at so many times the third quartile of |change|; what is beyond is written


def changes(entries: list[dict]) -> dict[tuple[str, str, str], Change]:
    """Return the change of perplexity against no repair of the same layers, by (group, sparsity, method).

    The interval is that of the ratio on the same draws of sequences. Rows without a number for no repair are left out.
    """
    unrepaired_rows = {(e["group"], e["sparsity"]): e for e in entries if e["method"] == NO_REPAIR and e["scores"]}
    change_by_row = {}
    for entry in entries:
        unrepaired = unrepaired_rows.get((entry["group"], entry["sparsity"]))
        if unrepaired is None or entry is unrepaired or not entry["scores"]:
            continue
        (column,) = entry["scores"]
        change_by_row[entry["group"], entry["sparsity"], entry["method"]] = ratio(entry, unrepaired, column)
    return change_by_row


def draw(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw the change of perplexity by each part of the patch, in percent, with its interval.

    None if there is nothing to show.
    """
    change_by_row = changes(entries)
    if not change_by_row:
        return None
    selections = list(dict.fromkeys(key[:2] for key in change_by_row))
    of = {(entry["group"], entry["sparsity"]): entry for entry in entries}
    measured = {key[2] for key in change_by_row}
    labels: dict[str, str] = {}  # by method; a group's heading has a line of its own
    for heading, methods in GROUPS.items():
        shown = {method: label for method, label in methods.items() if method in measured}
        labels |= {heading: heading} | shown if shown else {}
    names = list(labels)
    figure, axes = plt.subplots(figsize=(6.8, 2.0 + 0.25 * len(names)))
    sizes = sorted(abs(change[0]) for change in change_by_row.values())
    reach = REACH * max(sizes[3 * len(sizes) // 4], 1.0)
    for place, (selection, (mark, colour)) in enumerate(zip(selections, LOOKS, strict=False)):
        for (*setting, method), (value, low, high) in change_by_row.items():
            if tuple(setting) != selection:
                continue
            y = names.index(method) + 0.3 * (place - (len(selections) - 1) / 2)
            if abs(value) > reach:
                side = 1 if value > 0 else -1
                where = {"ha": "right" if side > 0 else "left", "va": "center", "fontsize": 7, "color": colour}
                axes.annotate(f"{value:+.0f} %", (side * reach, y), **where)
                continue
            axes.errorbar(value, y, xerr=whiskers(value, low, high), fmt=mark, color=colour, ms=4, capsize=2, lw=1)
        label = f"{SELECTIONS[of[selection]['variant']]}, {selection[1]} layers removed"
        axes.plot([], [], mark, color=colour, ms=4, label=label)
    axes.axvline(0, color=GREY, lw=0.8)
    left, right = -reach, reach
    if sizes[-1] <= reach:  # nothing is written at an end of the axis
        left = min(0.0, *(low for _, low, _ in change_by_row.values()))
        right = max(0.0, *(high for _, _, high in change_by_row.values()))
    margin = 0.05 * (right - left)
    axes.set(xlim=(left - margin, right + margin), ylim=(len(names) - 0.5, -0.5))
    axes.set(
        xlabel="change of perplexity against no repair, %\n(bars: 95 % confidence intervals)",
        yticks=range(len(names)),
        yticklabels=labels.values(),
    )
    for place, (name, tick, line) in enumerate(zip(names, axes.get_yticklabels(), axes.get_ygridlines(), strict=True)):
        if name in GROUPS:
            tick.set_fontweight("bold")
            line.set_visible(False)
            axes.axhline(place - 0.5, color=GREY, lw=0.8, ls=":")
    model = next((entry["model"] for entry in entries if not entry["variant"]), entries[0]["model"])
    above(figure, removed([{"model": model, "sparsity": sparsity} for _, sparsity in selections]))
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, title="\n".join(TERMS), title_fontsize=8)
    return figure

"""Draw LinearPatch's Figure 6 (extension): the effect of each part of the patch on perplexity.

Entries are of `reproductions.render.show`.
"""

from figures.answers import Change, ratio
from figures.style import BLUE, GREY, ORANGE, above, plt, removed, whiskers

NO_REPAIR = "cut"  # what the others are held against
FEWER = "a-of-fewer-tokens"  # from this row on scales are of other sequences
SELECTIONS = {"L": "[L], contiguous block", "S": "[S], lowest block influence"}  # by a row's variant
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
    labels = {entry["method"]: entry["name"] for entry in entries}
    names = list(dict.fromkeys(key[2] for key in change_by_row))
    figure, axes = plt.subplots(figsize=(6.4, 1.3 + 0.27 * len(names)))
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
        axes.plot([], [], mark, color=colour, ms=4, label=f"{SELECTIONS[of[selection]['variant']]}, {selection[1]}")
    axes.axvline(0, color=GREY, lw=0.8)
    if FEWER in names:
        axes.axhline(names.index(FEWER) - 0.5, color=GREY, lw=0.8, ls=":")
        corner = {"xycoords": axes.get_yaxis_transform(), "xytext": (-3, -2), "textcoords": "offset points"}
        corner |= {"ha": "right", "va": "top", "fontsize": 7, "color": GREY}
        axes.annotate("scales from 32 other sequences", (1, names.index(FEWER) - 0.5), **corner)
    left, right = -reach, reach
    if sizes[-1] <= reach:  # nothing is written at an end of the axis
        left = min(0.0, *(low for _, low, _ in change_by_row.values()))
        right = max(0.0, *(high for _, _, high in change_by_row.values()))
    margin = 0.05 * (right - left)
    axes.set(xlim=(left - margin, right + margin), ylim=(len(names) - 0.5, -0.5))
    axes.set(
        xlabel="perplexity against no repair (%; bars: 95 % CI)",
        yticks=range(len(names)),
        yticklabels=[labels[name] for name in names],
    )
    model = next((entry["model"] for entry in entries if not entry["variant"]), entries[0]["model"])
    above(figure, removed([{"model": model, "sparsity": sparsity} for _, sparsity in selections]))
    figure.legend(loc="outside lower right")
    return figure

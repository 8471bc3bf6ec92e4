"""LaCo's figures, from records: 3 (post-training), 4 and 5 (layer similarity), and every attempt of its search."""

import math

from figures.style import BLUE, GREEN, ORANGE, PURPLE, VERMILION, break_below, plt

# Figure 4 shows q, k and v of attention, up and down of the MLP: colour, width of line, since some lie on one another, mark.
MATRICES = {
    "q_proj": (BLUE, 6, "o"),
    "k_proj": (ORANGE, 2.5, "s"),
    "v_proj": (GREEN, 4, "^"),
    "W_pack": (BLUE, 6, "o"),
    "up_proj": (VERMILION, 6, "D"),
    "down_proj": (PURPLE, 2.5, "v"),
}
# How a recipe calls a merge -> how the pictures do.
MERGES = {"paper": "Eq. 1", "code": "code's merge", "drop": "nothing merged"}
ORTHOGONAL, UNCORRELATED = "orthogonal", "uncorrelated"
# Label, colour, line, its width: what lies on one another is drawn from wide to narrow.
ADJACENT = {
    ORTHOGONAL: ("if each adds something orthogonal", ORANGE, "-", 5),
    "measured": ("measured", BLUE, "o-", 1.2),
}
BLOCKS = {
    "the code's merge": ("code's merge", BLUE, "-", 5),
    "first layer alone": ("first layer alone", "black", "^--", 1.2),
    "no layer": ("no layer", ORANGE, "x:", 1.2),
    "Eq. 1": ("Eq. 1", VERMILION, "o-", 1.2),
    UNCORRELATED: ("Eq. 1 if uncorrelated", VERMILION, ":", 1.2),
}


def _name(entry: dict, name_model: bool) -> str:
    """Return how a row merges, by its recipe; with its model where there are several."""
    recipe = next(iter(entry["records"].values()))["recipe"]
    merge = MERGES[recipe["selection"]["merge"]]
    return f"{entry['model']}, {merge}" if name_model else merge


def _whole(axes) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True)


def figure3(entries: list[dict], profile: str) -> plt.Figure:
    """Draw the loss of every step of the post-training, and the validation losses."""
    figure, axes = plt.subplots(figsize=(4.6, 3.0))
    for entry, colour, line in zip(entries, (VERMILION, BLUE, GREEN, ORANGE), ("-", "--", "-.", ":")):
        report = entry["records"]["laco-training"]["details"]["training"]
        steps = range(1, len(report["losses"]) + 1)
        label = _name(entry, len({e["model"] for e in entries}) > 1)
        axes.plot(steps, report["losses"], line, color=colour, lw=1, label=label)
        axes.plot(*zip(*report["validation"]), "o", color=colour, ms=4)
    axes.set(xlabel="step (dots: validation)", ylabel="loss (nats per token)")
    break_below(axes)
    axes.legend(title="after the collapse by")
    return figure


def figure4(entries: list[dict], profile: str) -> plt.Figure:
    """Draw the distance of each matrix from the next layer's.

    Dotted lines show uncorrelated matrices of these norms; below, the distance in percent of theirs.
    """
    size = (4.6 * len(entries), 5.2)
    figure, panels = plt.subplots(2, len(entries), figsize=size, squeeze=False, sharex="col", height_ratios=(3, 2))
    for (axes, below), entry in zip(panels.T, entries):
        distances = entry["records"]["laco-distances"]["details"]["distances"]
        for name, (colour, width, mark) in MATRICES.items():
            if name in distances:
                measured, apart = distances[name]["distance"], distances[name]["uncorrelated"]
                axes.plot(measured, color=colour, lw=width, alpha=0.45, label=name)
                axes.plot(apart, ":", color="black", lw=1.2, zorder=3)
                shares = [100 * distance / uncorrelated for distance, uncorrelated in zip(measured, apart, strict=True)]
                below.plot(shares, mark, color=colour, ms=3.5, mfc="none", ls="")
        axes.plot([], [], ":", color="black", label="if uncorrelated")
        axes.set(ylabel="L2 distance", ylim=(0, None))
        axes.set_title(entry["model"] if len(entries) > 1 else "")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        below.axhline(100, ls=":", color="black", lw=1.2)
        below.set(xlabel="layer (to the next)", ylabel="distance, % of\nuncorrelated")
        break_below(below)
        _whole(axes)
    return figure


def figure5(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw cosines between the outputs of adjacent layers (a), and of a merged layer and the last merged one (b).

    None if they were not measured.
    """
    records = entries[0]["records"]
    if "laco-outputs" not in records:
        return None
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.0), sharey=True)
    details = records["laco-outputs"]["details"]
    adjacent, blocks = {"measured": details["adjacent"]}, details["windows"]
    if "laco-uncorrelated" in records:
        apart = records["laco-uncorrelated"]["details"]
        adjacent, blocks = adjacent | {ORTHOGONAL: apart["adjacent"]}, blocks | {UNCORRELATED: apart["windows"]}
    for axes, lines, styles in ((left, adjacent, ADJACENT), (right, blocks, BLOCKS)):
        for name, (label, colour, mark, width) in styles.items():
            if name in lines:
                faint = 0.45 if width > 2 else 1
                axes.plot(lines[name], mark, color=colour, ms=4, lw=width, alpha=faint, label=label)
    least = min(0, *(min(values) for values in blocks.values()))
    left.set(
        xlabel="layer (to the next)", ylabel="cosine of outputs", title="(a) adjacent layers", ylim=(least - 0.02, 1.02)
    )
    start, stop = details["within"]
    right.axvspan(start - 0.5, stop - 0.5, color="#eeeeee", zorder=0, lw=0)
    right.set(xlabel="first of four layers (grey: the paper's part)", title="(b) four layers merged into one")
    left.legend(loc="center right", bbox_to_anchor=(1, 0.45))
    right.legend(loc="center right", bbox_to_anchor=(1, 0.45))
    for axes in (left, right):
        _whole(axes)
    return figure


def search(entries: list[dict], profile: str) -> plt.Figure:
    """Draw every attempt of Algorithm 1 from the last layers to the first, accepted ones filled, with T as a line."""
    columns = min(3, len(entries))
    rows = math.ceil(len(entries) / columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(3.1 * columns, 2.5 * rows), sharex=True, sharey=True, squeeze=False
    )
    name_model = len({entry["model"] for entry in entries}) > 1
    for axes, entry in zip(panels.flat, entries):
        collapsed = entry["records"]["laco-search"]["details"]["laco"][-1]
        tried = [attempt for attempt in collapsed["trace"] if attempt["similarity"] is not None]
        for accepted, face, label in ((True, BLUE, "accepted"), (False, "white", "rejected")):
            attempts = [attempt for attempt in tried if attempt["accepted"] == accepted]
            points = [a["l"] for a in attempts], [a["similarity"] for a in attempts]
            axes.plot(*points, "o", mfc=face, mec=BLUE, ms=5, label=label)
        axes.axhline(collapsed["threshold"], color=VERMILION, lw=1, label="threshold T")
        layers = f"{collapsed['before']} to {collapsed['layers']} layers"
        axes.set_title(f"{_name(entry, name_model)}: T = {collapsed['threshold']:.2f}, {layers}", fontsize=8)
        axes.xaxis.set_tick_params(labelbottom=True)
        _whole(axes)
    panels.flat[len(entries) - 1].legend(fontsize=7)
    for axes in list(panels.flat)[len(entries) :]:
        axes.set_axis_off()
    panels[0, 0].invert_xaxis()  # shared: the search goes from right to left in the model
    figure.supxlabel("layer merged into, l, from 1 on as in Algorithm 1 (the search starts at the left)", fontsize=9)
    figure.supylabel("similarity to the original, s", fontsize=9)
    return figure

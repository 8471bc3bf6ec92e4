"""LinearPatch's figures, from records: entries are rows of `reproductions.render.show.drawn`."""

import math
from statistics import median_high

from figures import curves
from figures.style import BLUE, GREEN, GREY, ORANGE, VERMILION, above, break_axis, plt, round_ticks

WIDTH = 4.2  # of one column, in inches
LEAST = 0.1  # where Figure 4's lower axis ends; what lies below stands at its edge
# Figure 5's lines: the part that is trained, whatever the loss.
_TRAINED = {
    "LLM-Streamline(FFN) +FT, layer output, MSE": "LLM-Streamline: a feed-forward network",
    "LLM-Streamline(FFN) +FT, logits, KL": "LLM-Streamline: a feed-forward network",
    "streamline-layer": "LLM-Streamline: a transformer layer (extension)",
    "LinearPatch[L +FT, layer output, MSE]": "LinearPatch: the matrix A",
    "LinearPatch[L +FT, logits, KL]": "LinearPatch: the matrix A",
    "LinearPatch[L +FT, diagonal, logits, KL]": "LinearPatch: only the scales d, rotated basis",
    "distilled-plain-diagonal": "LinearPatch: only the scales d, no rotation (extension)",
    "distilled-code-diagonal": "LinearPatch: a matrix that starts as diag(d), as in the official code (extension)",
    "distilled-from-least-squares": "LinearPatch: a matrix that starts as the least-squares one (extension)",
}
_DISTILLED = {"kl": "distilling the logits", "mse": "distilling the removed layers' output"}
_NAMES = {"none": "no repair", "d": "scaled by d", "A": "multiplied by A"}


def _block_of(entry: dict) -> str:
    start, stop = next(iter(entry["records"].values()))["details"]["window"]
    return f"{entry['model']}, {entry['sparsity']} removed: layers {start} to {stop - 1}"


def _caption(figure: plt.Figure, texts: list[str]) -> plt.Figure:
    """Say which model and interface a figure shows, in small print above it."""
    above(figure, "; ".join(dict.fromkeys(texts)))
    return figure


def _panels(entries: list[dict], height: float = 2.8) -> tuple[plt.Figure, list[plt.Axes]]:
    figure, axes = plt.subplots(len(entries), 1, figsize=(WIDTH, height * len(entries)), squeeze=False)
    return figure, list(axes[:, 0])


def _by_channel(axes: plt.Axes, channels: dict, curves: dict[str, tuple[str, str, str]]) -> None:
    """Draw magnitudes per channel, in the order before the pruning interface, on a logarithmic axis.

    A few channels are many times larger than the others.
    """
    order = sorted(range(len(channels["before"])), key=channels["before"].__getitem__)
    for name, (label, colour, mark) in curves.items():
        values = [channels[name][k] for k in order]
        axes.plot(values, mark, color=colour, ms=4, lw=1.3, label=label)
    axes.set(
        xlabel="channel, in order of magnitude before the pruning interface",
        ylabel="mean |X| over tokens",
        yscale="log",
    )
    round_ticks(axes)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, columnspacing=1.0, handletextpad=0.4)


def figure1a(entries: list[dict], profile: str) -> plt.Figure:
    """Draw the mismatch: mean |X| per channel over calibration tokens, on both sides of the block."""
    figure, panels = _panels(entries)
    for entry, axes in zip(entries, panels, strict=True):
        details = entry["records"]["magnitudes"]["details"]
        start, stop = details["window"]
        curves = {
            "after": (f"$X^{{({stop})}}$, expected", ORANGE, "."),
            "before": (f"$X^{{({start})}}$, received", BLUE, "-"),
        }
        _by_channel(axes, details["channels"]["plain"], curves)
    return _caption(figure, list(map(_block_of, entries)))


def figure1b(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw mean |X| per channel after scaling, and perplexity against the factor alpha on the scales.

    The perplexity axis is cut off. None if only one of the two has been measured.
    """
    entries = [entry for entry in entries if {"magnitudes", "alpha"} <= entry["records"].keys()]
    if not entries:
        return None
    figure, panels = plt.subplots(2 * len(entries), 1, figsize=(WIDTH, 5.2 * len(entries)))
    for index, entry in enumerate(entries):
        details = entry["records"]["magnitudes"]["details"]
        start, stop = details["window"]
        curves = {
            "after": (f"$X^{{({stop})}}$, expected", ORANGE, "."),
            "scaled": (f"$X^{{({start})}}\\cdot d$, received", BLUE, "-"),
        }
        _by_channel(panels[2 * index], details["channels"]["plain"], curves)
        sweep = entry["records"]["alpha"]["details"]
        axes = panels[2 * index + 1]
        looks = {"none": (GREY, "^:"), "d": (BLUE, "o-"), "A": (VERMILION, "s--")}
        lowest = min(min(curve) for curve in sweep["curves"].values())
        most = 1.8 * lowest
        for name, (colour, mark) in looks.items():
            curve = sweep["curves"][name]
            label = _NAMES[name] + (f", off the scale, up to {max(curve):.0f}" if max(curve) > most else "")
            axes.plot(sweep["alphas"], curve, mark, color=colour, ms=3.5, lw=1.3, label=label)
        axes.axvline(1, color=GREY, lw=0.8)
        axes.set(xlabel=r"further factor $\alpha$", ylabel="perplexity", ylim=(0.93 * lowest, most))
        break_axis(axes, 0.035)
        if max(max(curve) for curve in sweep["curves"].values()) > most:
            break_axis(axes, 0.965)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.25))
    return _caption(figure, list(map(_block_of, entries)))


def _by_token(entries: list[dict], basis: str, colour: str) -> plt.Figure:
    figure, panels = _panels(entries, 3.1)
    for entry, axes in zip(entries, panels, strict=True):
        details = entry["records"]["magnitudes"]["details"]
        tokens = details["tokens"]
        median, largest = median_high(tokens[basis]), max(tokens[basis])
        size = 2.5 if len(tokens[basis]) > 1000 else 5
        axes.plot(tokens[basis], ".", color=colour, ms=size, mew=0, label="one token")
        label = f"median token (the largest token is {largest / median:.1f} times it)"
        axes.axhline(median, color="black", lw=1, ls="--", label=label)
        highest = max(map(max, tokens.values()))
        axes.set(
            xlabel="position of the token",
            ylabel="token's largest |activation|\nover the channels",
            ylim=(0, 1.05 * highest),
        )
        side = "after" if basis == "rotated" else "before"
        title = f"input of layer {details['window'][0]}, {side} the Hadamard rotation"
        axes.legend(loc="lower left", bbox_to_anchor=(-0.05, 1.0), title=title, markerscale=2)
    return _caption(figure, list(map(_block_of, entries)))


def figure1c(entries: list[dict], profile: str) -> plt.Figure:
    """Draw each token's largest magnitude at the pruning interface."""
    return _by_token(entries, "plain", ORANGE)


def figure1d(entries: list[dict], profile: str) -> plt.Figure:
    """Draw each token's largest magnitude at the pruning interface after the rotation, on the scale of 1c."""
    return _by_token(entries, "rotated", BLUE)


def figure3(entries: list[dict], profile: str) -> plt.Figure:
    """Draw mean |X| at every layer's input, with the removed layers shaded."""
    figure, panels = _panels(entries, 2.4)
    for entry, axes in zip(entries, panels, strict=True):
        details = entry["records"]["magnitudes"]["details"]
        start, stop = details["window"]
        layers = details["layers"]
        axes.axvspan(start, stop, color=ORANGE, alpha=0.25, lw=0)
        axes.plot(layers, "o-", color=BLUE, ms=3.5)
        gap = (layers[start], layers[stop])
        axes.annotate(
            f"× {gap[1] / gap[0]:.2f}", ((start + stop) / 2, gap[0]), ha="center", va="top", xytext=(0, -4),
            textcoords="offset points",
        )  # fmt: skip
        axes.plot([start, stop], [gap[0], gap[0]], ":", color="black", lw=1)
        axes.plot([stop, stop], gap, ":", color="black", lw=1)
        axes.set(xlabel="layer (the last point: behind the last layer)", ylabel="mean |X| at its input")
        axes.set_title(_block_of(entry) if len(entries) > 1 else "", fontsize=9)
        axes.xaxis.get_major_locator().set_params(integer=True)
    return _caption(figure, list(map(_block_of, entries)) if len(entries) == 1 else [])


def figure4(entries: list[dict], profile: str) -> plt.Figure:
    """Draw the best factor at every interface, the predictions, and each repair's perplexity, on logarithmic axes.

    Results have no outcomes per sequence here, so there are no intervals, and the picture says so.
    """
    figure, panels = plt.subplots(2 * len(entries), 1, figsize=(WIDTH, 6.8 * len(entries)))
    for index, entry in enumerate(entries):
        rows = entry["records"]["cut-factors"]["details"]["rows"]
        starts = [row["window"][0] for row in rows]
        upper, lower = panels[2 * index : 2 * index + 2]
        factors = {
            "best_factor": ("black", "o-", "lowest perplexity (the best factor)"),
            "ratio": (ORANGE, "s--", "predicted by ratios of magnitudes, as in LinearPatch"),
            "least_squares": (BLUE, "^:", "predicted by least squares at the interface"),
            "alike_at_end": (VERMILION, "x-.", "predicted by the similarity of the final hidden states"),
        }
        for name, (colour, mark, label) in factors.items():
            upper.plot(starts, [row[name] for row in rows], mark, color=colour, ms=5, label=label)
        upper.set(ylabel="factor on all channels\n(log scale)", yscale="log")
        looks = {
            "ratio": (ORANGE, "s--", "LinearPatch's A, by ratios of magnitudes"),
            "least-squares": (BLUE, "^:", "LinearPatch's A, by least squares"),
            "alike at the end": (VERMILION, "x-.", "one factor, by the similarity of the final hidden states"),
            "matrix": (GREEN, "D-", "a full matrix, by least squares"),
        }
        lost = False
        for number, (name, (colour, mark, label)) in enumerate(looks.items()):
            ratios = [row["perplexities"][name] / row["perplexities"]["none"] for row in rows]
            shown = [ratio if ratio >= LEAST else math.nan for ratio in ratios]
            lower.plot(starts, shown, mark, color=colour, ms=5, label=label)
            off = [start for start, ratio in zip(starts, ratios, strict=True) if ratio < LEAST]
            places = [start + 0.3 * (number - (len(looks) - 1) / 2) for start in off]
            lower.plot(places, [1.05 * LEAST] * len(off), "v", color=colour, ms=4)
            lost |= bool(off)
        if lost:
            lower.plot([], [], "v", color=GREY, ms=4, label=f"below {LEAST} (off the axis)")
            lower.set_ylim(bottom=0.9 * LEAST)
        lower.axhline(1, color=GREY, lw=0.8)
        length = rows[0]["window"][1] - starts[0]
        lower.set(ylabel="perplexity / that of no repair\n(log scale)", yscale="log")
        titles = "One factor at the pruning interface", "Perplexity with each repair"
        for axes, title in zip((upper, lower), titles, strict=True):
            round_ticks(axes)
            axes.set_xlabel(f"first of the {length} layers removed")
            axes.legend(loc="lower left", bbox_to_anchor=(-0.05, 1.0), title=title, fontsize=8, handletextpad=0.3)
            axes.xaxis.get_major_locator().set_params(integer=True)
    models = [f"{entry['model']}, {entry['sparsity']} layers removed" for entry in entries]
    return _caption(figure, [*models, "no intervals: losses per sequence were not recorded"])


def figure5(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw losses during training: a panel for each loss, a line for each trained part. See `figures.curves.draw`."""
    parts = [entry | {"name": _TRAINED[entry["method"]]} for entry in entries]
    return curves.draw(parts, profile, group=lambda entry: _DISTILLED[curves.trained(entry)["loss"]])

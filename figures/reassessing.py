"""Drawings of Reassessing: gradients by depth, layer similarity, accuracy against removed layers, spread of chosen sets."""

from __future__ import annotations

from figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, plt

_LOOKS = [(BLUE, "o", "-"), (VERMILION, "s", "--"), (GREEN, "^", "-."), (PURPLE, "D", ":"), (ORANGE, "v", "-")]


def theory(entries: list[dict], profile: str) -> plt.Figure:
    """Eq. 16 beside what is measured: gradients of parameters and stream by layer, the bound, pre-LN and post-LN toys."""
    records = next(e["records"] for e in entries if "gradients@trained" in e["records"])
    model = entries[0]["model"]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.0))
    for axes, names in ((left, ("trained", "random")), (right, ("toy-pre", "toy-post"))):
        for name, (color, marker, line) in zip(names, _LOOKS):
            details = records[f"gradients@{name}"]["details"]
            norms = details["gradient_of_parameters"]
            label = {"trained": f"{model}, trained", "random": "same shape, random weights"}.get(
                name, {"toy-pre": "pre-LN", "toy-post": "post-LN"}.get(name)
            )
            axes.plot(range(len(norms)), norms, color=color, marker=marker, ls=line, ms=3.5, label=label)
        axes.set(xlabel="layer $l$", ylabel=r"$\|\partial L/\partial\theta_l\|$", ylim=(0, None))
        axes.legend(fontsize=7)
    left.set_title("gradient of a layer's weights", fontsize=9)
    right.set_title("random toys, 16 layers", fontsize=9)
    details = records["gradients@trained"]["details"]
    bound, one = details["bound_one"], details["gradient_of_stream_one"]
    middle.semilogy(range(len(bound)), bound, color=GREY, ls="--", marker=".", label="Eq. 16's bound")
    middle.semilogy(range(len(one)), one, color=BLUE, marker="o", ms=3.5, label="measured")
    middle.set(xlabel="boundary $l$", ylabel=r"$\|\partial L/\partial X_l\|$")
    middle.set_title(f"gradient of the stream, {model}", fontsize=9)
    middle.legend(fontsize=7)
    return figure

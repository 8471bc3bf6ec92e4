"""The pictures of the toy model's model card, from the files beside its weights."""

import json
from pathlib import Path

from figures.style import BLUE, GREEN, GREY, ORANGE, VERMILION, break_axis, break_below, caption, plt, save

WEIGHTS = Path(__file__).resolve().parents[1] / "common" / "toy" / "weights"


def training_curve(log: list[dict]) -> plt.Figure:
    """Draw training and held-out loss against tokens."""
    figure, axes = plt.subplots(figsize=(4.2, 2.8))
    tokens = [line["tokens"] / 1e6 for line in log]
    axes.plot(tokens, [line["train"] for line in log], color=GREY, lw=1, label="training text")
    axes.plot(tokens, [line["valid"] for line in log], color=BLUE, lw=1.8, label="held-out text")
    axes.set(
        xlabel="tokens seen (millions)", ylabel="loss (nats per token)", ylim=(None, min(7.0, log[0]["valid"] + 0.5))
    )
    break_below(axes)
    if max(line["train"] for line in log) > axes.get_ylim()[1]:
        break_axis(axes, 0.965)
    axes.legend()
    return figure


def pruning_curve(rows: list[dict], dense: float) -> plt.Figure:
    """Draw perplexity against the number of removed layers, for two ways to select the block."""
    figure, axes = plt.subplots(figsize=(4.2, 2.8))
    removed = [0, *(row["removed"] for row in rows)]
    series = (("perplexity", "highest cosine", VERMILION, "o-"), ("best_perplexity", "lowest loss", BLUE, "s--"))
    for key, label, colour, mark in series:
        axes.plot(removed, [dense, *(row[key] for row in rows)], mark, color=colour, ms=4, label=label)
    axes.set(xlabel="layers removed (one block)", ylabel="held-out perplexity")
    break_below(axes)
    axes.legend(title="block selected by")
    return figure


def alpha_sweeps(sweeps: list[dict]) -> plt.Figure:
    """Draw perplexity against the factor at the pruning interface, with magnitude matching's factor as a dotted line."""
    figure, axes = plt.subplots(figsize=(4.2, 2.8))
    for sweep, colour, line in zip(sweeps, (BLUE, ORANGE, GREEN), ("-", "--", "-."), strict=False):
        points = sweep["sweep"]
        label = f"[{sweep['window'][0]}, {sweep['window'][1]})"
        axes.plot([p["alpha"] for p in points], [p["perplexity"] for p in points], line, color=colour, label=label)
        axes.axvline(sweep["predicted"], color=colour, ls=":")
        best = min(points, key=lambda p: p["perplexity"])
        axes.plot(best["alpha"], best["perplexity"], "o", color=colour, ms=5)
    axes.set(
        xlabel="factor at the interface (dot: the best; dotted: ratio of magnitudes)", ylabel="held-out perplexity"
    )
    break_below(axes)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, title="block removed")  # above: no corner is free
    return figure


def magnitudes(rows: list[dict]) -> plt.Figure:
    """Draw the mean magnitude at every layer boundary, and the largest token's norm over the median one."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(4.2, 4.2), sharex=True)
    above.plot([row["mean"] for row in rows], "o-", color=BLUE, ms=4)
    above.set(ylabel="mean |X| (log scale)", yscale="log")
    peaks = [row["peak"] for row in rows]
    below.plot(peaks, "s--", color=ORANGE, ms=4)
    below.set(xlabel="layer boundary", ylabel="largest / median\ntoken norm", ylim=(0, max(10.0, 1.1 * max(peaks))))
    below.xaxis.get_major_locator().set_params(integer=True)
    return figure


def drawn(folder: Path | None = None) -> list[Path]:
    """Draw the four pictures; return the files."""
    facts = json.loads((WEIGHTS / "facts.json").read_text())
    log = [json.loads(line) for line in (WEIGHTS / "training-log.jsonl").read_text().splitlines()]
    pruned, sweeps = facts["pruning_curve"], facts["alpha_sweeps"]
    layers = len(facts["magnitudes"]) - 1  # between the boundaries
    # Name -> picture, layers removed in it.
    pictures = {
        "standin-training": (training_curve(log), [0]),
        "standin-pruning-curve": (pruning_curve(pruned, facts["dense_perplexity"]), [row["removed"] for row in pruned]),
        "standin-alpha-sweeps": (alpha_sweeps(sweeps), [stop - start for start, stop in (s["window"] for s in sweeps)]),
        "standin-magnitudes": (magnitudes(facts["magnitudes"]), [0]),
    }
    files = []
    for name, (figure, counts) in pictures.items():
        caption(figure, [{"model": "toy model", "sparsity": f"{count}/{layers}"} for count in counts])
        files += save(figure, name, folder)
    return files

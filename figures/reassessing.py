"""Drawings of Reassessing: gradients by depth, layer similarity, accuracy against removed layers, spread of chosen sets."""

import math

from figures import curves
from figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, above, break_below, plt

LORA = "+LoRA"  # the arm that others are held against
_LOOKS = [(BLUE, "o", "-"), (VERMILION, "s", "--"), (GREEN, "^", "-."), (PURPLE, "D", ":"), (ORANGE, "v", "-")]


def theory(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw gradients of parameters and of the residual stream by layer, the bound of Eq. 16, and pre-LN and post-LN toys.

    None without one of them.
    """
    needed = {f"gradients@{name}" for name in ("trained", "random", "toy-pre", "toy-post")}
    records = next((e["records"] for e in entries if needed <= e["records"].keys()), None)
    if records is None:
        return None
    labels = {"random": "same shape, random weights", "toy-pre": "pre-LN", "toy-post": "post-LN"}
    labels["trained"] = f"{entries[0]['model'].partition(', ')[0]}, trained"  # without how its weights were made
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.0))
    for axes, names in ((left, ("trained", "random")), (right, ("toy-pre", "toy-post"))):
        for name, (color, marker, line) in zip(names, _LOOKS):
            details = records[f"gradients@{name}"]["details"]
            norms = details["gradient_of_parameters"]
            axes.plot(range(len(norms)), norms, color=color, marker=marker, ls=line, ms=3.5, label=labels[name])
        axes.set(xlabel="layer $l$", ylabel=r"norm $\|\partial L/\partial\theta_l\|$", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize=7)
    left.set_title("gradient of each layer's weights", fontsize=9)
    right.set_title("gradient of weights, random toy networks", fontsize=9)
    details = records["gradients@trained"]["details"]
    bound, stream_norms = details["bound_one"], details["gradient_of_stream_one"]
    middle.semilogy(
        range(len(bound)),
        bound,
        color=GREY,
        ls="--",
        marker=".",
        label="upper bound (Eq. 16): product\nof the layers' Jacobian norms",
    )
    middle.semilogy(range(len(stream_norms)), stream_norms, color=BLUE, marker="o", ms=3.5, label="measured")
    middle.set(
        xlabel="layer $l$ (last point: after all layers)", ylabel=r"norm $\|\partial L/\partial X_l\|$ (log scale)"
    )
    middle.set_title("gradient of each layer's input, trained model", fontsize=9)
    middle.legend(fontsize=7)
    return figure


def _accuracy(records: dict, task: str | None) -> float:
    """Return a task's accuracy in percent; None: the mean over the tasks."""
    accuracies = {name: record["values"]["acc"] for name, record in records.items()}
    return 100 * (sum(accuracies.values()) / len(accuracies) if task is None else accuracies[task])


def _error(records: dict, task: str | None) -> float:
    """Return the standard error of `_accuracy`, tasks taken as independent; NaN, which is not drawn, if a result has none."""
    task_records = [record for name, record in records.items() if task in (None, name)]
    errors = [record.get("stderr", {}).get("acc", math.nan) for record in task_records]
    return 100 * math.hypot(*errors) / len(errors)


def _chance_level(entry: dict, tasks: list[str], task: str | None) -> float | None:
    """Return chance level on a task, or on average over all; None where that is not known."""
    levels = [entry.get("chance", {}).get(name) for name in (tasks if task is None else [task])]
    return None if None in levels else 100 * sum(levels) / len(levels)


def rates(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw accuracy against the number of removed layers (Figure A): a panel for each task of all rows, then their mean.

    The original model is at zero. Bars are standard errors; the dotted line is chance level. None if no task is of all.
    """
    scored = [{name for name, record in e["records"].items() if "acc" in record["values"]} for e in entries]
    tasks = [name for name in entries[0]["records"] if all(name in names for names in scored)]
    if not tasks:
        return None
    entries = [e | {"records": {task: e["records"][task] for task in tasks}} for e in entries]
    dense = [e for e in entries if e["dense"]]
    names = dict.fromkeys(e["spec"].metric for e in entries if not e["dense"])
    shape = -(-(len(tasks) + 1) // 3), 3
    size = (7.2, 0.6 + 2.0 * shape[0])
    figure, panels = plt.subplots(*shape, figsize=size, squeeze=False, sharex=True)
    for axes, task in zip(panels.flat, [*tasks, None]):
        for side, (name, (color, marker, line)) in enumerate(zip(names, _LOOKS)):
            rows = [*dense, *(e for e in entries if e["spec"] and e["spec"].metric == name)]
            points = sorted(
                (int(e["sparsity"].split("/")[0]), _accuracy(e["records"], task), _error(e["records"], task))
                for e in rows
            )
            removed_layers, accuracies, errors = zip(*points)
            beside = [0.12 * side + n if n else n for n in removed_layers]  # of two methods not on one another
            axes.plot(beside, accuracies, color=color, marker=marker, ls=line, ms=4, label=name)
            axes.errorbar(beside, accuracies, errors, fmt="none", ecolor=color, elinewidth=1, capsize=2)
        if (level := _chance_level(entries[0], tasks, task)) is not None:
            axes.axhline(level, color=GREY, ls=":", lw=1.2, label="chance level")
        title = "mean" if task is None else task.partition("@")[0].removeprefix("docstring_").replace("_", " ")
        axes.set_title(title, fontsize=9, fontweight="bold" if task is None else "normal")
        break_below(axes)
    for number, axes in enumerate(panels.flat):
        if number > len(tasks):
            axes.set_axis_off()
            panels.flat[number - shape[1]].tick_params(labelbottom=True)  # nothing is below it
    if names:
        mean, *free = panels.flat[len(tasks) :]
        (free[0] if free else mean).legend(*mean.get_legend_handles_labels(), fontsize=8 if free else 7)
    model, layers = entries[0]["model"], entries[0]["sparsity"].split("/")[1]
    arms = [entry["spec"].arm for entry in entries if entry["spec"]]
    trained = "LoRA" if any(arm and arm.kind == "lora" for arm in arms) else "no fine-tuning"
    above(figure, f"{model}, n/{layers} layers removed, {trained}")
    figure.supxlabel(f"layers removed, n of {layers}", fontsize=9)
    figure.supylabel("accuracy ± standard error, % (not by length)", fontsize=9)
    return figure


def similarity(entries: list[dict], profile: str) -> plt.Figure | None:
    """Draw linear CKA between the outputs of the remaining layers (Figure B), one matrix for each schedule of removal.

    None if it was measured of none.
    """
    entries = [entry for entry in entries if "similarity@cka" in entry["records"]]
    if not entries:
        return None
    figure, panels = plt.subplots(1, len(entries), figsize=(3.0 * len(entries) + 0.6, 3.0), squeeze=False)
    for axes, entry in zip(panels[0], entries):
        matrix = entry["records"]["similarity@cka"]["details"]["matrix"]
        image = axes.imshow(matrix, vmin=0, vmax=1, cmap="viridis", origin="lower")
        step = entry["spec"].schedule[0] if entry["spec"].schedule else None
        steps = "in one step" if step is None else f"in steps of {step} layer{'s' * (step > 1)}"
        axes.set_title(f"layers removed {steps}", fontsize=9)
        axes.set(xlabel="remaining layer", ylabel="remaining layer" if axes is panels[0][0] else "")
        axes.grid(False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=list(panels[0]), label="similarity of layers' outputs\n(linear CKA)", shrink=0.85)
    spec, sparsity = entries[0]["spec"], entries[0]["sparsity"]
    trained = spec.arm.label.removeprefix("+").replace("& last 3", "and the last 3 layers")
    above(
        figure, f"{entries[0]['model']}, {sparsity} layers removed by {spec.metric} importance; fine-tuned: {trained}"
    )
    return figure


def seeds(entries: list[dict], profile: str) -> plt.Figure:
    """Draw the layers that a metric removes, by number of samples and seed: one row of squares per set."""
    records = entries[0]["records"]
    names = [name for name in records if name.startswith("chosen-sets@")]
    layers = int(entries[0]["sparsity"].split("/")[1])
    figure, panels = plt.subplots(1, len(names), figsize=(4.4 * len(names), 4.2), squeeze=False, sharey=True)
    for axes, name, color in zip(panels[0], names, (BLUE, VERMILION)):
        sets = records[name]["details"]["sets"]
        ticks, row = [], 0
        for samples, seed_sets in sorted(sets.items(), key=lambda item: int(item[0])):
            ticks.append((row + (len(seed_sets) - 1) / 2, f"{samples}"))
            for layer_set in seed_sets:
                axes.scatter(range(layers), [row] * layers, s=6, color="#dddddd", marker="s")
                axes.scatter(layer_set, [row] * len(layer_set), s=26, color=color, marker="s")
                row += 1
            row += 1
        axes.set(xlabel="layer (a row a seed; filled: removed)", xlim=(-0.7, layers - 0.3))
        axes.set_title({"bi": "BI", "taylor": "Taylor"}.get(name.partition("@")[2], name), fontsize=9)
        axes.set_yticks([place for place, _ in ticks], [label for _, label in ticks])
        axes.grid(False)
    count = len(records[names[0]]["details"]["seeds"])
    panels[0][0].set_ylabel(f"calibration samples ({count} seeds each)")
    panels[0][0].invert_yaxis()
    drawn = (seed_sets for name in names for seed_sets in records[name]["details"]["sets"].values())
    counts = sorted({len(layer_set) for seed_sets in drawn for layer_set in seed_sets})
    above(figure, f"{entries[0]['model']}, {' or '.join(map(str, counts))} of {layers} layers selected")
    return figure


def losses(entries: list[dict], profile: str) -> plt.Figure:
    """Draw losses during training, a panel for each selection of layers: differences from LoRA's, and validation losses.

    See `figures.curves.draw`.
    """
    trained = [entry for entry in entries if entry["spec"].arm]
    arms = [entry | {"method": entry["spec"].arm.id, "name": entry["spec"].arm.label} for entry in trained]
    return curves.draw(arms, profile, group=lambda entry: f"layers chosen: {entry['spec'].metric}", against=LORA)

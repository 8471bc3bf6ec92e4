"""``python -m papers.refit``: remove layers of a model of yours and refit what is around the cut. `--help` says how."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from common import launch
from common.context import around
from common.errors import UserError
from common.flags import Flag, option
from common.product import Job, Method, main
from common.recipe import Selection
from common.steps import Window, WindowLoss
from papers.refit.cost import Cost, choosing
from papers.refit.method import LARGE, RIDGE, check_architecture, check_biases
from papers.refit.steps import Refit

HELD_OUT_OF = 8  # the league's share: 16 of 128 windows
WINDOWS = ("loss", "cosine")


@dataclass(frozen=True)
class Choice:
    """How the window of layers is chosen: the options that are no step's."""

    window: str | None = option(
        None,
        "which layers go: those of the lowest loss without them, or of most alike input and output",
        choices=WINDOWS,
    )


def check(job: Job) -> None:
    """Refuse what cannot be refitted, settle how many windows choose the damping, and cut the windows.

    Raises:
        UserError: an architecture, patches, biases that the config does not know, as many held-out windows as there are, two
            ways to choose the layers.
    """
    options = job.options
    if options.window == "loss" and options.cosine is not None:
        raise UserError("--cosine says how --window cosine compares; --window loss does not, leave one of the two out")
    if options.window is None and job.given is None:
        options.window = "loss" if options.cosine is None else "cosine"
    if options.held_out is None:  # of wide models one H'H is all there is room for
        chosen = options.ridge is None and job.config.intermediate_size < LARGE
        options.held_out = options.samples // HELD_OUT_OF if chosen else 0
    check_architecture(job.config.model_type)
    if (job.source / "patches.json").exists():
        raise UserError("the model carries patches; refit the model that they were made for")
    if options.intercept:
        check_biases(job.config)
    if (options.held_out or 0) >= options.samples:
        raise UserError(f"--held-out {options.held_out} leaves none of the {options.samples} samples; use fewer")
    for name in ("one-by-one", "intercept"):
        if options.stream is not None and getattr(options, name.replace("-", "_")):
            raise UserError(f"--{name} needs the whole model in memory; leave --stream out")
    job.apart = options.held_out or 0
    job.windows  # noqa: B018 - read now


def apply(job: Job) -> dict:
    """Choose, remove and refit; the facts are the layers, and what each matrix left."""
    context = around(job.model, job.tokenizer, job.windows, fidelity=job.options.fidelity)
    removed = job.given
    if removed is None:
        removed = list(_window(job).choose(context))
    job.chosen(removed)
    context.details["removed"] = removed
    Refit(**job.asked(Refit)).apply(context)
    count = len(context.details["refitted"])
    job.notes.append(f"{count} output matrices were refitted in closed form; nothing was added, nothing trained")
    return context.details


def _window(job: Job) -> Selection:
    if job.options.window == "loss":
        return WindowLoss(job.count)
    return Window(count=job.count, exclude_ends=True, **job.asked(Window))


METHOD = Method(
    paper="refit",
    title="Refit",
    description="the layers without which the text is likeliest go, and the output matrices around the cut are refitted by "
    "ridge regression towards the whole model's stream, one after the other; a plain checkpoint, no training.",
    apply=apply,
    flags=(
        Flag(Choice, "window", says="loss; cosine where --cosine is given"),
        Flag(Window, "cosine", default=None, says="token"),
        Flag(Refit, "following"),
        Flag(Refit, "ridge", default=None, says=f"chosen for each matrix on held-out windows; {RIDGE:g} without any"),
        Flag(Refit, "matrices", says="both"),
        Flag(Refit, "share"),
        Flag(Refit, "held_out", "held-out", says=f"one of {HELD_OUT_OF}; none for layers of {LARGE} features and more"),
        Flag(Refit, "gate_up", "gate-up"),
        Flag(Refit, "intercept"),
        Flag(Refit, "one_by_one", "one-by-one"),
    ),
    check=check,
    text="wikitext2-train+hellaswag-train",  # docs/league.md, "What to calibrate on"
    passes=lambda job: choosing(job) + Cost.of(job).passes,
    beside=lambda job: (Cost.of(job).operations, Cost.of(job).bytes),
)

if __name__ == "__main__":
    sys.exit(launch.run(main, METHOD))

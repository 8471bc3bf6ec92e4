"""``python -m papers.prunecomp``: remove layers of a model of yours and rescale what is left. `--help` says how."""

from __future__ import annotations

import argparse
import sys

from common.product import Job, Method, main
from papers.prunecomp import METRICS, prune_and_compensate
from papers.prunecomp.search import Search


def add_options(group: argparse.ArgumentParser) -> None:
    """Prune&Comp's own options."""
    scores = (
        "cosine of each layer (bi) or of one window of all layers that go (cl), loss without the layer (ppl), weight x "
        "gradient (taylor+) or size of the weights (mag+), both sparing the first four and last two; default: bi"
    )
    group.add_argument("--metric", default="bi", choices=METRICS, help=scores)
    group.add_argument("--one-shot", action="store_true", help="choose all layers at once, not one after the other")
    group.add_argument("--no-compensation", action="store_true", help="leave the weights as they are")


def check(options: argparse.Namespace, layers: int) -> None:
    """Refuse a metric that cannot spare so many layers, before anything is measured."""
    Search(options.metric, options.fidelity).check(layers, options.remove)


def apply(job: Job) -> dict:
    """Remove and rescale; the facts are what `prune_and_compensate` returns."""
    options = job.options
    choice = {"metric": options.metric, "iterative": not options.one_shot, "compensate": not options.no_compensation}
    batch = 8 if job.model.device.type == "cpu" else 1
    settings = {"fidelity": options.fidelity, "batch_size": batch, "progress": True}
    found = prune_and_compensate(job.model, job.windows, options.remove, **choice, **settings)
    if found["cuts"]:
        job.notes.append("the embedding and the writers before each cut are multiplied by its factor")
    if None in found["factors"]:
        job.notes.append(
            "where the last layer went nothing is rescaled: only the final norm follows, which undoes a factor"
        )
    return found


METHOD = Method(
    paper="prunecomp",
    title="Prune&Comp",
    description="layers are removed one after the other, and after each the weights before the cut are multiplied by one "
    "factor, so that the stream keeps its magnitude; no training.",
    apply=apply,
    add_options=add_options,
    check=check,
    sampler="prunecomp-train",
    seed=0,
)

if __name__ == "__main__":
    sys.exit(main(METHOD))

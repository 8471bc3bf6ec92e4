"""``python -m papers.linearpatch``: remove layers of a model of yours and patch the cut. `--help` says how."""

from __future__ import annotations

import argparse
import sys

from common.product import Job, Method, main
from papers import linearpatch
from papers.linearpatch.method import VARIANTS
from papers.linearpatch.patch import KINDS

PATCHES = tuple(kind for kind in KINDS if kind != "rotated")  # the same map as hadamard, kept for training


def add_options(group: argparse.ArgumentParser) -> None:
    """LinearPatch's own options."""
    group.add_argument(
        "--variant", default="L", choices=VARIANTS, help="L: the best window; S: the layers of lowest BI"
    )
    group.add_argument(
        "--patch",
        default="hadamard",
        choices=PATCHES,
        help="hadamard: the paper's A; diagonal: its +d; scalar (ours): one factor; matrix (ours): any, by least squares",
    )


def apply(job: Job) -> dict:
    """Choose, remove and patch; the facts are what `linearpatch.prune` returns, scales left to the checkpoint."""
    options = job.options
    batch = 8 if job.model.device.type == "cpu" else 1
    estimator = "least-squares" if options.patch == "matrix" else "ratio-of-means"
    choice = {"variant": options.variant, "kind": options.patch, "estimator": estimator}
    choice |= {"fidelity": options.fidelity, "batch_size": batch, "progress": True}
    found = linearpatch.prune(job.model, job.windows, options.remove, **choice)
    job.notes.append(f"{len(found['patches'])} patch(es), one before the layer that follows each cut")
    return {"removed": found["removed"], "patches": found["patches"]}


METHOD = Method(
    paper="linearpatch",
    title="LinearPatch",
    description="layers whose output resembles their input are removed, and a Hadamard-diagonal-Hadamard matrix at the cut "
    "restores the scale of the channels; no training.",
    apply=apply,
    add_options=add_options,
    loader="papers.linearpatch",
)

if __name__ == "__main__":
    sys.exit(main(METHOD))

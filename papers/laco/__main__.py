"""``python -m papers.laco``: merge layers of a model of yours into earlier ones. `--help` says how."""

from __future__ import annotations

import argparse
import sys

from common import launch
from common.errors import UserError
from common.product import Job, Method, main, require
from common.selection import runs
from papers.laco import merge_layers
from papers.laco.collapse import Settings
from papers.laco.merge import RULES
from papers.laco.sentences import draw
from papers.laco.steps import LayerCollapse


def add_options(group: argparse.ArgumentParser) -> None:
    """LaCo's own options."""
    threshold = "merge whatever stays as similar as this, however many layers go (in place of --remove)"
    group.add_argument("--threshold", type=float, metavar="T", help=threshold)
    group.add_argument(
        "--combine", type=int, metavar="C", help="layers in one merge (default: 2 to 6, to fit --remove; else 4)"
    )
    group.add_argument("--interval", type=int, default=2, metavar="I", help="least distance of two merges (default: 2)")
    merges = (
        "merged weights: the last layer's, which is what the official code computes (code), Eq. 1 of the paper, which "
        "destroyed the models it was tried on (paper), or the first layer's (drop); default: as --fidelity"
    )
    group.add_argument("--merge", choices=RULES, help=merges)
    sentences = "calibration sentences, read in place of windows (default: 10)"
    group.add_argument("--sentences", type=int, default=10, metavar="N", help=sentences)


def check(job: Job) -> None:
    """Refuse what Algorithm 1 cannot run with, and draw the sentences.

    Raises:
        UserError: fewer than two layers in a merge, or more than go, no interval, a threshold that is no cosine, layers of
            one's own that have none before them to be merged into, too few sentences, a model with patches.
    """
    options = job.options
    options.merge = options.merge or options.fidelity
    require(options, "interval", 1)
    require(options, "sentences", 1, 100_000)
    require(options, "threshold", -1, 1)
    most = min(job.counts, default=job.layers - 1) + 1
    if options.combine is not None and not 2 <= options.combine <= most:
        raise UserError(f"--combine {options.combine}: use 2 to {most}, one more than --remove")
    if job.given is not None and 0 in job.given:
        raise UserError("--layers names layer 0, but LaCo merges layers into the one before: keep layer 0")
    if (job.source / "patches.json").exists():
        raise UserError(
            "the model carries patches, which no merged layer could keep; collapse first and patch afterwards"
        )
    if job.given is None:
        for count in job.counts or [None]:
            Settings(C=options.combine or combined(count), I=options.interval).within(job.layers)
        job.kept["sentences"] = draw(job.documents(options.sentences), options.sentences, options.seed)


def combined(remove: int | None) -> int:
    """The paper's C for a number of layers to remove: the largest of 2..6 whose merges add up (9: 4, 10: 6); else 4."""
    return 4 if remove is None else max(C for C in range(2, 7) if remove % (C - 1) == 0)


def apply(job: Job) -> dict:
    """Collapse to the wanted number of layers; the facts are the collapse's, every attempt included."""
    options = job.options
    if job.given is not None:
        return _given(job)
    sentences = job.kept["sentences"]
    C = options.combine or combined(job.count)
    left = None if job.count is None else job.layers - job.count
    step = LayerCollapse(C=C, I=options.interval, merge=options.merge, T=options.threshold, layers=left)
    found = step.collapse(job.model, job.tokenizer, sentences, chosen=job.chosen, progress=True)
    if not found.removed:
        best = max((a.similarity for a in found.trace if a.similarity is not None), default=None)
        reason = "none was a number" if best is None else f"the most similar was {best:.4f}"
        raise UserError(f"--threshold {options.threshold}: no merge is so similar ({reason}); lower it")
    job.notes.append(f"C = {C}, I = {options.interval}; threshold {found.threshold:.4f}; merge as {options.merge}")
    return found.as_dict() | {"sentences": sentences}


def _given(job: Job) -> dict:
    """Layers of one's own choice: each run of them is merged into the layer before it."""
    removed = sorted(job.given)
    job.chosen(removed)
    for start, stop in reversed(runs(removed)):
        merge_layers(job.model, start - 1, stop - start, job.options.merge)
    job.notes.append(f"each run of these layers is merged into the one before it, as {job.options.merge}")
    return {"removed": removed}


METHOD = Method(
    paper="laco",
    title="LaCo",
    description="later layers are merged into an earlier one as long as the outputs stay alike; no training. The similarity "
    "threshold is searched for that leaves the wanted number of layers.",
    apply=apply,
    add_options=add_options,
    check=check,
    seed=0,
    fidelity="code",
    alternatives=("threshold",),
)

if __name__ == "__main__":
    sys.exit(launch.run(main, METHOD))

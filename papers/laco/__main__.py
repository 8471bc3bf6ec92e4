"""``python -m papers.laco``: merge layers of a model of yours into earlier ones. `--help` says how."""

from __future__ import annotations

import argparse
import sys

from common.errors import UserError
from common.product import Job, Method, main
from papers.laco import collapse_to
from papers.laco.merge import RULES
from papers.laco.sentences import draw


def add_options(group: argparse.ArgumentParser) -> None:
    """LaCo's own options."""
    group.add_argument(
        "--combine", type=int, metavar="C", help="layers in one merge (default: 2 to 6, to fit --remove)"
    )
    group.add_argument("--interval", type=int, default=2, metavar="I", help="least distance of two merges (default: 2)")
    merges = "merged weights: Eq. 1 (paper), the last layer's (code), the first layer's (drop); default: as --fidelity"
    group.add_argument("--merge", choices=RULES, help=merges)
    sentences = "calibration sentences, read in place of windows (default: 10)"
    group.add_argument("--sentences", type=int, default=10, metavar="N", help=sentences)


def check(options: argparse.Namespace, layers: int) -> None:
    """Refuse what Algorithm 1 cannot run with.

    Raises:
        UserError: fewer than two layers in a merge, or more than go, no interval, no sentences.
    """
    if options.combine is not None and not 2 <= options.combine <= options.remove + 1:
        raise UserError(f"--combine {options.combine}: use 2 to {options.remove + 1}, one more than --remove")
    for name in ("interval", "sentences"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)}: use 1 or more")


def combined(remove: int) -> int:
    """The paper's C for a number of layers to remove: the largest of 2..6 whose merges add up (9: 4, 10: 6)."""
    return max(C for C in range(2, 7) if remove % (C - 1) == 0)


def apply(job: Job) -> dict:
    """Collapse to the wanted number of layers; the facts are the collapse's, every attempt included."""
    options = job.options
    sentences = draw(job.documents(), options.sentences, options.seed)
    left = job.decoder.num_layers - options.remove
    C = options.combine or combined(options.remove)
    rule = options.merge or options.fidelity
    found = collapse_to(job.model, job.tokenizer, sentences, left, C=C, I=options.interval, merge=rule, progress=True)
    job.notes.append(f"C = {C}, I = {options.interval}; threshold found: {found.threshold:.4f}; merge as {rule}")
    return found.as_dict() | {"sentences": sentences}


METHOD = Method(
    paper="laco",
    title="LaCo",
    description="later layers are merged into an earlier one as long as the outputs stay alike; no training. The similarity "
    "threshold is searched for that leaves the wanted number of layers.",
    apply=apply,
    add_options=add_options,
    check=check,
    seed=0,
)

if __name__ == "__main__":
    sys.exit(main(METHOD))

"""Search for the most layers whose removal keeps perplexity within a bound (`--max-perplexity-increase`).

Perplexity is measured on held-out calibration text: sequences that neither the calibration nor the test reads. Halving takes
about log2(layers) prunings, and supposes that perplexity grows with the number of layers that are removed.
"""

import math
from contextlib import contextmanager

from common.cli import checks, measure
from common.cli.job import Job
from common.console.progress import say
from common.evaluation.windowed_perplexity import summarise, token_nlls
from common.utils.errors import UserError, one_line, plural


def search(job: Job) -> None:
    """Find the number of layers to remove within the bound, set it, and keep the trials in `job.kept`.

    Raises:
        UserError: not even the smallest number stays within the bound.
    """
    bound, counts, tried = job.options.max_perplexity_increase, job.counts, []
    with _trials(job):
        job.load()
        checks.check_finite(job.model)
        before = _perplexity(job)
        fitting, unfit = 0, len(counts)  # counts[:fitting] stay within the bound, counts[unfit:] do not
        while fitting < unfit:
            middle = (fitting + unfit) // 2
            if tried:
                job.load()
            tried.append(_trial(job, counts[middle], before))
            say(f"{plural(counts[middle], 'layer')} removed: {_said(tried[-1])} on held-out calibration text")
            if tried[-1]["increase"] <= bound:
                fitting = middle + 1
            else:
                unfit = middle
    if not fitting:
        raise UserError(
            f"--max-perplexity-increase {bound:.1%}: removing {plural(counts[0], 'layer')} gives {_said(tried[-1])} on "
            "held-out calibration text. Allow more, calibrate on more text, or use another tool"
        )
    job.options.remove = counts[fitting - 1]
    tried.sort(key=lambda one: one["removed"])
    job.kept["bound"] = {"increase": bound, "sequences": len(job.held_out_windows), "original": before, "tried": tried}


def note(job: Job) -> str | None:
    """Return a note on the search's result, for card and terminal; None without a search."""
    if (found := job.kept.get("bound")) is None:
        return None
    tried = ", ".join(f"{one['removed']}: {_said(one)}" for one in found["tried"])
    return (
        f"{plural(job.options.remove, 'layer')} is the most that keeps perplexity within {found['increase']:.1%} on "
        f"{plural(found['sequences'], 'sequence')} of held-out calibration text (tried {tried})"
    )


@contextmanager
def _trials(job: Job):
    """Measure nothing on the test text inside."""
    asked, job.options.no_evaluation = job.options.no_evaluation, True
    try:
        yield
    finally:
        job.options.no_evaluation = asked


def _trial(job: Job, count: int, before: float) -> dict:
    job.options.remove = count
    try:
        job.method.apply(job)
        measure.round_to(job.model, checks.stored_dtype(job.source))
    except UserError as error:
        say(f"{plural(count, 'layer')}: {one_line(error)}")
        return {"removed": count, "increase": math.inf}
    increase = _perplexity(job) / before - 1
    return {"removed": count, "increase": increase if math.isfinite(increase) else math.inf}


def _perplexity(job: Job) -> float:
    nlls = token_nlls(job.model, job.held_out_windows, progress="perplexity on held-out calibration text")
    return summarise(nlls)["perplexity"]


def _said(one: dict) -> str:
    return f"perplexity {one['increase']:+.1%}" if math.isfinite(one["increase"]) else "no perplexity"

"""Search for the most layers whose removal keeps perplexity within a bound (`--max-perplexity-increase`).

Perplexity is measured on held-out calibration text: sequences that neither the calibration nor the test reads. Halving takes
about log2(layers) prunings, and supposes that perplexity grows with the number of layers that are removed.
"""

import math
from collections.abc import Callable

from common.cli import checks, measure
from common.cli.job import Job
from common.console.progress import say
from common.evaluation.windowed_perplexity import summarise, token_nlls
from common.utils.errors import UserError, one_line, plural


def search(job: Job) -> None:
    """Find the number of layers to remove within the bound, set it, and keep the trials in `job.shared`.

    Raises:
        UserError: not even the smallest number stays within the bound.
    """
    bound, counts, trials = job.options.max_perplexity_increase, job.counts, []
    no_evaluation, job.options.no_evaluation = job.options.no_evaluation, True  # nothing is measured on the test text
    try:
        job.load()
        checks.check_finite(job.model)
        before = _remembered(job, lambda: _perplexity(job))
        fitting, unfit = 0, len(counts)  # counts[:fitting] stay within the bound, counts[unfit:] do not
        while fitting < unfit:
            middle = (fitting + unfit) // 2
            job.options.remove = counts[middle]
            increase = _remembered(job, lambda: _increase(job, before))
            trials.append({"removed": counts[middle], "increase": increase})
            say(
                f"{plural(counts[middle], 'layer')} removed: {_outcome(trials[-1], bound)} on held-out calibration text"
            )
            if trials[-1]["increase"] <= bound:
                fitting = middle + 1
            else:
                unfit = middle
    finally:
        job.options.no_evaluation = no_evaluation
    if not fitting:
        job.clear()
        raise UserError(
            f"--max-perplexity-increase {_percent(bound, bound)}: removing {plural(counts[0], 'layer')} gives "
            f"{_outcome(trials[-1], bound)} on held-out calibration text. Allow more, calibrate on more text, or use another "
            "tool"
        )
    job.options.remove = counts[fitting - 1]
    trials.sort(key=lambda trial: trial["removed"])
    job.shared["bound"] = {
        "increase": bound,
        "sequences": len(job.held_out_sequences),
        "original": before,
        "tried": trials,
    }


def note(job: Job) -> str | None:
    """Return a note on the search's result, for card and terminal; None without a search."""
    if (bound := job.shared.get("bound")) is None:
        return None
    increase = bound["increase"]
    attempts = ", ".join(f"{trial['removed']}: {_outcome(trial, increase)}" for trial in bound["tried"])
    sequences = plural(bound["sequences"], "sequence")
    return (
        f"{plural(job.options.remove, 'layer')} is the most that bisection found to keep perplexity within "
        f"{_percent(increase, increase)} on {sequences} of held-out calibration text (tried {attempts})"
    )


def _remembered(job: Job, compute: Callable[[], float]) -> float:
    return job.remembered("bound", (job.count, len(job.held_out_sequences)), compute)


def _increase(job: Job, before: float) -> float:
    job.load()
    try:
        job.method.apply(job)
        measure.round_to(job.model, checks.stored_dtype(job.source))
    except UserError as error:
        say(f"{plural(job.count, 'layer')}: {one_line(error)}")
        return math.inf
    increase = _perplexity(job) / before - 1
    return increase if math.isfinite(increase) else math.inf


def _perplexity(job: Job) -> float:
    nlls = token_nlls(job.model, job.held_out_sequences, progress="perplexity on held-out calibration text")
    return summarise(nlls)["perplexity"]


def _outcome(trial: dict, bound: float) -> str:
    if not math.isfinite(trial["increase"]):
        return "no perplexity"
    return f"perplexity {_percent(trial['increase'], bound, '+')}"


def _percent(share: float, bound: float, sign: str = "") -> str:
    """Return a share in percent, with so many digits that the bound is not shown as zero."""
    digits = max(1, math.ceil(-math.log10(100 * bound))) if bound else 1
    return f"{share:{sign}.{digits}%}"

"""Measure the effect of a repair on right and wrong endings and on the logits' scale."""

import math

import numpy as np

from common.evaluation import harness, logit_scale
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.pruning.pipeline import Context
from common.utils.errors import UserError, unknown
from reproductions.measurements import batch_size, benchmark


@benchmark("endings")
def _endings(context: Context, argument: str) -> tuple[dict, dict, dict, dict]:
    """Return the losses of one task's endings, in nats per character: 'right', 'wrong' (the mean) and their 'gap'."""
    task = argument.partition("@")[0]  # a toy model task's version is part of a benchmark's name alone
    options = {"limit": context.recipe.limit, "batch_size": batch_size(context)}
    found = harness.evaluate(context.model, context.tokenizer, [task], **options)["endings"].get(task)
    if not found:
        raise UserError(f"the items of {task} do not give one context several endings; take a task like hellaswag")
    outcomes = {**found, "gap": found["wrong"] - found["right"]}
    values = {name: float(np.mean(each, dtype=np.float64)) for name, each in outcomes.items()}
    errors = {
        name: float(np.std(each, ddof=1) / math.sqrt(len(each))) for name, each in outcomes.items() if len(each) > 1
    }
    return values, errors, {"items": len(found["right"])}, outcomes


@benchmark("scaled")
def _scaled(context: Context, argument: str) -> tuple[dict, dict, dict, dict]:
    """Measure perplexity with the logits times the best one factor, found on the other half of the sequences."""
    if argument not in PROTOCOLS:
        raise unknown("perplexity protocol", argument, PROTOCOLS)
    protocol = PROTOCOLS[argument]
    windows = protocol.windows(protocol, context.tokenizer)[: context.recipe.limit]
    losses = logit_scale.window_nlls(context.model, windows, progress=argument)
    nll, factor = logit_scale.fitted(losses)
    mean, error = float(nll.mean()), float(nll.std() / math.sqrt(len(nll)))
    values = {"nll": mean, "perplexity": math.exp(mean), "factor": factor}
    details = {"window_nlls": losses.mean(0).tolist(), "factors": list(logit_scale.FACTORS), "windows": len(windows)}
    return values, {"nll": error, "perplexity": math.exp(mean) * error}, details, {"nll": nll.float().numpy()}

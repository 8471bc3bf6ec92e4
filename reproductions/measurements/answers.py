"""Measure the effect of a repair on right and wrong endings, on the logits' scale, and on the distance to the original."""

import math

import numpy as np
from torch import Tensor

from common.evaluation import divergence, harness, logit_scale
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.models import loading
from common.pruning.pipeline import Context
from common.utils.errors import UserError, unknown
from reproductions.measurements import batch_size, benchmark


@benchmark("endings")
def _endings(context: Context, argument: str) -> tuple[dict, dict, dict, dict]:
    """Return the losses of one task's endings, in nats per character: 'right', 'wrong' (the mean) and their 'gap'.

    Raises:
        UserError: a task whose items do not give one context several endings.
    """
    task = argument.partition("@")[0]  # a toy model task's version is part of a benchmark's name alone
    options = {"limit": context.recipe.limit, "batch_size": batch_size(context)}
    losses = harness.evaluate(context.model, context.tokenizer, [task], **options)["endings"].get(task)
    if not losses:
        raise UserError(f"the items of {task} do not give one context several endings; take a task like hellaswag")
    outcomes = {**losses, "gap": losses["wrong"] - losses["right"]}
    return *_means(outcomes), {"items": len(losses["right"])}, outcomes


def _means(outcomes: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """Return the means of outcomes, and their standard errors where there are two or more."""
    values = {name: float(np.mean(array, dtype=np.float64)) for name, array in outcomes.items()}
    errors = {name: float(np.std(a, ddof=1) / math.sqrt(len(a))) for name, a in outcomes.items() if len(a) > 1}
    return values, errors


@benchmark("scaled")
def _scaled(context: Context, argument: str) -> tuple[dict, dict, dict, dict]:
    """Measure perplexity with the logits times the best one factor, found on the other half of the sequences."""
    sequences = _sequences(context, argument)
    losses = logit_scale.sequence_nlls(context.model, sequences, progress=argument)
    nll, factor = logit_scale.fitted(losses)
    mean, error = float(nll.mean()), float(nll.std() / math.sqrt(len(nll)))
    values = {"nll": mean, "perplexity": math.exp(mean), "factor": factor}
    details = {"window_nlls": losses.mean(0).tolist(), "factors": list(logit_scale.FACTORS), "windows": len(sequences)}
    return values, {"nll": error, "perplexity": math.exp(mean) * error}, details, {"nll": nll.float().numpy()}


@benchmark("kl")
def _kl(context: Context, argument: str) -> tuple[dict, dict, dict, dict]:
    """Measure the KL divergence from the original model (nats per token), and how often both have one likeliest token.

    The original is loaded beside the pruned model, in the same dtype.
    """
    sequences = _sequences(context, argument)
    recipe, device = context.recipe, str(context.model.device)
    original, _ = loading.load(recipe.model, device=device, dtype=recipe.dtype)
    divergences, same_top = divergence.from_original(context.model, original, sequences, progress=argument)
    outcomes = {"kl": divergences.float().numpy(), "same_top": same_top.float().numpy()}
    return *_means(outcomes), {"windows": len(sequences)}, outcomes


def _sequences(context: Context, protocol: str) -> Tensor:
    """Return the sequences of a perplexity protocol, as many as the recipe's limit.

    Raises:
        UserError: an unknown protocol.
    """
    if protocol not in PROTOCOLS:
        raise unknown("perplexity protocol", protocol, PROTOCOLS)
    return PROTOCOLS[protocol].sequences(PROTOCOLS[protocol], context.tokenizer)[: context.recipe.limit]

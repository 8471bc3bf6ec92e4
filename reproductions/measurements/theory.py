"""The theory of Reassessing as benchmarks: the theorems on norms, and gradients by layer against Eq. 16's bound."""

import copy

import torch
from scipy.stats import spearmanr
from transformers import AutoModelForCausalLM

from common.calibration import corpora
from common.models.decoder import Decoder
from common.pruning.pipeline import Context
from common.utils.errors import unknown
from papers.reassessing import gradients, theory
from reproductions.measurements import benchmark

# Sentences of 64 tokens (as the paper's Table D); the factors of the bound are taken on the first of them.
SENTENCES, TOKENS = 8, 64
TEXT = {"standin": "standin-calibration", "paper": "wikitext2-test"}  # the theory names none; nothing is chosen by it
SEEDS = 5  # of each toy
NETWORKS = ("trained", "random", "toy-pre", "toy-post")


@benchmark("theorems")
def _theorems(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure the largest relative deviation of Theorems 4.1 and 4.2 from the norm (d >= 3), and where statements fail."""
    values = {f"deviation_{kind}": theory.deviation(kind) for kind in theory.NORMS}
    failing = theory.counterexamples()
    return values | {"counterexamples": len(failing)}, {}, {"failing": failing}


def _random_weights(context: Context):
    """Return a model of the same shape as freshly initialised."""
    config = copy.deepcopy(context.model.config)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    return model.to(context.model.device, context.model.dtype).eval()


def _networks(context: Context, name: str) -> tuple[gradients.Stack, gradients.Stack]:
    """Return a language model as a stack over all sentences, and over the first one."""
    decoder = context.decoder if name == "trained" else Decoder(_random_weights(context))
    ids = corpora.joined_ids(context.tokenizer, TEXT[context.recipe.profile])[: SENTENCES * TOKENS].view(
        SENTENCES, TOKENS
    )
    return gradients.of_model(decoder, ids), gradients.of_model(decoder, ids[:1])


def _by_depth(norms: list[float]) -> dict[str, float]:
    """Return the relation of depth and gradient norm.

    rank_correlation: Spearman's, below zero if shallow layers have the larger norms. first_to_last: mean norm of the first
    quarter of the layers over that of the last.
    """
    quarter = max(1, len(norms) // 4)
    correlation = float(spearmanr(range(len(norms)), norms).statistic)
    return {"rank_correlation": correlation, "first_to_last": sum(norms[:quarter]) / sum(norms[-quarter:])}


@benchmark("gradients", reads=(TEXT["paper"],))
def _gradients(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure gradient norms by depth of one of NETWORKS; toys have means over SEEDS, and the first one's curves."""
    if argument not in NETWORKS:
        raise unknown("network", argument, NETWORKS)
    if argument.startswith("toy"):
        stacks = [gradients.toy(pre=argument == "toy-pre", seed=seed) for seed in range(SEEDS)]
        runs = [gradients.gradient_norms(stack) for stack in stacks]
        by_depth = [_by_depth(run["parameters"]) for run in runs]
        values = {key: sum(run[key] for run in by_depth) / SEEDS for key in by_depth[0]}
        return values, {}, _curves(stacks[0], runs[0]) | {"each_seed": by_depth}
    stack, sentence = _networks(context, argument)
    run = gradients.gradient_norms(stack)
    details = _curves(sentence, gradients.gradient_norms(sentence))
    rms = gradients.stream_rms(stack)
    values = _by_depth(run["parameters"])
    # Share of token states, over all layers, whose RMS is below one: there ||B|| > 1, against Eq. 14.
    values["below_one"] = float((torch.cat(rms) < 1).double().mean())
    details |= {"gradient_of_parameters": run["parameters"], "gradient_of_stream": run["stream"]}
    details |= {"median_rms": [float(layer.median()) for layer in rms], "tokens": SENTENCES * TOKENS}
    return values, {}, details


def _curves(stack: gradients.Stack, run: dict) -> dict:
    """Return what Eq. 16 bounds, and the bound, on one input."""
    factors = gradients.layer_norms(stack)
    return {
        "gradient_of_parameters": run["parameters"],
        "gradient_of_stream_one": run["stream"],
        "layer_norms": factors,
        "bound_one": gradients.bound(factors, run["stream"][-1]),
    }

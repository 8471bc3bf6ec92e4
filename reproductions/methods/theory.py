"""The theory of Reassessing as benchmarks: the theorems on norms, and gradients by layer against Eq. 16's bound."""

from __future__ import annotations

import copy

import torch
from scipy.stats import spearmanr
from transformers import AutoModelForCausalLM

from common import corpora
from common.decoder import Decoder
from common.errors import unknown
from papers.reassessing import gradients, theory
from reproductions.prepared import Prepared

# Sentences of 64 tokens (as the paper's Table D); the factors of the bound are taken on the first of them.
SENTENCES, TOKENS = 8, 64
NETWORKS = ("trained", "random", "toy-pre", "toy-post")


def _theorems(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Largest relative deviation of Theorems 4.1 and 4.2 from the measured norm (d >= 3), and where statements fail."""
    values = {f"deviation_{kind}": theory.deviation(kind) for kind in theory.NORMS}
    failing = theory.counterexamples()
    return values | {"counterexamples": len(failing)}, {}, {"failing": failing}


def _random_weights(prepared: Prepared, seed: int = 0):
    """A model of the same shape as freshly initialised."""
    config = copy.deepcopy(prepared.model.config)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    return model.to(prepared.model.device, prepared.model.dtype).eval()


def _networks(prepared: Prepared, name: str) -> tuple[gradients.Stack, gradients.Stack]:
    """The stack whose gradients are measured, and the one (one sentence) whose layers' norms are."""
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    if name.startswith("toy"):
        stack = gradients.toy(pre=name == "toy-pre")
        return stack, stack
    decoder = prepared.decoder if name == "trained" else Decoder(_random_weights(prepared))
    corpus = "standin-calibration" if prepared.recipe.profile == "standin" else "wikitext2-train"
    ids = corpora.joined_ids(prepared.tokenizer, corpus)[: SENTENCES * TOKENS].view(SENTENCES, TOKENS)
    return gradients.of_model(decoder, ids), gradients.of_model(decoder, ids[:1])


def _gradients(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Gradient norms by depth of one of NETWORKS.

    rank_correlation: Spearman's, between depth and the norm of a layer's gradient; below zero where shallow layers have
    the larger one (Section 4.1). first_to_last: mean norm of the first quarter of the layers over that of the last.
    below_one: share of token states, over all layers, whose RMS is below one, so that ||B|| > 1 (against Eq. 14).
    """
    stack, sentence = _networks(prepared, argument)
    found = gradients.gradient_norms(stack)
    factors = gradients.layer_norms(sentence)
    one = found["stream"] if len(sentence.start) == len(stack.start) else gradients.gradient_norms(sentence)["stream"]
    rms = gradients.stream_rms(stack)
    norms, quarter = found["parameters"], max(1, len(stack.layers) // 4)
    values = {
        "rank_correlation": float(spearmanr(range(len(norms)), norms).statistic),
        "first_to_last": sum(norms[:quarter]) / sum(norms[-quarter:]),
        "below_one": float((torch.cat(rms) < 1).double().mean()),
    }
    details = {
        "gradient_of_parameters": norms,
        "gradient_of_stream": found["stream"],
        "gradient_of_stream_one_sentence": one,
        "layer_norms": factors,
        "bound_one_sentence": gradients.bound(factors, one[-1]),
        "median_rms": [float(layer.median()) for layer in rms],
        "tokens": int(stack.start.shape[0] * stack.start.shape[1]),
    }
    return values, {}, details


BENCHMARKS = {"theorems": _theorems, "gradients": _gradients}

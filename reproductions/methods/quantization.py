"""Quantization in recipes, after the pruned model has been fine-tuned."""

from __future__ import annotations

import dataclasses

from common import corpora
from papers.reassessing import quantization
from reproductions import methods
from reproductions.prepared import Prepared


def _gptq(prepared: Prepared, progress: bool) -> None:
    """``{"method": "gptq", "after": a training or None, "bits", "group_size", "texts", "tokens", "corpus"}``.

    The training is that of the recipe without quantization: if that has been done it is loaded.
    """
    wanted = dict(prepared.recipe.training)
    quantization.require()  # before a training that might take hours
    if wanted["after"] is not None:
        recipe = dataclasses.replace(prepared.recipe, training=wanted["after"])
        before = dataclasses.replace(prepared, recipe=recipe)
        methods.known("TRAININGS")[wanted["after"]["method"]](before, progress)
        prepared.model = before.model
    texts = [text for text in corpora.texts(wanted["corpus"]) if len(text) >= 400][: wanted["texts"]]
    options = {name: wanted[name] for name in ("bits", "group_size", "tokens")}
    prepared.model = quantization.quantize(prepared.model, prepared.tokenizer, texts, **options)
    prepared.__dict__.pop("decoder", None)  # it looked at the model as it was


def _memory(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """What the model's tensors take with 16 bits for every floating-point number."""
    return {"held_mib": quantization.held_mib(prepared.model)}, {}, {}


TRAININGS = {"gptq": _gptq}
BENCHMARKS = {"held-memory": _memory}

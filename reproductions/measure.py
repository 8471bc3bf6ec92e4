"""From a recipe to a prepared model, and from a prepared model to the values of one benchmark.

The only module of the command line that loads models. It carries out what a recipe says: which layers go, and what repairs
the cut. What a table wants measured is declared in the papers' modules beside this one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import transformers
from torch import Tensor

from common import calibration, corpora, hooks, importance, models, selection
from common.decoder import Decoder
from common.errors import unknown
from common.evaluation import harness
from common.results import Recipe
from common.standin import corpus as standin_corpus
from common.surgery import remove_layers
from papers import linearpatch
from reproductions import shapes


@dataclass
class Prepared:
    """A model as a recipe describes it, and what was found out on the way.

    parameters: of the model before anything was removed.
    """

    model: torch.nn.Module
    tokenizer: object
    recipe: Recipe
    parameters: int
    details: dict = field(default_factory=dict)
    provenance: dict = field(default_factory=dict)


@lru_cache(maxsize=2)
def _ids(tokenizer, corpus: str) -> Tensor:
    return corpora.joined_ids(tokenizer, corpus)


def calibration_windows(calibration_entry: dict, tokenizer) -> Tensor:
    """Token ids ``[samples, tokens]`` of a recipe's calibration entry: corpus, sampler, length, count, seed."""
    wanted = dict(calibration_entry)
    return calibration.sample_crops(_ids(tokenizer, wanted.pop("corpus")), **wanted)


def _sleb(recipe: Recipe, decoder: Decoder, tokenizer, progress: bool):
    wanted = dict(recipe.selection["calibration"])
    count = recipe.selection["count"]
    selection.check_count(count, decoder.num_layers)
    key = (recipe.model, recipe.weights, json.dumps(wanted, sort_keys=True), str(decoder.embed.weight.dtype))
    # The search is greedy: the first layers of a longer removal are those of a shorter one.
    if len(_SLEB_ORDERS.get(key, [])) < count:
        windows = calibration.sample_lines(tokenizer, corpora.texts(wanted.pop("corpus")), **wanted)
        _SLEB_ORDERS[key] = selection.sleb(decoder, windows, count, progress=progress)
    return _SLEB_ORDERS[key][:count], None


def _by_statistics(recipe: Recipe, decoder: Decoder, tokenizer, progress: bool):
    choice = recipe.selection
    selection.check_count(choice["count"], decoder.num_layers)
    statistics = _statistics(recipe, decoder, tokenizer, progress)
    if choice["method"] == "bi":
        scores = importance.block_influence(statistics, choice["cosine"])
        return selection.one_shot(scores, choice["count"]), statistics
    window = selection.best_window(statistics, choice["count"], choice["cosine"], exclude_ends=choice["exclude_ends"])
    return list(range(*window)), statistics


def _statistics(recipe: Recipe, decoder: Decoder, tokenizer, progress: bool) -> calibration.Statistics:
    """The calibration pass, shared by recipes that differ only in how they use it (the last one is kept)."""
    choice = recipe.selection
    facts = {"calibration": recipe.calibration, "span": choice["count"], "cosine": choice["cosine"]}
    key = (recipe.model, recipe.weights, json.dumps(facts, sort_keys=True), str(decoder.embed.weight.dtype))
    if key not in _STATISTICS:
        _STATISTICS.clear()
        _STATISTICS[key] = calibration.collect(
            decoder,
            calibration_windows(recipe.calibration, tokenizer),
            span=choice["count"],
            kinds=(choice["cosine"],),
            batch_size=8 if decoder.device.type == "cpu" else 1,
            progress=progress,
        )
    return _STATISTICS[key]


_STATISTICS: dict[tuple, calibration.Statistics] = {}
_SLEB_ORDERS: dict[tuple, list[int]] = {}
SELECTIONS = {"sleb": _sleb, "bi": _by_statistics, "window": _by_statistics}


def prepare(recipe: Recipe, *, device: str = "cpu", dtype: str | None = None, progress: bool = False) -> Prepared:
    """Load the recipe's model, choose and remove layers, and repair the cut (a shape recipe: build the shape alone).

    Raises:
        UserError: an unknown model, selection or repair, or whatever loading, calibration and pruning refuse.
    """
    if recipe.weights == shapes.WEIGHTS:
        return shapes.prepare(recipe)
    torch.set_flush_denormal(True)  # a trained model's tiny numbers would slow a CPU down several times
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model, tokenizer = models.load(recipe.model, device=device, dtype=dtype)
    dtype_used = str(next(model.parameters()).dtype).removeprefix("torch.")
    prepared = Prepared(model, tokenizer, recipe, sum(p.numel() for p in model.parameters()))
    # Where the files lie on this machine says nothing to anyone else.
    source = {"name": model.source["name"], "revision": model.source["revision"], "weights": recipe.weights}
    prepared.provenance = {"model": source | {"dtype": dtype_used}}
    if recipe.profile == "standin":
        prepared.provenance["corpus"] = {split: standin_corpus.digest(split) for split in ("train", "test")}
    if recipe.selection is None:
        return prepared
    method = recipe.selection["method"]
    if method not in SELECTIONS:
        raise unknown("selection", method, SELECTIONS)
    decoder = Decoder(model)
    layers = decoder.num_layers
    removed, statistics = SELECTIONS[method](recipe, decoder, tokenizer, progress)
    prepared.details = {"removed": list(map(int, removed)), "layers": layers, "layer_executions": decoder.executions}
    if recipe.repair is None:
        remove_layers(model, removed)
    elif recipe.repair["method"] == "linearpatch":
        options = {name: value for name, value in recipe.repair.items() if name != "method"}
        prepared.details["patches"] = linearpatch.patch_cuts(model, statistics, removed, **options)
    else:
        raise unknown("repair", recipe.repair["method"], ["linearpatch"])
    return prepared


def _parameters(prepared: Prepared) -> tuple[dict, dict, dict]:
    """Removed parameters less the patches', over the dense model's (the papers' Ratio, as a share)."""
    left = sum(p.numel() for p in prepared.model.parameters())
    patch = sum(p.numel() for p in hooks.patch_parameters(prepared.model))
    values = {"dense": prepared.parameters, "left": left, "patch": patch}
    return values | {"ratio": (prepared.parameters - left - patch) / prepared.parameters}, {}, {}


def benchmark(prepared: Prepared, name: str) -> tuple[dict, dict, dict]:
    """Values, standard errors and details of one benchmark: ``parameters``, or an lm-eval task.

    Stand-in tasks are named ``task@version``; every other name is lm-eval's own.
    """
    if isinstance(prepared, shapes.Prepared):
        return shapes.benchmark(prepared, name)
    if name == "parameters":
        return _parameters(prepared)
    task = name.partition("@")[0]
    batch_size = 16 if prepared.model.device.type == "cpu" else 64
    options = {"limit": prepared.recipe.limit, "batch_size": batch_size}
    found = harness.evaluate(prepared.model, prepared.tokenizer, [task], **options)
    scores = found[task]
    values = {metric: scores[metric] for metric in harness.METRICS if scores[metric] is not None}
    stderr = {metric: scores[f"{metric}_stderr"] for metric in values}
    return values, stderr, {"items": scores["n"], "lm_eval": found["raw"]}

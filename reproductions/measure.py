"""From a recipe to a prepared model, and from a prepared model to the values of one benchmark.

The only module of the command line that loads models. It knows how to carry out what a recipe says (which layers go, what
repairs the cut); what a table wants measured is declared in the papers' modules beside this one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from common import calibration, corpora, hub, importance, models, selection
from common.decoder import Decoder
from common.errors import UserError, unknown
from common.evaluation import harness, perplexity, suites
from common.results import Recipe
from common.standin import corpus as standin_corpus
from common.surgery import remove_layers
from papers import linearpatch

log = logging.getLogger(__name__)


@dataclass
class Prepared:
    """A model as a recipe describes it, ready to be measured, and what was found out on the way."""

    model: torch.nn.Module
    tokenizer: object
    recipe: Recipe
    details: dict = field(default_factory=dict)


def calibration_windows(recipe: Recipe, tokenizer) -> Tensor:
    """The token ids ``[samples, tokens]`` a recipe's calibration entry names: corpus, sampler, count, length, seed."""
    wanted = dict(recipe.calibration)
    ids = corpora.joined_ids(tokenizer, wanted.pop("corpus"))
    return calibration.sample_crops(ids, **wanted)


def perplexity_windows(recipe: Recipe, tokenizer) -> Tensor:
    """SLEB's calibration: shuffled lines joined and cut into windows, ``[n, tokens]``."""
    wanted = dict(recipe.selection["calibration"])
    texts = corpora.texts(wanted.pop("corpus"))
    return calibration.sample_lines(tokenizer, texts, **wanted)


def prepare(recipe: Recipe, *, device: str = "cpu", dtype: str | None = None, progress: bool = False) -> Prepared:
    """Load the recipe's model, choose and remove layers, and repair the cut.

    Raises:
        UserError: an unknown model, selection or repair, or whatever loading and pruning refuse.
    """
    model, tokenizer = models.load(recipe.model, device=device, dtype=dtype)
    prepared = Prepared(model, tokenizer, recipe)
    if recipe.selection is None:
        return prepared
    decoder = Decoder(model)
    layers = decoder.num_layers
    method = recipe.selection["method"]
    if method not in SELECTIONS:
        raise unknown("selection", method, SELECTIONS)
    removed, statistics = SELECTIONS[method](recipe, decoder, tokenizer, progress)
    prepared.details |= {"removed": list(map(int, removed)), "layers": layers, "executions": decoder.executions}
    if recipe.repair is None:
        remove_layers(model, removed)
    elif recipe.repair["method"] == "linearpatch":
        options = {name: value for name, value in recipe.repair.items() if name != "method"}
        patches = linearpatch.patch_cuts(model, statistics, removed, **options)
        prepared.details["patches"] = patches
    else:
        raise unknown("repair", recipe.repair["method"], ["linearpatch"])
    return prepared

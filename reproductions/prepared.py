"""A model on its way from a recipe to its measurements, and what the methods of a recipe share."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common import calibration, corpora
from common.decoder import Decoder
from common.finetuning import state
from common.results import ROOT, Recipe

log = logging.getLogger(__name__)

_KEPT = 4  # calibration passes remembered; a table's recipes differ in little else than how they use one
_STATISTICS: dict[str, calibration.Statistics] = {}
_MADE: set[Path] = set()  # long work of this very process, which measuring anew need not do again


@lru_cache(maxsize=2)
def _ids(tokenizer, corpus: str) -> Tensor:
    return corpora.joined_ids(tokenizer, corpus)


def calibration_windows(calibration_entry: dict, tokenizer) -> Tensor:
    """Token ids ``[samples, tokens]`` of a recipe's calibration entry: corpus, sampler, length, count, seed."""
    wanted = dict(calibration_entry)
    return calibration.sample_crops(_ids(tokenizer, wanted.pop("corpus")), **wanted)


def named(part: Recipe | Mapping, keys: Sequence[str]) -> Iterator[str]:
    """The values of these keys anywhere in a recipe: trainings lie within trainings and selections."""
    for key, value in (vars(part) if isinstance(part, Recipe) else part).items():
        if key in keys and isinstance(value, str):
            yield value
        if isinstance(value, Mapping):
            yield from named(value, keys)


def work_folder() -> Path:
    """Where long work keeps its checkpoints: ``$LAYERLAB_WORK``, or ``.cache/work`` in the repository."""
    return Path(os.environ.get("LAYERLAB_WORK") or ROOT / ".cache" / "work")


@dataclass
class Prepared:
    """A model as a recipe describes it, and what was found out on the way.

    parameters: of the model before anything was removed. details and provenance go into every record of the recipe.
    anew: long work that an earlier run left behind is done again.
    """

    model: torch.nn.Module
    tokenizer: object
    recipe: Recipe
    parameters: int
    details: dict = field(default_factory=dict)
    provenance: dict = field(default_factory=dict)
    anew: bool = False

    @cached_property
    def decoder(self) -> Decoder:
        """A view of the model; it follows surgery and counts layer executions."""
        return Decoder(self.model)

    @property
    def batch_size(self) -> int:
        """Calibration samples in a batch: a CPU likes several short ones, a GPU's memory one long one."""
        return 8 if self.model.device.type == "cpu" else 1

    @property
    def folder(self) -> Path:
        """Where this recipe's long work keeps its checkpoints (made on first use); the same recipe finds them again."""
        path = work_folder() / self.recipe.model / self.recipe.hash
        if self.anew and path not in _MADE:
            shutil.rmtree(path, ignore_errors=True)
        _MADE.add(path)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def searched(self, name: str, facts: Mapping, search: Callable[[], Any], enough: Callable[[Any], bool]) -> Any:
        """What a long search found, kept as JSON, so that no other recipe and no run after a kill searches again.

        name: of the search. facts: what it depends on, besides the model, its weights and its type.
        enough: whether what was kept will do; a greedy search for many layers begins with the one for fewer.
        """
        recipe = self.recipe
        whole = [recipe.profile, recipe.model, recipe.weights, str(self.model.dtype), name, facts]
        digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
        path = work_folder() / recipe.model / f"{name}-{digest}.json"
        try:
            if path in _MADE or not self.anew:
                found = json.loads(path.read_text())
                if enough(found):
                    return found
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("%s is unreadable (%s); searching again", path, error)
        found = search()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            state.write(path, found)
        except OSError as error:
            log.warning("cannot keep what was found in %s: %s; another recipe will search again", path, error.strerror)
        _MADE.add(path)
        return found

    def windows(self) -> Tensor:
        """The recipe's calibration tokens ``[samples, tokens]``."""
        return calibration_windows(self.recipe.calibration, self.tokenizer)

    def statistics(self, span: int, kinds: Sequence[str] = ("token",), **options) -> calibration.Statistics:
        """The calibration pass over the dense model, shared by recipes that use it differently.

        options: of `calibration.collect`. Call it before anything is removed.
        """
        facts = [self.recipe.model, self.recipe.weights, self.recipe.calibration, span, list(kinds), options]
        key = json.dumps([*facts, str(self.model.dtype)], sort_keys=True)
        if key not in _STATISTICS:
            while len(_STATISTICS) >= _KEPT:
                _STATISTICS.pop(next(iter(_STATISTICS)))
            _STATISTICS[key] = calibration.collect(
                self.decoder, self.windows(), span=span, kinds=tuple(kinds), batch_size=self.batch_size, **options
            )
        return _STATISTICS[key]

"""The metrics and the fine-tuning of Reassessing in recipes.

    selection  {"method": "metric", "metric": "taylor", "count": 8, "seed": 42}              one-shot
               {"method": "iterative", "metric": "taylor", "schedule": "1:1:8", "seed": 42,
                "tune": {"settings": {...}, "data": {...}}}                                    a training in every cycle
    training   {"method": "finetune", "settings": {...}, "data": {...}}

settings: of `common.finetuning.Settings`. data: {"source": "alpaca-cleaned" | "standin", "count", "held_out", "seed",
"cutoff"} as `common.instructions.load` takes them, or plain text: {"corpus", "length", "count", "held_out", "seed"}.
Calibration of taylor and bi: {"corpus", "sampler": "line-crops", "count", "length", "seed"}; of ppl: {"corpus",
"sampler": "windows", "length", "count"}, the first so many non-overlapping windows of the joined text.
The reports of all trainings go into the records' details.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations
from pathlib import Path

from torch import Tensor

from common import corpora, instructions
from common.decoder import Decoder
from common.errors import UserError, unknown
from common.evaluation.perplexity import cut
from common.finetuning import Settings, finetune
from papers import reassessing
from reproductions.prepared import Prepared

SAMPLERS = ("line-crops", "windows")
SAMPLE_COUNTS = (1, 5, 10, 30, 50)  # Tables J and O
SPREAD_SEEDS = (42, 43, 44)


@lru_cache(maxsize=4)
def _line_crops(tokenizer, corpus: str, **options) -> Tensor:
    return reassessing.sample_line_crops(tokenizer, corpora.texts(corpus), **options)


def calibration(wanted: Mapping, tokenizer) -> Tensor:
    """Token ids [samples, tokens] of a recipe's calibration entry, by its sampler."""
    wanted = dict(wanted)
    sampler, corpus = wanted.pop("sampler"), wanted.pop("corpus")
    if sampler == "line-crops":
        return _line_crops(tokenizer, corpus, **wanted)
    if sampler == "windows":
        return cut(corpora.joined_ids(tokenizer, corpus), wanted["length"])[: wanted.get("count")]
    raise unknown("sampler", sampler, SAMPLERS)


def _choose(prepared: Prepared, decoder: Decoder, count: int, progress: bool) -> list[int]:
    """Present positions of the layers that the recipe's metric removes from the model at hand."""
    choice, recipe = prepared.recipe.selection, prepared.recipe
    ids = None if recipe.calibration is None else calibration(recipe.calibration, prepared.tokenizer)
    options = {"fidelity": recipe.fidelity, "seed": choice.get("seed", reassessing.SEED), "progress": progress}
    return reassessing.select(choice["metric"], decoder, count, ids, **options)


def _metric(prepared: Prepared, progress: bool) -> list[int]:
    """One-shot: score once, remove the lowest."""
    return _choose(prepared, prepared.decoder, prepared.recipe.selection["count"], progress)


def rows(data: Mapping, tokenizer) -> tuple[list[dict], list[dict]]:
    """(training rows, validation rows) of a recipe's data entry."""
    data = dict(data)
    if "source" in data:
        return instructions.load(tokenizer, **data)
    held_out = data.pop("held_out", 0)
    data["count"] += held_out
    found = instructions.blocks(tokenizer, corpora.texts(data.pop("corpus")), **data)
    return found[held_out:], found[:held_out]


def _tune(prepared: Prepared, wanted: Mapping, folder: Path, progress: bool) -> dict:
    """Train the model as ``wanted`` says and return the report with the data it was trained on."""
    train, valid = rows(wanted["data"], prepared.tokenizer)
    settings = Settings.of(wanted["settings"])
    _, report = finetune(prepared.model, prepared.tokenizer, train, valid, settings, folder, progress)
    found = {"data": dict(wanted["data"]), "rows": len(train), "validation_rows": len(valid)}
    return report | found | {"data_sha256": instructions.digest(train)}


def _finetune(prepared: Prepared, progress: bool) -> None:
    prepared.details["training"] = _tune(prepared, prepared.recipe.training, prepared.folder / "finetune", progress)


def _iterative(prepared: Prepared, progress: bool) -> None:
    """Score, prune, fine-tune, merge, until all are gone."""
    choice = prepared.recipe.selection
    if prepared.recipe.repair is not None:
        raise UserError("iterative pruning repairs by training; leave the recipe's repair out")
    removed, reports = reassessing.prune_iteratively(
        prepared.model,
        *reassessing.schedule(choice["schedule"]),
        lambda decoder, count: _choose(prepared, decoder, count, progress),
        lambda model, cycle: _tune(prepared, choice["tune"], prepared.folder / f"cycle-{cycle}", progress),
    )
    prepared.details |= {"removed": removed, "cycles": reports}


def _chosen_sets(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """How the layers a metric removes depend on the calibration samples: ``chosen-sets@METRIC`` of an unpruned model.

    Needs a calibration by line-crops, whose count is left aside. details: for each of `SAMPLE_COUNTS`, the sets removed
    over `SPREAD_SEEDS` (5 of 16 layers, 8 of 32). values: the mean share of layers that two seeds' sets have in common.
    """
    wanted = dict(prepared.recipe.calibration)
    if wanted["sampler"] != "line-crops":
        raise UserError(
            f"the spread over calibration samples needs the sampler 'line-crops', not {wanted['sampler']!r}"
        )
    count = round(prepared.decoder.num_layers * (5 / 16 if prepared.recipe.profile == "standin" else 1 / 4))
    sets: dict[str, list[list[int]]] = {}
    for samples in SAMPLE_COUNTS:
        for seed in SPREAD_SEEDS:
            ids = calibration({**wanted, "count": samples, "seed": seed}, prepared.tokenizer)
            chosen = reassessing.select(argument, prepared.decoder, count, ids, fidelity=prepared.recipe.fidelity)
            sets.setdefault(str(samples), []).append(chosen)
    values = {}
    for samples, found in sets.items():
        shares = [len(set(a) & set(b)) / count for a, b in combinations(found, 2)]
        values[f"overlap_{samples}"] = sum(shares) / len(shares)
    return values, {}, {"sets": sets, "seeds": list(SPREAD_SEEDS), "count": count}


SELECTIONS = {"metric": _metric}
PRUNERS = {"iterative": _iterative}
TRAININGS = {"finetune": _finetune}
BENCHMARKS = {"chosen-sets": _chosen_sets}

"""LaCo in recipes.

selection    {"method": "laco", "C", "I", "L", "H", "merge", "cosine", and "T" or "layers" (the search for a threshold)}
calibration  {"corpus", "sentences", "seed"}
training     {"method": "laco-posttrain", "data": {"corpus", "validation", "tokens", "length", "seed"}, "settings", and
             perhaps "reprune": a selection to collapse the trained model with again}
"""

from __future__ import annotations

import dataclasses
import math

from common import corpora
from common.finetuning import finetune
from papers import laco
from papers.laco import layers, training
from papers.laco.sentences import calibration_sentences
from reproductions.prepared import Prepared

VALIDATION_BLOCKS = 32
LAST_STEPS = 10  # a curve's end is their mean: one step's loss is that of its few rows


def _sentences(prepared: Prepared) -> list[str]:
    wanted = prepared.recipe.calibration
    return calibration_sentences(wanted["corpus"], wanted["sentences"], wanted["seed"])


def _collapse(prepared: Prepared, selection: dict, progress: bool) -> laco.Collapse:
    """Collapse the prepared model; the settings, the sentences and every attempt go into the details."""
    options = {name: value for name, value in selection.items() if name != "method"}
    sentences = _sentences(prepared)
    way = laco.collapse_to if "layers" in options else laco.collapse
    before = prepared.decoder.num_layers
    found = way(prepared.model, prepared.tokenizer, sentences, **options, progress=progress)
    prepared.details.setdefault("laco", []).append(
        {"settings": options, "sentences": sentences, "before": before} | found.as_dict()
    )
    return found


def _prune(prepared: Prepared, progress: bool) -> None:
    prepared.details["removed"] = _collapse(prepared, prepared.recipe.selection, progress).removed


PRUNERS = {"laco": _prune}


def _post_train(prepared: Prepared, progress: bool) -> None:
    """Appendix B on a corpus; recipes that differ only in what follows the training share it."""
    wanted = dict(prepared.recipe.training)
    again = wanted.pop("reprune", None)
    shared = dataclasses.replace(prepared.recipe, training=wanted, limit=None)
    folder = dataclasses.replace(prepared, recipe=shared).folder
    tokenizer, data = prepared.tokenizer, wanted["data"]
    length = data["length"]
    common = {"length": length, "seed": data["seed"]}
    train = training.text_blocks(tokenizer, corpora.texts(data["corpus"]), tokens=data["tokens"], **common)
    tokens = VALIDATION_BLOCKS * length
    valid = training.text_blocks(tokenizer, corpora.texts(data["validation"]), tokens=tokens, **common)
    settings = training.settings(**wanted["settings"])
    _, report = finetune(prepared.model, tokenizer, train, valid, settings, folder, progress)
    prepared.details["training"] = report | {"tokens": len(train) * length}
    if again is not None:
        left = [layer for layer in range(prepared.details["layers"]) if layer not in prepared.details["removed"]]
        removed = _collapse(prepared, again, progress).removed  # positions in the once collapsed model
        prepared.details["removed"] += [left[position] for position in removed]


TRAININGS = {"laco-posttrain": _post_train}


def _search(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """What the (last) collapse tried and did, and the settings it ran with. The trace is in the details."""
    found = prepared.details["laco"][-1]
    settings, trace = found["settings"], found["trace"]
    similarities = [(a["similarity"], a["accepted"]) for a in trace if a["similarity"] is not None]
    values = {
        "C": settings["C"],
        "L": settings.get("L", 1),
        "H": settings.get("H") or found["before"],
        "I": settings["I"],
        "T": found["threshold"],
        "layers": found["layers"],
        "attempts": len(trace),
        "merges": sum(a["accepted"] for a in trace),
        "layer_executions": found["layer_executions"],
        "highest": max((s for s, _ in similarities), default=math.nan),
        "lowest_accepted": min((s for s, accepted in similarities if accepted), default=math.nan),
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}, {}, {"status": "none accepted"}


def _training(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Losses before, early and at the end of the post-training; the curve is in the details."""
    report = prepared.details["training"]
    losses, validation = report["losses"], report["validation"]
    end = losses[-LAST_STEPS:]
    values = {"first": losses[0], "last": sum(end) / len(end), "steps": len(losses), "seconds": report["seconds"]}
    values["millions"] = report["tokens"] / 1e6
    if validation:
        values["validation"] = validation[-1][1]
    return values, {}, {"status": report["status"]}


def _distances(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Fig. 4: distances between adjacent layers' matrices, and what uncorrelated ones would have."""
    found = layers.adjacent_distances(prepared.model)
    pairs = [pair for sides in found.values() for pair in zip(sides["distance"], sides["uncorrelated"])]
    shares = [distance / uncorrelated for distance, uncorrelated in pairs]
    values = {"largest": max(distance for distance, _ in pairs), "least_share": min(shares), "most_share": max(shares)}
    return values | {"mean_share": sum(shares) / len(shares)}, {}, {"distances": found}


def _windows_shown(depth: int) -> slice:
    """The windows of four that Fig. 5b shows, those within layers 10 to 19 of 32: the same share of any depth."""
    start = min(round(9 * depth / 32), depth - 4)
    return slice(start, max(start + 1, round(19 * depth / 32) - 3))


def _outputs(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Fig. 5: cosines of adjacent outputs (a) and of merged windows of four (b); Eq. 1's norm beside them."""
    sentences = _sentences(prepared)
    adjacent = layers.adjacent_cosines(prepared.model, prepared.tokenizer, sentences)
    windows = layers.merged_outputs(prepared.model, prepared.tokenizer, sentences)
    norms = layers.merged_norms(prepared.model)
    within = _windows_shown(prepared.decoder.num_layers)
    names = {"paper": "Eq. 1", "code": "the code's merge", "alone": "first layer alone", "none": "no layer"}
    values = {f"least_{short}": min(windows[name][within]) for short, name in names.items()}
    values |= {"least_adjacent": min(adjacent), "norm": sum(norms["ratio"]) / len(norms["ratio"])}
    values["norm_uncorrelated"] = norms["uncorrelated"]
    details = {"adjacent": adjacent, "windows": windows, "norms": norms, "within": [within.start, within.stop]}
    return values, {}, details


def _uncorrelated(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """What Fig. 5 would show if nothing were correlated: contributions with the stream (a), layers with each other (b)."""
    sentences = _sentences(prepared)
    adjacent = layers.orthogonal_cosines(prepared.model, prepared.tokenizer, sentences)
    windows = layers.uncorrelated_outputs(prepared.model, prepared.tokenizer, sentences)
    shown = windows[_windows_shown(prepared.decoder.num_layers)]
    return {"least_adjacent": min(adjacent), "least_paper": min(shown)}, {}, {"adjacent": adjacent, "windows": windows}


def _layers(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """How many layers are left."""
    return {"layers": prepared.decoder.num_layers}, {}, {}


BENCHMARKS = {
    "layers": _layers,
    "laco-search": _search,
    "laco-training": _training,
    "laco-distances": _distances,
    "laco-outputs": _outputs,
    "laco-uncorrelated": _uncorrelated,
}

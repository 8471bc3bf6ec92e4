"""Measure for LaCo's tables and figures: the search, the post-training, the similarity of layers."""

import math

from common.pruning.pipeline import Context
from papers.laco import layers
from papers.laco.steps import sentences
from reproductions.measurements import benchmark

LAST_STEPS = 10  # a curve's end is their mean: one step's loss is that of its few rows


@benchmark("laco-search")
def _search(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure what the (last) collapse tried and did, and its settings. The trace is in the details."""
    report = context.details["laco"][-1]
    settings, trace = report["settings"], report["trace"]
    similarities = [(a["similarity"], a["accepted"]) for a in trace if a["similarity"] is not None]
    values = {
        "C": settings["C"],
        "L": settings.get("L", 1),
        "H": settings.get("H") or report["before"],
        "I": settings["I"],
        "T": report["threshold"],
        "layers": report["layers"],
        "attempts": len(trace),
        "merges": sum(a["accepted"] for a in trace),
        "layer_executions": report["layer_executions"],
        "highest": max((s for s, _ in similarities), default=math.nan),
        "lowest_accepted": min((s for s, accepted in similarities if accepted), default=math.nan),
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}, {}, {"status": "none accepted"}


@benchmark("laco-training")
def _training(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure the losses before, early and at the end of the post-training; the curve is in the details."""
    report = context.details["training"]
    losses, validation = report["losses"], report["validation"]
    end = losses[-LAST_STEPS:]
    values = {"first": losses[0], "last": sum(end) / len(end), "steps": len(losses), "seconds": report["seconds"]}
    values["millions"] = report["tokens"] / 1e6
    if validation:
        values["validation"] = validation[-1][1]
    return values, {}, {"status": report["status"]}


@benchmark("laco-distances")
def _distances(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure Fig. 4: distances between adjacent layers' matrices, and what uncorrelated ones would have."""
    distances = layers.adjacent_distances(context.model)
    pairs = [pair for sides in distances.values() for pair in zip(sides["distance"], sides["uncorrelated"])]
    shares = [distance / uncorrelated for distance, uncorrelated in pairs]
    values = {"largest": max(distance for distance, _ in pairs), "least_share": min(shares), "most_share": max(shares)}
    return values | {"mean_share": sum(shares) / len(shares)}, {}, {"distances": distances}


def _blocks_shown(depth: int) -> slice:
    """Return the blocks of four that Fig. 5b shows, those within layers 10 to 19 of 32: the same share of any depth."""
    start = min(round(9 * depth / 32), depth - 4)
    return slice(start, max(start + 1, round(19 * depth / 32) - 3))


@benchmark("laco-outputs")
def _outputs(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure Fig. 5: cosines of adjacent outputs (a) and of merged blocks of four (b); Eq. 1's norm beside them."""
    texts = sentences(context)
    adjacent = layers.adjacent_cosines(context.model, context.tokenizer, texts)
    blocks = layers.merged_outputs(context.model, context.tokenizer, texts)
    norms = layers.merged_norms(context.model)
    shown = _blocks_shown(context.decoder.num_layers)
    names = {"paper": "Eq. 1", "code": "the code's merge", "alone": "first layer alone", "none": "no layer"}
    values = {f"least_{short}": min(blocks[name][shown]) for short, name in names.items()}
    values |= {"least_adjacent": min(adjacent), "norm": sum(norms["ratio"]) / len(norms["ratio"])}
    values["norm_uncorrelated"] = norms["uncorrelated"]
    details = {"adjacent": adjacent, "windows": blocks, "norms": norms, "within": [shown.start, shown.stop]}
    return values, {}, details


@benchmark("laco-uncorrelated")
def _uncorrelated(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure Fig. 5 if nothing were correlated: contributions with the residual stream (a), layers with each other (b)."""
    texts = sentences(context)
    adjacent = layers.orthogonal_cosines(context.model, context.tokenizer, texts)
    blocks = layers.uncorrelated_outputs(context.model, context.tokenizer, texts)
    shown = blocks[_blocks_shown(context.decoder.num_layers)]
    return {"least_adjacent": min(adjacent), "least_paper": min(shown)}, {}, {"adjacent": adjacent, "windows": blocks}


@benchmark("layers")
def _layers(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure how many layers are left."""
    return {"layers": context.decoder.num_layers}, {}, {}

"""Measure for Reassessing's tables, beside accuracies: how a selection depends on its calibration samples."""

from dataclasses import replace
from itertools import combinations

from common.pruning.pipeline import Context
from common.utils.errors import UserError
from papers import reassessing
from reproductions.measurements import benchmark

SAMPLE_COUNTS = (1, 5, 10, 30, 50)  # Tables J and O
SPREAD_SEEDS = (42, 43, 44)


@benchmark("chosen-sets")
def _chosen_sets(context: Context, argument: str) -> tuple[dict, dict, dict]:
    """Measure how the layers a metric removes depend on the samples: ``chosen-sets@METRIC`` of an unpruned model.

    Needs a calibration by line-crops, whose count is left aside. details: for each of `SAMPLE_COUNTS`, the sets removed
    over `SPREAD_SEEDS` (5 of 16 layers, 8 of 32). values: the mean share of layers that two seeds' sets have in common.
    """
    entry = context.calibration
    if entry.sampler != "line-crops":
        raise UserError(f"the spread over calibration samples needs the sampler 'line-crops', not {entry.sampler!r}")
    count = round(context.decoder.num_layers * (5 / 16 if context.recipe.profile == "standin" else 1 / 4))
    sets: dict[str, list[list[int]]] = {}
    for samples in SAMPLE_COUNTS:
        for seed in SPREAD_SEEDS:
            ids = context.tokens(replace(entry, count=samples, seed=seed))
            chosen = reassessing.select(argument, context.decoder, count, ids, fidelity=context.recipe.fidelity)
            sets.setdefault(str(samples), []).append(chosen)
    values = {}
    for samples, layer_sets in sets.items():
        shares = [len(set(a) & set(b)) / count for a, b in combinations(layer_sets, 2)]
        values[f"overlap_{samples}"] = sum(shares) / len(shares)
    return values, {}, {"sets": sets, "seeds": list(SPREAD_SEEDS), "count": count}

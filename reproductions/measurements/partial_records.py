"""The record of a benchmark's part, taken from the record of its whole: what is known is not measured again.

The outcomes kept beside the whole's record hold those of the part: the first items', or the sequences that the part reads.
The layers that were removed, and what training took, are part of every record.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from common.evaluation.scores import accuracy_stderr
from common.evaluation.windowed_perplexity import evenly_spaced, sequence_count, summarise
from common.records.results import Record, Store
from reproductions.spec import subsets

# Details of every record of a recipe: what went, and out of how many layers.
PRUNED = ("removed", "halves", "sliced", "linear", "layers")


def part(store: Store, recipe, benchmark: str) -> tuple[Record, dict] | None:
    """Return the result of a part and its outcomes; None if the whole has no result, or its outcomes were not kept.

    Of ``removed``, ``training-cost`` and ``held-out-loss`` every result of the recipe counts as the whole, the first by
    name. In bfloat16 an item's score may differ in its last digit from one measured with other items in a batch.
    ``provenance`` is the whole's, without its seconds and with its name as ``part_of``.
    """
    if benchmark == "removed":
        return _removed(store.pruned(recipe))
    if benchmark == "training-cost":
        return _trained(store.pruned(recipe))
    if benchmark == "held-out-loss":
        return _held_out(store.pruned(recipe))
    name = subsets.whole(benchmark)
    if name == benchmark or recipe.limit is not None:
        return None
    record = store.get(recipe, name)
    outcomes = store.items(recipe, name) if record is not None and record.status == "ok" else {}
    if not outcomes:
        return None
    result = (_sequences if subsets.tokens(benchmark) else _items)(record, outcomes, benchmark)
    if result is None:
        return None
    values, errors, details, outcomes = result
    return _of(record, benchmark, values=values, stderr=errors, details=details), outcomes


def _of(whole: Record, benchmark: str, **fields) -> Record:
    """Return the record of a part of what one record tells."""
    provenance = {key: value for key, value in whole.provenance.items() if not key.endswith("seconds")}
    return replace(whole, benchmark=benchmark, provenance=provenance | {"part_of": whole.benchmark}, **fields)


def _removed(record: Record | None) -> tuple[Record, dict] | None:
    """Return which layers were removed, from any record of the recipe."""
    if record is None:
        return None
    details = {key: record.details[key] for key in PRUNED if key in record.details}
    return _of(record, "removed", values={"count": len(details["removed"])}, stderr={}, details=details), {}


def training_cost(report: Mapping) -> dict:
    """Return the cost of a fine-tuning, from its report: trained parameters, seconds, peak memory, layer executions."""
    return {
        "trainable": report["trainable"],
        "seconds": report["seconds"],
        "peak_gib": report["peak_memory_bytes"] / 2**30,
        "layer_executions": sum(epoch["layer_executions"] for epoch in report["epochs"]),
    }


def _trained(record: Record | None) -> tuple[Record, dict] | None:
    """Return what training took, from any record of the recipe."""
    if record is None or "epochs" not in record.details.get("training", ()) or "device" not in record.provenance:
        return None
    details = {key: record.details[key] for key in (*PRUNED, "training") if key in record.details}
    details |= {"device": record.provenance["device"]}
    values = training_cost(record.details["training"])
    return _of(record, "training-cost", values=values, stderr={}, details=details), {}


def held_out_loss(report: Mapping | None) -> tuple[dict, dict]:
    """Return the final held-out loss of a fine-tuning (nats per token), of the kept state.

    Returns:
        Values and details. A training without validation has no value, and the details say why. Without a training
        (None) the cell stays empty.
    """
    losses = dict(report.get("validation") or ()) if report else {}
    if not losses:
        return {}, {"status": "none" if report is None else "not validated"}
    step = report.get("kept_step", max(losses))
    return {"loss": losses.get(step, losses[max(losses)])}, {"step": step, "rows": report.get("validation_rows")}


def _held_out(record: Record | None) -> tuple[Record, dict] | None:
    """Return where training ended, from any record of the recipe; cycles of pruning and training have no single end."""
    if record is None or "cycles" in record.details:
        return None
    values, details = held_out_loss(record.details.get("training"))
    details |= {key: record.details[key] for key in PRUNED if key in record.details}
    return _of(record, "held-out-loss", values=values, stderr={}, details=details), {}


def _items(record: Record, outcomes: Mapping, benchmark: str) -> tuple | None:
    """Return the result of a task's first items; None for a group of tasks, or if a score is no share of right items."""
    shares = all(right.dtype == bool for right in outcomes.values()) and outcomes.keys() == record.values.keys()
    if subsets.of_task(benchmark).removeprefix("laco_") in subsets.SUBJECTS or not shares:
        return None
    first = {metric: right[: subsets.FIRST] for metric, right in outcomes.items()}
    values = {metric: float(np.mean(right)) for metric, right in first.items()}
    errors = {metric: accuracy_stderr(values[metric], len(right)) for metric, right in first.items()}
    details = {key: value for key, value in record.details.items() if key != "lm_eval"}
    return values, errors, details | {"items": min(map(len, first.values()))}, first


def _sequences(record: Record, outcomes: Mapping, benchmark: str) -> tuple | None:
    """Return the result of the sequences that `Protocol.of_tokens` spreads over the text; None without a length."""
    if "window" not in record.details:  # as an earlier version wrote it
        return None
    means, length = outcomes["nll"], record.details["window"]
    means = means[evenly_spaced(sequence_count(subsets.tokens(benchmark), length), len(means))]
    summary = summarise(torch.from_numpy(means)[:, None])
    size = {"windows": len(means), "tokens": len(means) * length, "predictions": len(means) * (length - 1)}
    details = {key: value for key, value in record.details.items() if key != "tokens_sha256"} | size
    values = {"nll": summary["nll"], "perplexity": summary["perplexity"]}
    errors = {"nll": summary["nll_stderr"], "perplexity": summary["stderr"]}
    return values, errors, details | {"protocol": benchmark.partition("@")[2]}, {"nll": means}

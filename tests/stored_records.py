"""Records that tests put into a store."""

import math

import numpy as np

from common.records.results import Record


def put(store, recipe, benchmark, values, stderr=None, *, outcomes=None, status="ok", **fields):
    """Store a record of a recipe, whose further `fields` are details, provenance or reason; return it."""
    record = Record(dict(vars(recipe)), recipe.hash, benchmark, status, values, stderr or {}, **fields)
    store.put(record, recipe, outcomes)
    return record


def put_outcomes(store, recipe, benchmark, outcomes, keep=True, **fields):
    """Store a record whose values are the means of outcomes by item: right or wrong, or numbers; `keep` these beside it."""
    outcomes = {key: np.asarray(each) for key, each in outcomes.items()}
    outcomes = {key: each if each.dtype == bool else each.astype(np.float32) for key, each in outcomes.items()}
    values = {key: float(each.mean(dtype=np.float64)) for key, each in outcomes.items()}
    stderr = {key: float(each.std(ddof=1, dtype=np.float64)) / math.sqrt(len(each)) for key, each in outcomes.items()}
    if "nll" in values:
        values["perplexity"] = math.exp(values["nll"])
        stderr["perplexity"] = values["perplexity"] * stderr["nll"]
    return put(store, recipe, benchmark, values, stderr, outcomes=outcomes if keep else None, **fields)

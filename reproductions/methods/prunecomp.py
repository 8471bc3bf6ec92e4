"""Prune&Comp in recipes: five metrics, one-shot or iterative, with or without compensation."""

from __future__ import annotations

import json

from common import calibration, corpora, selection
from common.errors import UserError
from common.evaluation.perplexity import Protocol, c4_crops
from papers import prunecomp
from reproductions import reported
from reproductions.declare import MODELS
from reproductions.prepared import Prepared, calibration_windows

_SEARCHES: dict[str, dict] = {}


def tokens(prepared: Prepared, entry: dict | None):
    """Token ids [samples, tokens] of a calibration entry, None for none.

    Besides the samplers of `common.calibration`: ``lines`` are SLEB's, ``documents`` crops of single documents.
    """
    if entry is None:
        return None
    if entry.get("sampler") == "documents":
        protocol = Protocol("calibration", "", entry["corpus"], entry["length"])
        return c4_crops(protocol, prepared.tokenizer, entry["count"], entry["seed"])
    if entry.get("sampler") != "lines":
        return calibration_windows(entry, prepared.tokenizer)
    wanted = {name: value for name, value in entry.items() if name not in ("corpus", "sampler")}
    return calibration.sample_lines(prepared.tokenizer, corpora.texts(entry["corpus"]), **wanted)


def _prune(prepared: Prepared, progress: bool) -> None:
    """Algorithm 1 or its parts. The same search for fewer layers is the beginning of a longer one that was made before."""
    recipe = prepared.recipe
    choice = dict(recipe.selection)
    choice.pop("method")
    count, own = choice.pop("count"), choice.pop("calibration", None)
    facts = [recipe.model, recipe.weights, recipe.calibration, recipe.fidelity, choice, own, str(prepared.model.dtype)]
    key = json.dumps(facts, sort_keys=True)
    known = _SEARCHES.get(key)
    if known and choice["metric"] != "cl" and len(known["removed"]) >= count:
        report = prunecomp.repeat(prepared.model, known["removed"][:count], known["factors"][:count])
    else:
        options = {"batch_size": prepared.batch_size, "fidelity": recipe.fidelity, "progress": progress}
        windows, metric_windows = tokens(prepared, recipe.calibration), tokens(prepared, own)
        report = prunecomp.prune_and_compensate(
            prepared.model, windows, count, metric_windows=metric_windows, **choice, **options
        )
        _SEARCHES[key] = report
    prepared.details |= {name: value for name, value in report.items() if name != "layer_executions"}


def _factor(prepared: Prepared, removed: list[int], progress: bool) -> None:
    """One-shot compensation of layers chosen by any selection, with the dense model's factors."""
    longest = max(len(range(*run)) for run in selection.runs(removed))
    statistics = prepared.statistics(longest, ("token",), rotate=False, progress=progress)
    options = {name: value for name, value in prepared.recipe.repair.items() if name != "method"}
    prepared.details |= prunecomp.remove_and_compensate(prepared.model, statistics, removed, **options)


PRUNERS = {"prunecomp": _prune}
REPAIRS = {"magnitude-factor": _factor}


def printed_list(table: str, label: str, sparsity: str, method: str) -> list[int]:
    """The removed layers that Table A3 or A4 prints for one row, in order; empty where there are none."""
    cells = reported.cells("prunecomp", table)
    found = []
    while (number := cells.get((label, sparsity, method, f"removed {len(found) + 1}"))) is not None:
        found.append(int(number.value))
    return found


def _order(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Each removed layer by its place in the order, and, of a printed model, at how many places the printed list agrees.

    argument: TABLE/METHOD of the printed list, such as ``A3/PPL +Prune&Comp``. A list longer than the row's n counts up
    to n.
    """
    removed = prepared.details["removed"]
    values = {str(place): float(layer) for place, layer in enumerate(removed, 1)}
    if not argument:
        return values, {}, {}
    table, _, method = argument.partition("/")
    labels = [label for label, name in MODELS.items() if name == prepared.recipe.model]
    if not labels:
        raise UserError(f"no list is printed for {prepared.recipe.model!r}")
    expected = printed_list(table, labels[0], f"{len(removed)}/{prepared.details['layers']}", method)
    agree = sum(a == b for a, b in zip(removed, expected))
    return values | {"agree": float(agree)}, {}, {"printed": expected}


def _gains(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Magnitude gain ratio of every layer, in percent (Eq. 3): the bars of Figure 2, and the largest of them."""
    statistics = prepared.statistics(1, ("token",), rotate=False)
    gains = [100 * (prunecomp.magnitude_factor(statistics, layer) - 1) for layer in range(statistics.layers)]
    return {"largest": max(gains), "least": min(gains)}, {}, {"gains": gains}


BENCHMARKS = {"removed-order": _order, "magnitude-gains": _gains}

"""Prune&Comp in recipes: five metrics, one-shot or iterative, with or without compensation."""

from __future__ import annotations

import random

from common import calibration, corpora, selection
from common.errors import UserError
from common.surgery import remove_layers
from papers import linearpatch, prunecomp
from reproductions import reported
from reproductions.declare import MODELS
from reproductions.prepared import Prepared, calibration_windows

# What the paper calls a metric -> its name in recipes.
METRICS = {"CosSim(BI)": "bi", "CosSim(CL)": "cl", "PPL": "ppl", "Taylor+": "taylor+", "Mag+": "mag+"}
_COSTLY = ("ppl", "taylor+")  # their scores take much more than a forward pass


def tokens(prepared: Prepared, entry: dict | None):
    """Token ids [samples, tokens] of a calibration entry, None for none.

    Besides the crops of `common.calibration`: ``lines`` are SLEB's, ``documents`` crops of single documents, drawn by the
    generator that has just drawn the recipe's own crops, since the official code seeds it for those alone.
    """
    if entry is None:
        return None
    tokenizer, sampler = prepared.tokenizer, entry["sampler"]
    if sampler not in ("lines", "documents"):
        return calibration_windows(entry, tokenizer)
    wanted = {name: value for name, value in entry.items() if name not in ("corpus", "sampler")}
    texts = corpora.texts(entry["corpus"])
    if sampler == "lines":
        return calibration.sample_lines(tokenizer, texts, **wanted)
    before = dict(prepared.recipe.calibration)
    generator = random.Random(before.pop("seed"))
    calibration_windows(before | {"generator": generator}, tokenizer)
    return calibration.sample_documents(tokenizer, texts, generator=generator, **wanted)


def _ranking(prepared: Prepared, metric: str, entry: dict | None, progress: bool) -> list[int]:
    """Every layer that a metric may remove, by its score in the dense model: where all searches by that metric begin."""

    def search() -> list[int]:
        options = {"batch_size": prepared.batch_size, "progress": progress}
        stream = prunecomp.Stream(prepared.decoder, tokens(prepared, entry), **options)
        return prunecomp.choose(stream, None, metric, progress=progress)

    facts = {"metric": metric, "calibration": entry, "after": prepared.recipe.calibration}
    return prepared.searched("ranking", facts, search, enough=bool)


def _prune(prepared: Prepared, progress: bool) -> None:
    """Algorithm 1 or its parts. The same search for fewer layers is the beginning of a longer one that was made before."""
    recipe = prepared.recipe
    choice = dict(recipe.selection)
    choice.pop("method")
    count, own = choice.pop("count"), choice.pop("calibration", None)
    layers = prepared.decoder.num_layers

    def search() -> dict:
        options = {"batch_size": prepared.batch_size, "fidelity": recipe.fidelity, "progress": progress}
        if choice["metric"] in _COSTLY and recipe.fidelity == "paper" and "protected" not in choice:
            options["known"] = _ranking(prepared, choice["metric"], own or recipe.calibration, progress)
        windows, metric_windows = tokens(prepared, recipe.calibration), tokens(prepared, own)
        return prunecomp.prune_and_compensate(
            prepared.model, windows, count, metric_windows=metric_windows, **choice, **options
        )

    # a window of fewer layers is no part of a longer one, and what the code fuses in place cannot be repeated from factors
    if choice["metric"] == "cl" or recipe.fidelity == "code":
        report = search()
    else:
        facts = {"calibration": recipe.calibration, "own": own, "choice": choice}
        report = prepared.searched("prunecomp", facts, search, lambda found: len(found["removed"]) >= count)
    if count and prepared.decoder.num_layers == layers:  # found before: the model is still whole
        report = prunecomp.repeat(prepared.model, report["removed"][:count], report["factors"][:count])
    prepared.details |= {name: value for name, value in report.items() if name != "layer_executions"}


def _factor(prepared: Prepared, removed: list[int], progress: bool) -> None:
    """One-shot compensation of layers chosen by any selection, with the dense model's factors."""
    longest = max(len(range(*run)) for run in selection.runs(removed))
    statistics = prepared.statistics(longest, ("token",), rotate=False, progress=progress)
    options = {name: value for name, value in prepared.recipe.repair.items() if name != "method"}
    prepared.details |= prunecomp.remove_and_compensate(prepared.model, statistics, removed, **options)


def _stream(prepared: Prepared, progress: bool) -> prunecomp.Stream:
    return prunecomp.Stream(prepared.decoder, prepared.windows(), batch_size=prepared.batch_size, progress=progress)


def _metric(prepared: Prepared, progress: bool) -> list[int]:
    """A metric's choice at once, to be repaired by any paper's means."""
    choice = prepared.recipe.selection
    if choice["metric"] == "cl":
        statistics = prepared.statistics(choice["count"], ("token",), progress=progress)
        return list(range(*selection.best_window(statistics, choice["count"], exclude_ends=False)))
    return _ranking(prepared, choice["metric"], prepared.recipe.calibration, progress)[: choice["count"]]


class _OneLayer:
    """A stream's layer as a model of one layer, for `common.calibration.collect`: X[0] is what it receives."""

    num_layers = 1

    def __init__(self, stream: prunecomp.Stream, layer: int) -> None:
        self.decoder, self.layer = stream.decoder, layer
        self.entering = iter(stream.received(layer))

    def embed_tokens(self, ids):
        return next(self.entering).to(self.decoder.device)

    def run(self, hidden, start, stop):
        return self.decoder.run(hidden, layers=[self.layer])


def _iterated_patch(prepared: Prepared, progress: bool) -> None:
    """Algorithm 1 with a patch in place of the factor: each removal is patched, by the model as it is, before the next."""
    choice = prepared.recipe.selection
    kind, estimator = choice["patch"]["kind"], choice["patch"]["estimator"]
    stream = _stream(prepared, progress)
    options = {"pairs": (), "batch_size": stream.batch_size} | linearpatch.named_statistics(kind, estimator, [(0, 1)])
    removed = []
    for step in range(choice["count"]):
        if step == 0 and choice["metric"] in _COSTLY:
            layer = _ranking(prepared, choice["metric"], prepared.recipe.calibration, progress)[0]
        else:
            layer = prunecomp.next_layer(stream, choice["metric"], progress=progress)
        statistics = calibration.collect(_OneLayer(stream, layer), stream.ids, **options)
        values = linearpatch.patch_values(statistics, 0, 1, kind=kind, estimator=estimator)
        if kind == "hadamard":
            values = linearpatch.LinearPatch(values, kind).matrix()
        stream.remove(layer, values.float())
        removed.append(layer)
    gains = dict(stream.factors)
    remove_layers(prepared.model, removed)
    for receiver, values in gains.items():
        position = receiver - sum(layer < receiver for layer in removed)
        patch = linearpatch.LinearPatch(values, "matrix" if values.ndim == 2 else "diagonal")
        linearpatch.insert_patch(prepared.model, position, patch)
    prepared.details["removed"] = removed


PRUNERS = {"prunecomp": _prune, "iterated-patch": _iterated_patch}
SELECTIONS = {"prunecomp-metric": _metric}
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

    argument: the table that prints the lists, A3 or A4. A list longer than the row's n counts up to n.
    """
    removed, choice = prepared.details["removed"], prepared.recipe.selection
    values = {str(place): float(layer) for place, layer in enumerate(removed, 1)}
    if not argument:
        return values, {}, {}
    labels = [label for label, name in MODELS.items() if name == prepared.recipe.model]
    if not labels:
        raise UserError(f"no list is printed for {prepared.recipe.model!r}")
    metric = next(name for name, short in METRICS.items() if short == choice["metric"])
    method = f"{metric} +Prune&Comp" if choice["compensate"] else metric
    expected = printed_list(argument, labels[0], f"{len(removed)}/{prepared.details['layers']}", method)
    agree = sum(a == b for a, b in zip(removed, expected))
    return values | {"agree": float(agree)}, {}, {"printed": expected}


def _gains(prepared: Prepared, argument: str) -> tuple[dict, dict, dict]:
    """Magnitude gain ratio of every layer, in percent (Eq. 3): the bars of Figure 2, and the largest of them."""
    statistics = prepared.statistics(1, ("token",), rotate=False)
    gains = [100 * (prunecomp.magnitude_factor(statistics, layer) - 1) for layer in range(statistics.layers)]
    return {"largest": max(gains), "least": min(gains)}, {}, {"gains": gains}


BENCHMARKS = {"removed-order": _order, "magnitude-gains": _gains}

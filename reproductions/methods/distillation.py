"""LinearPatch's distillation and LLM-Streamline in recipes.

All three are repairs, because they learn from the layers that go: they train on the dense model and then do the surgery.
They share these entries of `recipe.repair`:

    samples        training windows: the first so many crops of the recipe's calibration entry (the paper: 5,000, the first
                   128 of which also calibrate); a recipe's limit cuts them too, so that a quick look is quick
    learning_rate  and, if wanted, any other field of `common.fitting.Fitting`
    target         'logits' (KL) or 'output' (mean squared error)
    top_k          logits per token that the target 'logits' compares

    linearpatch-distilled   also trainable; kind and estimator of the patch it starts from; teacher: 'stored' (offline,
                            shared by recipes) or 'online'
    streamline-ffn          also seed, of the first weights; without samples, the network as it is before any training
    streamline-layer        its selection takes one layer more than the model is to lose
    both                    also validation: held-out windows, the weights that do best on which are kept, looked at every
                            validate_every steps. In a recipe of the official code's fidelity they train as that does
                            (`common.baselines.streamline.OFFICIAL`), with validation
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace

from torch import Tensor

from common.baselines import streamline
from common.errors import UserError, unknown
from common.fitting import Fitting
from common.selection import runs
from papers import linearpatch
from papers.linearpatch import distill
from reproductions.prepared import Prepared, calibration_windows, work_folder

TEACHERS = ("stored", "online")
POINTS = 250  # of a loss curve in a record
HELD_OUT = 16  # windows, of LinearPatch's official scripts; how many LLM-Streamline's code takes is its data's


def _options(prepared: Prepared, known: tuple[str, ...]) -> tuple[Tensor, Fitting, dict]:
    """The recipe's training windows, how it trains, and what else of `known` it says."""
    wanted = {name: value for name, value in prepared.recipe.repair.items() if name not in ("method", "samples")}
    fields = {name: wanted.pop(name) for name in list(wanted) if name in Fitting.__dataclass_fields__}
    if prepared.recipe.repair["method"] == "streamline-ffn" and "seed" in fields:
        wanted["seed"] = fields.pop("seed")
    for name in wanted.keys() - set(known):
        raise unknown("option of the repair", name, [*known, *Fitting.__dataclass_fields__, "samples"])
    if prepared.recipe.calibration is None or "samples" not in prepared.recipe.repair:
        raise UserError("a repair that trains needs the recipe's calibration entry and a number of samples")
    count = min(prepared.recipe.repair["samples"], prepared.recipe.limit or sys.maxsize)
    entry = dict(prepared.recipe.calibration) | {"count": count}
    theirs = prepared.recipe.fidelity == "code" and prepared.recipe.repair["method"].startswith("streamline")
    how = replace(streamline.OFFICIAL if theirs else Fitting(), **fields)
    return calibration_windows(entry, prepared.tokenizer), how, wanted


def _note(prepared: Prepared, report: dict) -> None:
    """Keep the report in the records' details, its loss curve thinned to means of equal stretches."""
    losses = report.pop("losses")
    stretch = max(1, -(-len(losses) // POINTS))
    means = [sum(part) / len(part) for part in (losses[i : i + stretch] for i in range(0, len(losses), stretch))]
    curve = {"losses": [round(value, 6) for value in means], "steps_per_point": stretch}
    report["seconds"] = round(report["seconds"], 2)
    for name in ("patches", "replaced"):
        if name in report:
            prepared.details[name] = report.pop(name)
    prepared.details["training"] = report | curve


def _distilled(prepared: Prepared, removed: list[int], progress: bool) -> None:
    known = ("trainable", "target", "top_k", "store_dtype", "kind", "estimator", "teacher")
    windows, fitting, wanted = _options(prepared, known)
    choice, teacher = prepared.recipe.selection, wanted.pop("teacher", "stored")
    if teacher not in TEACHERS:
        raise unknown("teacher", teacher, TEACHERS)
    start = {"kind": wanted.pop("kind", None), "estimator": wanted.pop("estimator", "ratio-of-means")}
    settings = distill.settings_of(prepared.recipe.fidelity, fitting=fitting, **wanted)
    named = linearpatch.named_statistics(start["kind"] or "hadamard", start["estimator"], runs(removed))
    statistics = prepared.statistics(len(removed), (choice.get("cosine", "token"),), progress=progress, **named)
    facts = {name: value for name, value in prepared.recipe.calibration.items() if name not in ("count", "length")}
    folder = None
    if teacher == "stored" and settings.target == "logits":
        made = [prepared.recipe.weights, str(prepared.model.dtype), facts, list(windows.shape)]
        made += [settings.top_k, settings.store_dtype]
        name = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]
        folder = work_folder() / prepared.recipe.model / f"teacher-{name}"
    report = distill.distill_cuts(
        prepared.model,
        statistics,
        removed,
        windows,
        settings,
        ends=True,  # the selection has decided
        store=folder,
        tokenizer=prepared.tokenizer,
        facts=facts,
        folder=prepared.folder / "distillation",
        progress=progress,
        **start,
    )
    _note(prepared, report | {"teacher": "online" if folder is None else "stored"})


def _streamline(method):
    def repair(prepared: Prepared, removed: list[int], progress: bool) -> None:
        if method is streamline.replace_with_ffn and "samples" not in prepared.recipe.repair:
            prepared.details["replaced"] = streamline.insert_ffn(prepared.model, removed)
            return
        known = ("target", "top_k", "seed", "validation", "validate_every")
        windows, fitting, wanted = _options(prepared, known)
        count, held_out = wanted.pop("validation", HELD_OUT if prepared.recipe.fidelity == "code" else 0), None
        if count:
            entry = dict(prepared.recipe.calibration) | {"count": count, "sampler": "linearpatch-validation"}
            held_out = calibration_windows(entry, prepared.tokenizer)
        settings = streamline.Settings(fitting=fitting, **wanted)
        options = {"validation": held_out, "folder": prepared.folder / "streamline", "progress": progress}
        _note(prepared, method(prepared.model, removed, windows, settings, **options))

    return repair


REPAIRS = {
    "linearpatch-distilled": _distilled,
    "streamline-ffn": _streamline(streamline.replace_with_ffn),
    "streamline-layer": _streamline(streamline.replace_with_layer),
}

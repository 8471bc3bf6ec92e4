"""A recipe's page: what was removed, what repairs it, its values, where they come from, the command that repeats it."""

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from markupsafe import Markup

from common.models import registry as model_registry
from common.pruning.recipe import SHAPE_ONLY
from common.records.record_json import write
from common.records.results import Recipe, Record
from reproductions.render.evidence import Evidence, Shown
from reproductions.render.value_lists import described
from reproductions.site.table_grids import DOWN, UP, number
from reproductions.spec import registry
from reproductions.spec.subjects import TOY

PARTS = {
    "selection": "How the layers are chosen",
    "repair": "How the model is repaired",
    "training": "What is trained afterwards",
    "calibration": "Calibration",
}
# Keys of values that are shares of 1 and read as per cent; higher is better (as in static/report.js).
SHARES = (
    "acc",
    "acc_norm",
    "exact_match",
    "exact",
    "contains",
    "same_top",
    "score",
    "weighted",
    "rouge_1",
    "rouge_l",
    "pass@1",
)
CELL, GAP, HEIGHT = 16, 3, 26  # of a layer in a picture
LOWER = ("perplexity", "nll", "kl")  # keys of values of which lower is better (as in static/report.js)


def is_share(benchmark: str, key: str) -> bool:
    """Return whether a value is a share of 1; all of MMLU's values are, one for each subject."""
    return key in SHARES or benchmark.startswith("mmlu")


def title(evidence: Evidence, digest: str) -> str:
    """Return a recipe's title: method, n/N and model."""
    return f"{name(evidence, digest)} · {label(evidence.recipe(digest).model)}"


def name(evidence: Evidence, digest: str) -> str:
    """Return a recipe's name among those of its model; its variant in a table, such as [S], follows n/N."""
    places = evidence.shown.get(digest, [])
    variant = f"[{places[0].row.variant}]" if places and places[0].row.variant else ""
    return " · ".join(filter(None, (evidence.method(digest), evidence.share(digest), variant)))


def label(model: str) -> str:
    """Return a model's name for people."""
    spec = model_registry.find(model)
    return "toy model" if model == TOY.model else spec.title if spec else model


def originals(evidence: Evidence) -> dict[str, str]:
    """Return the recipe of each model as released, the one with the most results: model -> recipe's hash."""
    digests: dict[str, str] = {}
    for digest, records in evidence.records.items():
        recipe = evidence.recipe(digest)
        places = evidence.shown.get(digest, [])
        if recipe.weights == SHAPE_ONLY or not any(place.row.dense and not place.shape for place in places):
            continue
        previous = digests.get(recipe.model)
        if previous is None or len(records) > len(evidence.records[previous]):
            digests[recipe.model] = digest
    return digests


def view(evidence: Evidence, digest: str, models: Mapping[str, str]) -> dict:
    """Return the values for the page's template. models: as `originals` returns them."""
    recipe, records = evidence.recipe(digest), evidence.records[digest]
    removed, layers = evidence.removed(digest)
    facts = [("Model", label(recipe.model)), ("Weights", recipe.weights or "as released")]
    facts += [("Type of numbers", "none needed" if recipe.weights == SHAPE_ONLY else recipe.dtype)]
    facts += [(name, described(value)) for part, name in PARTS.items() if (value := getattr(recipe, part))]
    if removed:
        facts.append(("Layers removed, in order", ", ".join(map(str, removed))))
    if recipe.fidelity != "paper":
        facts.append(("Details as in", f"the official {recipe.fidelity}"))
    if recipe.limit:
        facts.append(("A quick look", f"{recipe.limit} items of each task and sequences of each text"))
    picture = strip(layers, removed, _interfaces(records)) if layers and removed is not None and layers < 200 else ""
    places = evidence.shown.get(digest, [])
    return {
        "hash": digest,
        "original": models.get(recipe.model, "").removesuffix(digest),
        "title": title(evidence, digest),
        "strip": picture,
        "strip_words": _strip_words(removed, layers, records) if picture else "",
        "facts": facts,
        "cells": [cell for record in records.values() for cell in _cells(record)],
        "command": command(places[0]) if places else "",
        "places": [_place(place) for place in places],
        "provenance": _provenance(list(records.values())),
        "json": json.dumps(recipe.__dict__, indent=1, sort_keys=True),
    }


def strip(layers: int, removed: Sequence[int], interfaces: Sequence[int] = ()) -> Markup:
    """Draw a model's layers in a row, with the removed ones hatched and crossed out.

    A triangle marks each layer after a repaired interface.
    """
    removed_layers = set(removed)
    words = f"{len(removed_layers)} of {layers} layers removed: {', '.join(map(str, sorted(removed_layers))) or 'none'}"
    step = CELL + GAP
    parts = []
    for layer in range(layers):
        x = layer * step
        kind = "gone" if layer in removed_layers else "kept"
        parts.append(f'<rect class="{kind}" x="{x}" y="4" width="{CELL}" height="{HEIGHT}" rx="2"/>')
        if layer in removed_layers:
            parts.append(f'<path class="cross" d="M{x + 4} 11l8 12m0 -12l-8 12"/>')
        if layer in interfaces:
            parts.append(f'<path class="cut" d="M{x - 5} 0h7l-3.500 5z"/>')
        if layer % 5 == 0 or layer == layers - 1 and layer % 5 > 1:
            parts.append(f'<text x="{x + CELL / 2}" y="{HEIGHT + 17}">{layer}</text>')
    width = layers * step
    return Markup(  # noqa: S704 - numbers alone
        f'<svg class="strip" role="img" viewBox="-6 -1 {width + 8} {HEIGHT + 22}" style="max-width:{width + 8}px">'
        f"<title>{escape(words)}</title>{''.join(parts)}</svg>"
    )


def _interfaces(records: dict[str, Record]) -> list[int]:
    """Return the layers, counted in the dense model, behind each patched pruning interface."""
    for record in records.values():
        if patches := record.details.get("patches") or record.details.get("replaced"):
            repaired = all(isinstance(patch, dict) and "run" in patch for patch in patches)
            return [patch["run"][1] for patch in patches] if repaired else []
    return []


def _strip_words(removed: list[int], layers: int, records: dict[str, Record]) -> str:
    words = f"{len(removed)} of {layers} layers removed" if removed else f"all {layers} layers are there"
    return words + ("; a triangle marks a patched interface" if _interfaces(records) else "")


def _cells(record: Record) -> list[dict]:
    items = record.details.get("items", record.details.get("windows"))
    provenance = record.provenance
    shared = {
        "benchmark": record.benchmark,
        "count": f"{items:,}" if isinstance(items, int) else "",
        "seconds": f"{provenance['seconds']:.1f}" if provenance.get("seconds", 0) >= 0.05 else "",
        "measured_at": str(provenance.get("measured_at", ""))[:10],
        "commit": str(provenance.get("commit") or "")[:9],
        "status": record.status + (f": {record.reason}" if record.reason else ""),
    }
    cells = []
    for row, (key, value) in enumerate(record.values.items() or [("", None)]):
        share = is_share(record.benchmark, key)
        scale = 100 if share else 1
        cell = shared | {
            "key": f"{key}, %" if share else key,
            "first": row == 0,
            "number": None,
            "sort": "",
            "stderr": "",
        }
        cell["better"] = UP if share else DOWN if key in LOWER else ""
        if value is not None and math.isfinite(value):
            digits = 0 if isinstance(value, int) else 4 if abs(value * scale) < 1 else 2
            cell |= {"number": number(value * scale, digits, 4), "sort": value * scale}
            error = record.stderr.get(key)
            cell["stderr"] = f"{error * scale:.{max(digits, 2)}f}" if error is not None and math.isfinite(error) else ""
        elif value is not None:
            cell["status"] = "diverged"
        cells.append(cell)
    return cells


def command(place: Shown) -> str:
    """Return the make command that measures a row again."""
    parts = ["make", place.target]
    if place.shape:
        toy = {row.method for row in registry.get(place.target).rows(TOY, None)}
        parts += [f"ROW={_quoted(place.row.name)}"] if place.row.method in toy else []
    else:
        if place.subject == "paper":
            parts += ["PROFILE=paper", f"MODEL={place.row.model}"]
        elif place.subject != TOY.model:
            parts.append(f"MODEL={place.subject}")
        parts.append(f"ROW={_quoted(place.row.name)}")
    return " ".join([*parts, "FORCE=1"])


def _quoted(text: str) -> str:
    return shlex.quote(text.replace("$", "$$"))


def _place(place: Shown) -> dict:
    row = place.row
    name = " ".join(filter(None, (row.label, row.sparsity, row.name)))
    table = registry.get(place.target)
    return {"target": place.target, "subject": place.subject, "title": table.title, "row": name, "shape": place.shape}


def _provenance(records: list[Record]) -> list[tuple[str, str]]:
    """Return what the records of a recipe were measured with; what differs between them is listed with how often."""
    provenances = [record.provenance for record in records]

    def summary(name: str, show=str) -> str:
        counts = Counter(show(provenance[name]) for provenance in provenances if provenance.get(name) is not None)
        return ", ".join(value if len(counts) == 1 else f"{value} ({count} records)" for value, count in counts.items())

    packages = dict.fromkeys(", ".join(f"{k} {v}" for k, v in p.get("packages", {}).items()) for p in provenances)
    corpora = (corpus for provenance in provenances for corpus in (provenance.get("corpus") or {}).items())
    digests = dict.fromkeys(f"{name} {value}" for name, value in corpora if value)
    peak = max((provenance.get("peak_memory_bytes") or 0 for provenance in provenances), default=0)
    seconds = sum(provenance.get("seconds") or 0 for provenance in provenances)
    preparing = max((provenance.get("preparing_seconds") or 0 for provenance in provenances), default=0)
    facts = [
        ("Commit", summary("commit")),
        ("Local changes", summary("dirty", lambda dirty: "yes" if dirty else "no")),
        ("Measured", summary("measured_at", lambda time: time[:10])),
        ("Machine", f"{summary('platform')}, {summary('cpus')} processors, {summary('device')}"),
        ("Python and packages", "; ".join([f"Python {summary('python')}", *packages])),
        (
            "Weights",
            summary("model", lambda m: " ".join(f"{k} {v}" for k, v in m.items() if v) if isinstance(m, dict) else m),
        ),
        ("Text (SHA-256)", "; ".join(digests)),
        ("Seconds", f"{preparing:.1f} to load, choose, repair and train; {seconds:.1f} for the benchmarks"),
        ("Peak memory", f"{peak / 2**30:.2f} GiB" if peak else ""),
        ("Origin", ", ".join(sorted({record.origin for record in records}))),
    ]
    return [(name, value) for name, value in facts if value]


def as_json(evidence: Evidence, digest: str) -> str:
    """Return the recipe and all its results, as one line of JSON."""
    recipe: Recipe = evidence.recipe(digest)
    records = [record.content() for record in evidence.records[digest].values()]
    return write({"recipe": recipe.__dict__, "recipe_hash": digest, "records": records}, indent=None)

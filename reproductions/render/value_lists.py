"""The records as a flat list: one row a value."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from common.pruning.recipe import PARTS, SHAPE_ONLY
from common.records.results import Record
from reproductions.render.evidence import Evidence

# The data dictionary: column -> what it holds.
FIELDS = {
    "recipe": "the recipe's hash: sixteen hexadecimal digits of the SHA-256 of its canonical JSON",
    "profile": "whose texts and tasks: paper or standin",
    "model": "registry name of the model",
    "method": "what the first table that shows the recipe calls it",
    "n/N": "layers removed of the dense model's, where known",
    "benchmark": "what was measured; after @ the version or the text",
    "key": "which of the benchmark's values",
    "value": "the value: accuracies as shares of 1, perplexities per token; empty where there is none; inf, nan: diverged",
    "stderr": "standard error of the value, in its unit; items are treated as independent",
    "items": "items or sequences that the value is over, where known",
    "status": "ok, failed or no data",
    "reason": "why there is no value",
    "selection": "how the layers are chosen, with its options",
    "repair": "what repairs the model, with its options",
    "training": "what is trained afterwards, with its options",
    "calibration": "text, sampler, sequences and seed of the calibration",
    "dtype": "type of weights and computation; empty for what needs no weights",
    "removed": "layers removed, 0-based, in order of removal, separated by spaces",
    "limit": "items that each task was limited to; empty: all",
    "seconds": "seconds that the benchmark took",
    "preparing_seconds": "seconds that loading, choosing, repairing and training took",
    "peak_memory_bytes": "most memory that the process had held by then",
    "device": "cpu or the GPU's name",
    "commit": "commit of the code that measured",
    "dirty": "whether that code had local changes",
    "measured_at": "when, in UTC",
    "origin": "published, or yours",
    "targets": "tables and figures that show the recipe, separated by spaces",
}


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield one row per value, in FIELDS; a result without values has one row with its reason."""
    for record in evidence.store:
        shared = _of_record(evidence, record)
        for key, value in record.values.items() or [("", None)]:
            error = record.stderr.get(key)
            numbers = {name: None if n is None else float(n) for name, n in (("value", value), ("stderr", error))}
            yield dict.fromkeys(FIELDS) | shared | {"key": key} | numbers


def _of_record(evidence: Evidence, record: Record) -> dict:
    recipe, provenance = evidence.recipe(record.recipe_hash), record.provenance
    steps = {part: described(mapping) for part in PARTS if (mapping := getattr(recipe, part))}
    removed = record.details.get("removed")
    items = record.details.get("items", record.details.get("windows"))
    places = evidence.shown.get(record.recipe_hash, [])
    provenance_keys = ("preparing_seconds", "seconds", "peak_memory_bytes", "device", "commit", "dirty", "measured_at")
    return steps | {name: provenance.get(name) for name in provenance_keys} | {
        "recipe": record.recipe_hash,
        "profile": recipe.profile,
        "model": recipe.model,
        "method": evidence.method(record.recipe_hash),
        "n/N": evidence.share(record.recipe_hash),
        "benchmark": record.benchmark,
        "items": items if isinstance(items, int) else None,
        "status": record.status,
        "reason": record.reason,
        "dtype": None if recipe.weights == SHAPE_ONLY else recipe.dtype,
        "removed": None if removed is None else " ".join(map(str, removed)),
        "limit": recipe.limit,
        "origin": record.origin,
        "targets": " ".join(dict.fromkeys(place.target for place in places)),
    }  # fmt: skip


def described(mapping: Mapping) -> str:
    """Return a step of a recipe as one line: ``bi: count 5, cosine token``.

    It reads the mapping, because typed steps would load torch.
    """
    name = mapping.get("method", mapping.get("corpus", ""))
    options = {key: value for key, value in mapping.items() if key not in ("method", "corpus") and value is not None}
    return f"{name}: {_option_text(options)}" if options else name


def _option_text(value: object) -> str:
    if isinstance(value, Mapping):
        parts = (
            f"{key} ({_option_text(part)})" if isinstance(part, Mapping) else f"{key} {_option_text(part)}"
            for key, part in value.items()
        )
        return ", ".join(parts)
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def write_csv(lines: list[dict], path: Path) -> None:
    """Write all rows as CSV, with numbers in full precision."""
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)

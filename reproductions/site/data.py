"""The script files that pages read data from: all values, the recipes to choose from, and each recipe's values and items."""

import base64
import json
import math
from collections import Counter
from collections.abc import Mapping

import numpy as np

from reproductions.claims.bootstrap import matches_outcomes
from reproductions.render.evidence import Evidence
from reproductions.site.recipes import is_share, label, name, title
from reproductions.spec.subjects import PUBLISHED_MODELS

# The columns of the page of all records: (name, whether few strings fill it, so that they are stored once).
COLUMNS = {"recipe": True, "model": True, "method": True, "n/N": True, "benchmark": True, "key": True}
NUMBERS = ("value", "stderr")


def script(name: str, content: object) -> str:
    """Return a script file that passes JSON to the page's script.

    A page opened from disk may load scripts, but no JSON.
    """
    return f"layerlab.data({json.dumps(name)},{json.dumps(content, separators=(',', ':'), ensure_ascii=False)});\n"


def all_values(rows: list[dict]) -> dict:
    """Return every value, those that need no weights last.

    Strings occur once, and rows hold their positions. Numbers have six digits; a missing number is a word. first: the
    benchmark that the page opens with, the one of most recipes.
    """
    rows = sorted(rows, key=lambda row: row["dtype"] is None)
    strings = {name: list(dict.fromkeys(row[name] or "" for row in rows)) for name in COLUMNS}
    places = {name: {text: at for at, text in enumerate(texts)} for name, texts in strings.items()}
    lines = [
        [
            *(places[name][row[name] or ""] for name in COLUMNS),
            _short(row["value"], row["status"]),
            _short(row["stderr"]),
        ]
        for row in rows
    ]
    ranked = Counter((row["model"], row["benchmark"], row["key"]) for row in rows if _ranks(row))
    first = dict(zip(("model", "benchmark", "key"), ranked.most_common(1)[0][0], strict=True)) if ranked else {}
    return {"columns": [*COLUMNS, *NUMBERS], "strings": strings, "rows": lines, "first": first}


def _ranks(row: dict) -> bool:
    """Return whether a value says how good a model is, and is of a model that others use."""
    comparable = row["key"] == "perplexity" or is_share(row["benchmark"], row["key"])
    return comparable and row["value"] is not None and row["model"] in PUBLISHED_MODELS


def _short(value: float | None, otherwise: str | None = None) -> float | str | None:
    if value is None:
        return otherwise
    if not math.isfinite(value):
        return "diverged"
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")


def choices(evidence: Evidence, packed: Mapping[str, dict]) -> list[list[str]]:
    """Return [hash, name, model, whether items are there] of every recipe with something to compare.

    packed: recipe's hash -> its `items`.
    """
    entries = []
    for digest, records in evidence.records.items():
        if any(record.stderr or record.values for record in records.values()):
            model = label(evidence.recipe(digest).model)
            entries.append([digest, name(evidence, digest), model, int(any(packed[digest].values()))])
    names = [tuple(entry[1:3]) for entry in entries]
    for entry in entries:  # what tables call alike is told apart by its hash
        if names.count(tuple(entry[1:3])) > 1:
            entry[1] += f" · {entry[0][:6]}"
    return sorted(entries, key=lambda entry: (entry[2], entry[1]))


def items(evidence: Evidence, digest: str) -> dict[str, dict]:
    """Return the outcomes per item of a recipe in a compact form, by benchmark and key.

    Only outcomes whose means are values of the recipe's results are included. Right and wrong: {"n": items, "bits":
    base64 of one bit an item, the first item highest}. Losses: {"f32": base64 of little-endian 32-bit floats}.
    """
    recipe, packed_items = evidence.recipe(digest), {}
    for benchmark, record in evidence.records[digest].items():
        outcomes = evidence.store.items(recipe, benchmark)
        packed_items[benchmark] = {
            key: _packed(values)
            for key, values in outcomes.items()
            if matches_outcomes(record, "perplexity" if key == "nll" else key, values)
        }
    return packed_items


def _packed(values: np.ndarray) -> dict:
    if values.dtype == bool:
        return {"n": len(values), "bits": base64.b64encode(np.packbits(values).tobytes()).decode()}
    return {"f32": base64.b64encode(values.astype("<f4").tobytes()).decode()}


def of_recipe(evidence: Evidence, digest: str, packed: Mapping[str, dict]) -> dict:
    """Return a recipe's data for comparisons: values with standard errors, and its `items`, packed."""
    values = {
        benchmark: {key: [_short(value), _short(record.stderr.get(key))] for key, value in record.values.items()}
        for benchmark, record in evidence.records[digest].items()
        if record.values
    }
    nonempty = {benchmark: outcomes for benchmark, outcomes in packed.items() if outcomes}
    return {"title": title(evidence, digest), "values": values, "items": nonempty}

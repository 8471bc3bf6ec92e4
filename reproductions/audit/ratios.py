"""Printed shares of removed parameters against the shapes of the models."""

from __future__ import annotations

from collections.abc import Iterator

from common import models
from reproductions import declare, reported
from reproductions.audit.findings import DEFINITION, SLIP, Finding, agrees, cells_of, group, place, shown
from reproductions.reported import Number


def _share(name: str, removed: int, method: str) -> tuple[float, str]:
    facts = models.get(name).facts
    added = 0
    if method == "LinearPatch":
        added = facts["hidden"] ** 2
    elif method.startswith("LLM-Streamline(FFN)"):
        added = 3 * facts["hidden"] * facts["intermediate"]
    minus = f" - {added}" if added else ""
    words = f"({removed} * {facts['layer_params']}{minus}) / {facts['params']}"
    return 100 * (removed * facts["layer_params"] - added) / facts["params"], words


def findings() -> Iterator[Finding]:
    """Ratio columns and LaCo's printed percentages that the removed layers do not give."""
    for paper in ("linearpatch", "prunecomp"):
        for table in reported.tables(paper):
            for number in reported.numbers(paper, table):
                removed = declare.removed_layers(number)
                if number.column != "Ratio" or not removed or number.method == "LLM-Pruner":
                    continue
                yield from _compare(number, number, *_share(declare.MODELS[number.model], removed, number.method))
    for table in ("1", "4", "6", "7", "10"):
        if table not in reported.tables("laco"):
            continue
        for (model, sparsity, method, _), row in group(reported.numbers("laco", table)).items():
            if not method.startswith("LaCo") and table not in ("6",) or sparsity in ("", "0%") or "layers" not in row:
                continue
            layers = row["layers"]
            name = declare.MODELS[model]
            removed = models.get(name).facts["layers"] - int(layers.value)
            printed = Number(**{**layers.__dict__, "text": sparsity.rstrip("%"), "column": "ratio"})
            yield from _compare(printed, layers, *_share(name, removed, method))


def _compare(printed: Number, marked: Number, value: float, words: str) -> Iterator[Finding]:
    if agrees(printed, value, 0):
        return
    cut = 0 <= value - printed.value < 2 * printed.half_unit
    yield Finding(
        printed.paper,
        "share of parameters",
        place(printed),
        f"{printed.text} %" + ("" if printed is marked else f" with {marked.text} layers left"),
        f"{shown(value, printed)} %",
        f"{words} = {shown(value, printed, 2)} %",
        DEFINITION if cut else SLIP,
        "The paper cuts the number off instead of rounding it." if cut else "Cite the recomputed share.",
        cells_of([marked]),
    )

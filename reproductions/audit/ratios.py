"""Printed shares, sizes and memories against the shapes of the models."""

from __future__ import annotations

import re
from collections.abc import Iterator

from common import model_registry
from reproductions import declare, reported
from reproductions.audit.findings import DEFINITION, SLIP, Finding, agrees, cells_of, group, place, shown
from reproductions.reported import Number

MIB = 2**20


def _share(name: str, removed: int, method: str) -> tuple[float, str]:
    facts = model_registry.get(name).facts
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
            name = declare.MODELS[model]
            removed = model_registry.get(name).facts["layers"] - int(row["layers"].value)
            yield from _compare(row["ratio %"], row["layers"], *_share(name, removed, method))
    yield from _layers_for_parameters()
    yield from _memory()
    yield from _sizes()


def _layers_for_parameters() -> Iterator[Finding]:
    """Reassessing, Table 6: rates that are shares of the layers, beside rates that are shares of the parameters."""
    rows = [number for number in reported.numbers("reassessing", "6") if number.column == "PR %"]
    layers, parameters = {}, {}
    for number in rows:
        facts = model_registry.get(declare.MODELS[number.model]).facts
        for count in range(1, facts["layers"]):
            share = 100 * count * facts["layer_params"] / facts["params"]
            if agrees(number, 100 * count / facts["layers"], 0):
                layers[number] = count, share
            elif number.method in ("ShortGPT", "LaCo") and agrees(number, share, number.half_unit):  # whole layers too
                parameters[number] = count
                yield from _compare(number, number, share, f"({count} * {facts['layer_params']}) / {facts['params']}")
    if not (layers and parameters):
        return
    most, (count, share) = list(layers.items())[-1]
    other = max(parameters.values())
    yield Finding(
        "reassessing",
        "share of parameters",
        f"Table 6, {most.model}, rates of {most.method}",
        ", ".join(number.sparsity for number in layers),
        ", ".join(f"{value:.2f}%" for _, value in layers.values()),
        "; ".join(
            f"{n} layers are {k.sparsity} of the layers and {v:.2f}% of the parameters" for k, (n, v) in layers.items()
        )
        + f". The rates of ShortGPT and LaCo are shares of the parameters: {', '.join(map(str, parameters.values()))} layers",
        DEFINITION,
        f"At the highest rate the table compares {count} removed layers with {other}: not the same size of model.",
        cells_of(layers),
        headline=f"Table 6 counts its own pruning rate in layers and the others' in parameters: its {most.sparsity} are "
        f"{share:.2f} % of the parameters, against models that lost {max(n.value for n in parameters):g} %.",
    )


def _memory() -> Iterator[Finding]:
    """Reassessing, Table 7: the memory of a quantized model against the least that 4 bits can take."""
    rows = [n for n in reported.numbers("reassessing", "7") if n.column == "memory MB"]
    for number in rows:
        facts = model_registry.get(declare.MODELS[number.model]).facts
        left = facts["layers"] - declare.removed_layers(number)
        if "GPTQ" not in number.variant:
            continue
        least = left * (facts["layer_params"] - 2 * facts["hidden"]) / 2 / MIB
        if number.value >= least:
            continue
        full = next(n for n in rows if n is not number)
        rest = (2 * facts["vocab"] * facts["hidden"] + (2 * left + 1) * facts["hidden"]) * 2 / MIB
        said = next(n for n in reported.numbers("reassessing", "text") if "memory reduction" in n.column)
        yield Finding(
            "reassessing",
            "memory",
            place(number),
            f"{number.text} MB, {100 * (1 - number.value / full.value):.1f} % less than {full.text} MB",
            f"at least {least:.0f} MiB for the layers alone, {least + rest:.0f} MiB with embedding and head at 16 bits",
            f"{left} layers x {facts['layer_params'] - 2 * facts['hidden']} weights x 4 bits = {least:.2f} MiB",
            SLIP,
            f"The reduction can be {100 * (1 - (least + rest) / full.value):.0f} % at most, not {said.text} %.",
            cells_of([number]),
            headline=f"The 4-bit model's {number.text} MB (and the {said.text} % saved) are impossible: its weights alone "
            f"need {least:.0f} MiB, {least + rest:.0f} MiB with embedding and head.",
        )


def _sizes() -> Iterator[Finding]:
    """Reassessing, Table P: parameters that belong to a model of another name."""
    for number in reported.numbers("reassessing", "P"):
        if number.column != "# Parameters B" or number.method != "Dense" or number.model not in declare.MODELS:
            continue
        name = declare.MODELS[number.model]
        count = model_registry.get(name).facts["params"]
        generation = [re.findall(r"[\d.]*\d", label) for label in (number.model, name)]
        if agrees(number, count / 1e9, 0) and generation[0] != generation[1]:
            yield Finding(
                "reassessing",
                "share of parameters",
                place(number),
                f"{number.model} with {number.text} B",
                f"the parameters of {name}",
                f"{name}: {count:,} = {shown(count / 1e9, number)} B",
                SLIP,
                f"The row is about {name}, whatever its label says.",
                cells_of([number]),
            )


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
        cells_of([printed, *([] if printed is marked else [marked])]),
    )

"""Partial-layer fine-tuning with the frozen prefix kept, against computing it anew in every epoch.

    python benchmarks/finetuning.py [--rows 32] [--epochs 2] [--last 0 3] [--repeats 3]

The same rows, seed and settings on the toy model without its last five layers; the ways take turns, after one round that
warms up, and an epoch's seconds are the median over the rounds. Layer executions are counted. An epoch after the first
should cost k of the model's M layers: its executions fall to k / M, its time less so, for head, backward pass and optimiser
stay.
"""

from __future__ import annotations

import copy
import logging
import statistics
from dataclasses import dataclass

import torch
import transformers

from common.console.command_line import option, parse
from common.models import loading
from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.training import instructions
from common.training.finetuning import Settings, finetune
from common.utils.ratios import Ratio, hand_over

WAYS = ("off", "memory", "disk")


def run(model, tokenizer, rows, last: int, epochs: int, store: str) -> dict:
    """Return the report of one training of a copy of the model."""
    options = {"epochs": epochs, "batch": 8, "micro_batch": 4, "learning_rate": 1e-4, "warmup_steps": 2}
    settings = Settings(method="partial", last=last, store=store, **options)
    return finetune(copy.deepcopy(model), tokenizer, rows, settings=settings)[1]


@dataclass(kw_only=True)
class Options:
    """The command line."""

    rows: int = 32
    epochs: int = 2
    last: list[int] = option([0, 3])
    repeats: int = 3


def main() -> None:
    """Print executions, seconds and memory."""
    chosen = parse(Options, description=__doc__)
    torch.set_flush_denormal(True)
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    model, tokenizer = loading.load("standin")
    remove_layers(model, range(11, 16))
    layers = Decoder(model).num_layers
    rows, _ = instructions.load(tokenizer, "standin", count=chosen.rows, held_out=1)
    tokens = sum(len(row["input_ids"]) for row in rows)
    print(f"{len(rows)} rows, {tokens} tokens, {chosen.epochs} epochs, {torch.get_num_threads()} threads")
    for last in chosen.last:
        rounds = [
            {way: run(model, tokenizer, rows, last, chosen.epochs, way) for way in WAYS}
            for _ in range(chosen.repeats + 1)
        ][1:]
        reports = rounds[-1]
        for way, report in reports.items():
            for number, epoch in enumerate(report["epochs"]):
                epoch["seconds"] = statistics.median(one[way]["epochs"][number]["seconds"] for one in rounds)
        print(f"head, norm and last {last} of {layers} layers")
        for way, report in reports.items():
            first, later = report["epochs"][0], report["epochs"][-1]
            if way != "off":
                fresh = reports["off"]["epochs"][-1]
                what = f"partial fine-tuning, last {last} of {layers} layers, prefix kept in {way}: an epoch after the first"
                seconds, calls = later["seconds"], later["layer_executions"]
                measured = f"{seconds:.1f} s, {calls} layer executions"
                hand_over(Ratio(what, measured, seconds / fresh["seconds"], "the prefix computed anew"))
            apart = max(abs(a - b) for a, b in zip(report["losses"], reports["off"]["losses"]))
            print(
                f"  {way:7} layer executions {first['layer_executions']:4} then {later['layer_executions']:4}"
                f" ({later['layer_executions'] / first['layer_executions']:.2f}, k/M = {last / layers:.2f})"
                f"  seconds {first['seconds']:5.1f} then {later['seconds']:5.1f}"
                f" ({later['seconds'] / reports['off']['epochs'][-1]['seconds']:.2f} of computing anew)"
                f"  store {report['store']['bytes'] / 2**20:5.1f} MiB  losses apart {apart:.1e}"
            )


if __name__ == "__main__":
    main()

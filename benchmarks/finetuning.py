"""Partial-layer fine-tuning with the frozen prefix kept, against computing it anew: `python benchmarks/finetuning.py`.

The same rows, seed and settings on the toy model without its last five layers. An epoch's seconds are the median over the
rounds. An epoch after the first should cost k of the model's M layers: its executions fall to k / M, its time less so, for
head, backward pass and optimiser stay.
"""

import copy
import logging
import statistics

import torch
import transformers

from common.models import loading
from common.models.surgery import remove_layers
from common.training import instructions
from common.training.finetuning import Settings, finetune
from common.utils.ratios import Ratio, hand_over, in_turns

ROWS, REPEATS = 32, 3
OPTIONS = {"epochs": 2, "batch": 8, "micro_batch": 4, "learning_rate": 1e-4, "warmup_steps": 2}


def main() -> None:
    """Print the ratios."""
    torch.set_flush_denormal(True)
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    model, tokenizer = loading.load("standin")
    remove_layers(model, range(11, 16))
    rows, _ = instructions.load(tokenizer, "standin", count=ROWS, held_out=1)
    for last in (0, 3):
        epochs: dict[str, list[dict]] = {"off": [], "auto": []}

        def train(store: str, last=last, epochs=epochs) -> None:
            settings = Settings(method="partial", last=last, store=store, **OPTIONS)
            report = finetune(copy.deepcopy(model), tokenizer, rows, settings=settings)[1]
            assert report["store"]["kind"] == ("off" if store == "off" else "memory")
            epochs[store].append(report["epochs"][-1])

        in_turns({store: lambda store=store: train(store) for store in epochs}, REPEATS)  # noqa: B023
        seconds = {
            store: statistics.median(epoch["seconds"] for epoch in rounds[1:]) for store, rounds in epochs.items()
        }
        subject = f"partial fine-tuning, last {last} of 11 layers, prefix kept in memory: an epoch after the first"
        measured = f"{seconds['auto']:.1f} s, {epochs['auto'][-1]['layer_executions']} layer executions"
        hand_over(Ratio(subject, measured, seconds["auto"] / seconds["off"], "the prefix computed anew"))


if __name__ == "__main__":
    main()

r"""Post-train a collapsed checkpoint on one or several GPUs: the plain Trainer under `accelerate launch` (LaCo, appendix B).

    accelerate launch --config_file papers/laco/configs/zero2.yaml -m papers.laco.posttrain \
        --checkpoint collapsed/ --corpus c4-train --tokens 1000000000 --out trained/

The recipes of this repository train in one process with `common.training.finetuning`; this is the same training spread
over several. It continues from the newest checkpoint in --out. DeepSpeed is not in the lock file: `pip install deepspeed`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint

from common.calibration import corpora
from common.models import checkpoint, loading
from common.training.finetuning.memory import LARGE, sized
from common.training.finetuning.trainer import arguments
from common.utils.errors import UserError
from papers.laco import training


def stacked(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, Tensor]:
    """Rows of one length as a batch [rows, tokens]. Only here are ids widened: a corpus is held once, in 32 bits."""
    return {name: torch.from_numpy(np.stack([row[name] for row in rows])).long() for name in rows[0]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m papers.laco.posttrain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults, shown = training.settings(), "(default: %(default)s)"
    numbers = {
        "--tokens": (int, training.TOKENS["llama-2-7b"], "to read of the text"),
        "--length": (int, training.LENGTH, "tokens of a sequence"),
        "--batch": (int, defaults.batch, "sequences a step, on all GPUs together"),
        "--learning-rate": (float, defaults.learning_rate, "of Adam, at its highest"),
        "--save-every": (int, 500, "steps between checkpoints"),
    }
    parser.add_argument("--checkpoint", required=True, metavar="MODEL", help="directory or short name")
    parser.add_argument("--corpus", required=True, metavar="CORPUS", help="the text: a corpus's name, such as c4-train")
    for name, (kind, value, text) in numbers.items():
        parser.add_argument(name, type=kind, default=value, metavar="N", help=f"{text} {shown}")
    parser.add_argument(
        "--micro-batch",
        type=int,
        metavar="N",
        help=f"sequences at once, on each GPU (default: {defaults.micro_batch}; above {LARGE / 1e9:.0f} B parameters 1)",
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="for checkpoints; the trained model goes to DIR/model"
    )
    return parser


def train(options: argparse.Namespace) -> None:
    """Train as asked and save the model to --out/model.

    Raises:
        UserError: an unknown corpus or checkpoint, settings that do not fit, too little text for one sequence.
    """
    corpora.get(options.corpus)  # before the model is read
    changed = {name: getattr(options, name) for name in ("batch", "micro_batch", "learning_rate", "save_every")}
    settings = training.settings(**{name: value for name, value in changed.items() if value is not None})
    large = sized(settings, loading.parameters(options.checkpoint))
    settings = large if options.micro_batch is None else replace(large, micro_batch=settings.micro_batch)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args = arguments(settings, options.out, device, processes=processes, progress=sys.stderr.isatty())
    model, tokenizer = loading.load(options.checkpoint, dtype="float32")
    if settings.checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    blocks = training.text_blocks(
        tokenizer, corpora.texts(options.corpus), length=options.length, tokens=options.tokens, seed=settings.seed
    )
    trainer = Trainer(model, args=args, train_dataset=blocks, data_collator=stacked)
    newest = get_last_checkpoint(str(options.out)) if options.out.is_dir() else None
    trainer.train(resume_from_checkpoint=newest)
    if trainer.is_world_process_zero():
        checkpoint.save(trainer.accelerator.unwrap_model(trainer.model), tokenizer, options.out / "model")


def main(given: Sequence[str] | None = None) -> int:
    """Read the command line and train; returns the exit status."""
    try:
        train(_parser().parse_args(given))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

r"""Post-train a collapsed checkpoint on one or several GPUs: the plain Trainer under `accelerate launch` (LaCo, appendix B).

    accelerate launch --config_file papers/laco/configs/zero2.yaml -m papers.laco.posttrain \
        --checkpoint collapsed/ --corpus c4-train --tokens 1000000000 --out trained/

The recipes of this repository train in one process with `common.training.finetuning`; this is the same training spread
over several. It continues from the newest checkpoint in --out. DeepSpeed is not in the lock file: `pip install deepspeed`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common.console.command_line import answering, option, parse
from common.training.finetuning.memory import LARGE, sized
from papers.laco import training

if TYPE_CHECKING:
    from torch import Tensor


def stacked(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, Tensor]:
    """Return rows of equal length as a batch [rows, tokens].

    Ids are widened only here: the corpus stays in 32 bits.
    """
    import torch

    return {name: torch.from_numpy(np.stack([row[name] for row in rows])).long() for name in rows[0]}


DEFAULTS = training.settings()


@dataclass(kw_only=True)
class PostTrainingCommand:
    """The command line."""

    checkpoint: str = option(help="train this directory or registered model", metavar="MODEL")
    corpus: str = option(help="train on this corpus, such as c4-train", metavar="CORPUS")
    tokens: int = option(training.TOKENS["llama-2-7b"], "tokens to read of the text")
    length: int = option(training.LENGTH, "tokens of a sequence")
    batch: int = option(DEFAULTS.batch, "sequences a step, on all GPUs together")
    learning_rate: float = option(DEFAULTS.learning_rate, "highest learning rate of Adam")
    save_every: int = option(500, "steps between checkpoints")
    micro_batch: int | None = option(
        None, "sequences at once, on each GPU", usual=f"{DEFAULTS.micro_batch}; 1 above {LARGE / 1e9:.0f} B parameters"
    )
    out: Path = option(help="write checkpoints to DIR, and the trained model to DIR/model", metavar="DIR")


def train(options: PostTrainingCommand) -> None:
    """Train with the given options and save the model to --out/model.

    Raises:
        UserError: an unknown corpus or checkpoint, settings that do not fit, or too little text for one sequence.
    """
    import torch
    from transformers import Trainer

    from common.calibration import corpora
    from common.models import checkpoint, loading
    from common.training.finetuning.trainer import arguments

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
    trainer.train(resume_from_checkpoint=newest_checkpoint(options.out))
    if trainer.is_world_process_zero():
        checkpoint.save(trainer.accelerator.unwrap_model(trainer.model), tokenizer, options.out / "model")


def newest_checkpoint(out: Path) -> str | None:
    """Return the newest checkpoint that Trainer finished, of which its state is the last file; None if there is none."""
    from common.training.finetuning.state import TRAINER_STATE_NAME, step_of

    checkpoints = (path for path in out.glob("checkpoint-*") if path.name.rpartition("-")[2].isdigit())
    finished = [path for path in checkpoints if (path / TRAINER_STATE_NAME).exists()]
    return str(max(finished, key=step_of)) if finished else None


@answering
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    train(parse(PostTrainingCommand, arguments, prog="python -m papers.laco.posttrain", description=__doc__))
    return 0


if __name__ == "__main__":
    sys.exit(main())

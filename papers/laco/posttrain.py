"""Post-train a collapsed checkpoint on one or several GPUs: the plain Trainer under `accelerate launch` (LaCo, appendix B).

    accelerate launch --config_file papers/laco/configs/zero2.yaml -m papers.laco.posttrain \
        --checkpoint collapsed/ --corpus c4-train --tokens 1000000000 --out trained/

The recipes of this repository train in one process with `common.finetuning`; this is the same training spread over several.
It continues from the newest checkpoint in --out. DeepSpeed is not in the lock file: `pip install deepspeed`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments, default_data_collator
from transformers.trainer_utils import get_last_checkpoint

from common import checkpoint, corpora, models
from common.errors import UserError
from common.finetuning import Settings
from papers.laco import training


def arguments(settings: Settings, out: Path, processes: int, **options) -> TrainingArguments:
    """Appendix B as Trainer's arguments: `settings.batch` sequences a step, spread over `processes`.

    Raises:
        UserError: the batch cannot be spread evenly.
    """
    share = settings.micro_batch * processes
    if settings.batch % share:
        raise UserError(
            f"{settings.batch} sequences a step do not split into micro-batches of {settings.micro_batch} on {processes} "
            "processes; choose another --micro-batch"
        )
    return TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=settings.batch // share,
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        max_grad_norm=settings.clip,
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        save_steps=settings.save_every,
        save_total_limit=2,
        seed=settings.seed,
        data_seed=settings.seed,
        report_to="none",
        disable_tqdm=not os.isatty(2),
        **options,
    )


def main(given: Sequence[str] | None = None) -> None:
    """Read the command line, train, save the trained checkpoint to --out/model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="folder or registry name of the model to train")
    parser.add_argument("--corpus", required=True, choices=sorted(corpora.CORPORA), metavar="CORPUS")
    parser.add_argument("--tokens", type=int, default=training.TOKENS["llama-2-7b"])
    parser.add_argument("--length", type=int, default=training.LENGTH)
    parser.add_argument("--micro-batch", type=int, default=training.APPENDIX_B["micro_batch"], help="sequences per GPU")
    parser.add_argument("--batch", type=int, default=training.SEQUENCES_PER_STEP, help="sequences per step, all GPUs")
    parser.add_argument("--learning-rate", type=float, default=training.APPENDIX_B["learning_rate"])
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    parser.add_argument("--out", required=True, type=Path)
    wanted = parser.parse_args(given)
    settings = training.settings(
        batch=wanted.batch,
        micro_batch=wanted.micro_batch,
        learning_rate=wanted.learning_rate,
        save_every=wanted.save_every,
    )
    model, tokenizer = models.load(wanted.checkpoint, dtype="float32")
    blocks = training.text_blocks(
        tokenizer, corpora.texts(wanted.corpus), length=wanted.length, tokens=wanted.tokens, seed=settings.seed
    )
    rows = [{name: torch.as_tensor(block, dtype=torch.long) for name, block in row.items()} for row in blocks]
    processes = int(os.environ.get("WORLD_SIZE", 1))
    trainer = Trainer(
        model,
        args=arguments(settings, wanted.out, processes),
        train_dataset=rows,
        data_collator=default_data_collator,
    )
    newest = get_last_checkpoint(str(wanted.out)) if wanted.out.is_dir() else None
    trainer.train(resume_from_checkpoint=newest)
    if trainer.is_world_process_zero():
        checkpoint.save(trainer.accelerator.unwrap_model(trainer.model), tokenizer, wanted.out / "model")


if __name__ == "__main__":
    main()

"""Fine-tune a model by a training that can be killed and started again, and report on it."""

import json
import logging
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from common.models.decoder import Decoder
from common.training.finetuning import state
from common.training.finetuning.learner import Learner, checked, collate
from common.training.finetuning.memory import check_disk, sized
from common.training.finetuning.methods import attach, check_tuned_layers
from common.training.finetuning.prefix import with_states
from common.training.finetuning.settings import Settings
from common.training.finetuning.trainer import Diverged, TimedCheckpoints, TokenTrainer, arguments
from common.utils.peak_memory import peak_memory_bytes

log = logging.getLogger(__name__)


def finetune(
    model: nn.Module,
    tokenizer,
    train: Sequence[Mapping],
    valid: Sequence[Mapping] = (),
    settings: Settings | None = None,
    folder: Path | str | None = None,
    progress: bool = False,
) -> tuple[nn.Module, dict]:
    """Fine-tune a model in place by LoRA, QLoRA, partial or full training.

    ``train`` and the held-out ``valid`` are rows of input_ids and labels. ``folder`` is for checkpoints: an interrupted
    training continues there, a finished one is loaded. None keeps nothing.

    Returns:
        The model, plain and in eval mode, and a JSON-able report: status ('ok' or 'diverged', then with a reason and
        the last good state in the model), method, settings, steps, trainable and all parameters, peak_rate (the highest
        rate of a step), losses (one per step: mean over its predicted tokens), validation ([step, loss]), kept_step,
        seconds, peak_memory_bytes (of the GPU, else of the process since its start), epochs (layer_executions and
        seconds of training in each), store.

    Raises:
        UserError: bad rows, settings that do not fit the model, a folder with another training, or too little disk.
    """
    settings = settings or Settings()
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="finetuning-") as temporary:
            return finetune(model, tokenizer, train, valid, settings, temporary, progress)
    folder = Path(folder)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    train = checked(train, "training", vocabulary)
    valid = checked(valid, "validation", vocabulary) if len(valid) else ()
    parameters = sum(p.numel() for p in model.parameters())
    if settings.method == "partial":
        check_tuned_layers(Decoder(model).num_layers, settings.last, settings.first)  # before anything is written
    state.claim(folder, state.fingerprint(model, train, valid, settings))
    attached = attach(model, settings)
    try:
        learner = Learner(model, attached)
        if earlier := state.finished(folder):
            report = earlier[0]
            learner.load_state_dict(earlier[1])
            state.clear(folder)  # where a kill came between the result and this
        else:
            settings = sized(settings, parameters)
            rows = {"training": train, "validation": valid}
            with _checkpointed(model, settings):
                report = _train(learner, tokenizer, rows, settings, folder, progress)
            report["parameters"] = parameters
            state.finish(folder, learner.state_dict(), report)
    finally:
        attached.finish()
        model.eval()
    return model, report


@contextmanager
def _checkpointed(model: nn.Module, settings: Settings) -> Iterator[None]:
    """Recompute activations in the backward pass while the context is open, if the settings say so."""
    enabled = settings.checkpointing
    if enabled is None:
        enabled = settings.quantised and next(model.parameters()).is_cuda
    if enabled:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        if enabled:
            model.activation_checkpointing_disable()


def _train(learner: Learner, tokenizer, rows: dict, settings: Settings, folder: Path, progress) -> dict:
    """Train from the folder's last checkpoint to the end and leave the kept state in the model; returns the report."""
    started, device = time.perf_counter(), learner.decoder.device
    trainable = sum(parameter.numel() for parameter in learner.trained.values())
    args = arguments(settings, folder, device, validated=len(rows["validation"]) > 0)
    check_disk(folder, trainable, settings)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    data, executions, stored = _data(learner, rows, settings, args, progress)
    trainer = TokenTrainer(
        f"fine-tuning ({settings.method})",
        progress,
        started,
        model=learner,
        args=args,
        train_dataset=data["training"],
        eval_dataset=data["validation"] or None,
        data_collator=partial(collate, pad_id=getattr(tokenizer, "pad_token_id", None) or 0),
        callbacks=[TimedCheckpoints()],
    )
    checkpoint = state.last_checkpoint(folder)
    if checkpoint is None:
        trainer.save_model(str(folder / state.START))
    else:
        print(f"training continues from {checkpoint}", file=sys.stderr)
    result: dict = {"status": "ok"}
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except Diverged as stop:
        result = {"status": "diverged", "reason": str(stop)}
        log.warning("%s", stop)
    finally:
        trainer.close_bar()
    chosen = folder / f"checkpoint-{trainer.state.best_global_step or trainer.state.global_step}"
    if result["status"] == "diverged" and not chosen.exists():
        chosen = state.last_checkpoint(folder) or folder / state.START
    learner.load_state_dict(state.weights(chosen))
    return result | {
        "kept_step": state.step_of(chosen),
        "method": settings.method,
        "settings": json.loads(json.dumps(asdict(settings))),
        "trainable": trainable,
        **trainer.summary(executions),
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory_bytes(),
        "store": {"kind": "memory" if stored else "off", "bytes": stored},
    }


def _data(learner: Learner, rows: dict, settings: Settings, args, progress: bool) -> tuple[dict, int, int]:
    """Return the parts of the data; the layer executions that the training data's states took; the bytes of all states.

    Parts that are needed more than once come with the outputs of the frozen layers, where they fit into memory.
    """
    steps = math.ceil(len(rows["training"]) / settings.batch)
    epochs = settings.epochs if settings.max_steps is None else settings.max_steps / steps
    times = {"training": epochs, "validation": math.ceil(epochs * steps / settings.evaluate_every)}
    kind = args.fp16 and torch.float16 or args.bf16 and torch.bfloat16 or None

    @torch.no_grad()
    def run(batch: Mapping[str, Tensor]) -> Tensor:
        mask, device = batch["attention_mask"], learner.decoder.device
        with torch.autocast(device.type, kind, enabled=kind is not None):
            return learner.prefix(batch["input_ids"].to(device), None if mask.all() else mask.to(device))

    learner.eval()
    parts, executions, stored, before = {}, 0, 0, learner.decoder.executions
    for name, part in rows.items():
        if learner.boundary and settings.store != "off" and len(part) and times[name] > 1:
            part, size = with_states(part, run, batch=settings.micro_batch, progress=progress)
            stored += size
        parts[name] = part
        if name == "training":
            executions = learner.decoder.executions - before
    return parts, executions, stored

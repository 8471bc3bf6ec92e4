"""`finetune`: a training that can be killed and started again, and what is known of it afterwards."""

from __future__ import annotations

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
from torch import nn
from transformers.trainer_callback import PrinterCallback

from common.models.decoder import Decoder
from common.training.finetuning import state
from common.training.finetuning.learner import Learner, Rows, checked, collate
from common.training.finetuning.memory import check_disk, sized
from common.training.finetuning.methods import Attached, attach, check_layers
from common.training.finetuning.prefix import FrozenPrefix
from common.training.finetuning.settings import Settings
from common.training.finetuning.trainer import Diverged, ParameterTrainer, Watch, arguments
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
    store_dtype: torch.dtype | None = None,
) -> tuple[nn.Module, dict]:
    """Train ``model`` in place and return it, plain and in eval mode, with a JSON-able report.

    train, valid: rows of input_ids and labels. folder: where checkpoints go; a training killed there continues, a finished
    one is loaded. None keeps nothing. store_dtype: of the frozen layers' outputs between epochs; None: as computed.

    The report: status ('ok' or 'diverged', then with a reason and the last good state in the model), method, settings,
    steps, trainable and all parameters, peak_rate (the highest that a step was taken with), losses (one per step: mean over
    its predicted tokens), validation ([step, loss]), kept_step, seconds, peak_memory_bytes (of the GPU, else of the process
    since its start), epochs (layer_executions and seconds of training in each), validation_layer_executions, store.

    Raises UserError for bad rows, settings that do not fit the model, a folder with another training, or too little disk.
    """
    settings = settings or Settings()
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="finetuning-") as temporary:
            return finetune(model, tokenizer, train, valid, settings, temporary, progress, store_dtype)
    folder = Path(folder)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    train = checked(train, "training", vocabulary)
    valid = checked(valid, "validation", vocabulary) if len(valid) else ()
    total = sum(p.numel() for p in model.parameters())
    if settings.method == "partial":
        check_layers(Decoder(model).num_layers, settings.last, settings.first)  # before anything is written
    plan = state.fingerprint(model, train, valid, settings)
    state.claim(folder, plan)
    state.check(folder)
    attached = attach(model, settings)
    try:
        report = state.finished(folder)
        if report is not None:
            state.restore(attached.parameters, folder / state.TRAINED)
        else:
            settings = sized(settings, total)
            reserved = check_disk(folder, sum(p.numel() for p in attached.parameters.values()), settings)
            with _checkpointed(model, settings):
                store = _store(train, valid, settings, attached.boundary, folder, store_dtype, reserved)
                session = _Session(model, tokenizer, train, valid, settings, attached, folder, store, progress)
                report = session.run() | {"parameters": total}
            state.finish(folder, attached.parameters, report)
    finally:
        attached.finish()
        model.eval()
    return model, report


@contextmanager
def _checkpointed(model: nn.Module, settings: Settings) -> Iterator[None]:
    """Activations are recomputed in the backward pass inside, if the settings say so."""
    wanted = settings.checkpointing
    if wanted is None:
        wanted = settings.quantised and next(model.parameters()).is_cuda
    if wanted:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        if wanted:
            model.activation_checkpointing_disable()


class _Session:
    """One training from its folder's state to its end."""

    def __init__(
        self, model, tokenizer, train, valid, settings: Settings, attached: Attached, folder, store, progress
    ) -> None:
        self.settings, self.parameters, self.folder = settings, attached.parameters, folder
        self.store = store
        self.learner = Learner(model, attached.boundary, self.store)
        pad = getattr(tokenizer, "pad_token_id", None) or 0
        self.trainer = ParameterTrainer(
            self,
            model=self.learner,
            args=arguments(settings, folder, self.learner.decoder.device, validated=len(valid) > 0),
            train_dataset=Rows(train),
            eval_dataset=Rows(valid, len(train)) if len(valid) else None,
            data_collator=partial(collate, pad_id=pad),
        )
        self.trainer.remove_callback(PrinterCallback)  # it prints to stdout, which is for results
        self.trainer.add_callback(Watch(self, progress))
        self.spent, self.started = 0.0, time.perf_counter()
        self.epochs: list[dict] = []

    @property
    def seconds(self) -> float:
        """Spent on this training, earlier sessions included."""
        return self.spent + time.perf_counter() - self.started

    def run(self) -> dict:
        """Train to the end and leave the kept state in the model; returns the report."""
        checkpoint = state.last_checkpoint(self.folder)
        parameters, device = self.parameters, self.learner.decoder.device
        if checkpoint is None:
            state.save(parameters, self.folder / state.START)
        else:
            print(f"training goes on from {checkpoint}", file=sys.stderr)
            earlier = json.loads((checkpoint / state.PROGRESS).read_text())
            self.spent, self.epochs = earlier["seconds"], earlier["epochs"]
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        result = {"status": "ok"}
        try:
            self.trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except Diverged as stop:
            result = {"status": "diverged", "reason": str(stop)}
            log.warning("%s", stop)
        finally:
            self.store.close()
        result["kept_step"] = self._keep(result["status"] == "ok")
        history = self.trainer.state.log_history
        return result | {
            "method": self.settings.method,
            "settings": json.loads(json.dumps(asdict(self.settings))),
            "steps": self.trainer.state.global_step,
            "trainable": sum(p.numel() for p in parameters.values()),
            "peak_rate": _peak_rate(history),
            "losses": [entry["loss"] for entry in history if "loss" in entry],
            "validation": [[entry["step"], entry["eval_loss"]] for entry in history if "eval_loss" in entry],
            "seconds": self.seconds,
            "peak_memory_bytes": torch.cuda.max_memory_allocated(device)
            if device.type == "cuda"
            else peak_memory_bytes(),
            "epochs": self.epochs,
            "validation_layer_executions": self.learner.executions["validation"],
            "store": self.store.describe(),
        }

    def _keep(self, complete: bool) -> int:
        """Put the state to keep into the parameters; returns its step."""
        best, parameters = state.best_loss(self.folder), self.parameters
        if self.settings.keeps_best and best is not None:
            state.restore(parameters, self.folder / state.BEST)
            return best[1]
        if complete:
            return self.trainer.state.global_step
        checkpoint = state.last_checkpoint(self.folder)
        if checkpoint is None:
            state.restore(parameters, self.folder / state.START)
            return 0
        state.restore(parameters, checkpoint / state.WEIGHTS)
        return int(checkpoint.name.rpartition("-")[2])


def _peak_rate(history: list[dict]) -> float:
    """Of Trainer's log, which has the rate of each step; the first step's is 0 where there is a warm-up."""
    return max((entry["learning_rate"] for entry in history if "learning_rate" in entry), default=0.0)


def _store(train, valid, settings: Settings, boundary: int, folder: Path, dtype, reserved: int) -> FrozenPrefix:
    """Room for the rows whose frozen layers would run more than once."""
    if not boundary:
        return FrozenPrefix([], [], "off", folder)
    steps_per_epoch = math.ceil(len(train) / settings.batch)
    epochs = settings.epochs if settings.max_steps is None else settings.max_steps / steps_per_epoch
    validations = math.ceil(epochs * steps_per_epoch / settings.evaluate_every)
    wanted = [epochs > 1] * len(train) + [validations > 1] * len(valid)
    lengths = [len(row["input_ids"]) for rows in (train, valid) for row in rows]
    return FrozenPrefix(lengths, wanted, settings.store, folder, dtype, reserved)

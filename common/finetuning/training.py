"""`finetune`: Hugging Face's Trainer, with checkpoints of what trains alone, resumption, and a stop at non-finite numbers."""

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
from tqdm import tqdm
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from common.finetuning import state
from common.finetuning.learner import Learner, Rows, checked, collate
from common.finetuning.methods import Attached, attach
from common.finetuning.prefix import FrozenPrefix
from common.finetuning.settings import Settings
from common.results import peak_memory_bytes

log = logging.getLogger(__name__)


class Diverged(Exception):
    """A loss or a gradient was not finite; the parameters have not taken the step."""


def finetune(
    model: nn.Module,
    tokenizer,
    train: Sequence[Mapping],
    valid: Sequence[Mapping] = (),
    settings: Settings | None = None,
    folder: Path | str | None = None,
    progress: bool = False,
) -> tuple[nn.Module, dict]:
    """Train ``model`` in place and return it, plain and in eval mode, with a JSON-able report.

    train, valid: rows of input_ids and labels. folder: where checkpoints go; a training killed there continues, a finished
    one is loaded. None keeps nothing.

    The report: status ('ok' or 'diverged', then with a reason and the last good state in the model), method, settings,
    steps, trainable and all parameters, losses (one per step: mean over its predicted tokens), validation ([step, loss]),
    kept_step, seconds, peak_memory_bytes (of the GPU, else of the process since its start), epochs (layer_executions and
    seconds of training in each), validation_layer_executions, store.

    Raises UserError for bad rows, settings that do not fit the model, or a folder with another training.
    """
    settings = settings or Settings()
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="finetuning-") as temporary:
            return finetune(model, tokenizer, train, valid, settings, temporary, progress)
    folder = Path(folder)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    train = checked(train, "training", vocabulary)
    valid = checked(valid, "validation", vocabulary) if len(valid) else ()
    total = sum(p.numel() for p in model.parameters())
    plan = state.fingerprint(model, train, valid, settings)
    state.claim(folder, plan)
    attached = attach(model, settings)
    try:
        report = state.finished(folder)
        if report is not None:
            state.restore(attached.parameters, folder / state.TRAINED)
        else:
            with _checkpointed(model, settings):
                session = _Session(model, tokenizer, train, valid, settings, attached, folder, progress)
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
        self, model, tokenizer, train, valid, settings: Settings, attached: Attached, folder, progress
    ) -> None:
        self.settings, self.attached, self.folder = settings, attached, folder
        self.store = _store(train, valid, settings, attached.boundary, folder)
        self.learner = Learner(model, attached.boundary, self.store)
        pad = getattr(tokenizer, "pad_token_id", None) or 0
        self.trainer = _Trainer(
            self,
            model=self.learner,
            args=_arguments(settings, folder, len(valid) > 0, self.learner.decoder.device),
            train_dataset=Rows(train),
            eval_dataset=Rows(valid, len(train)) if len(valid) else None,
            data_collator=partial(collate, pad_id=pad),
        )
        self.trainer.remove_callback(PrinterCallback)  # it prints to stdout, which is for results
        self.trainer.add_callback(_Watch(self, progress and sys.stderr.isatty()))
        self.spent, self.started = 0.0, time.perf_counter()
        self.epochs: list[dict] = []

    @property
    def seconds(self) -> float:
        """Spent on this training, earlier sessions included."""
        return self.spent + time.perf_counter() - self.started

    def run(self) -> dict:
        """Train to the end and leave the kept state in the model; returns the report."""
        checkpoint = state.last_checkpoint(self.folder)
        parameters, device = self.attached.parameters, self.learner.decoder.device
        if checkpoint is None:
            state.save(parameters, self.folder / state.START)
        else:
            log.info("continuing from %s", checkpoint.name)
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
        best, parameters = state.best_loss(self.folder), self.attached.parameters
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


class _Trainer(Trainer):
    """Trainer that saves and restores the trained parameters alone, and stops at what is not finite."""

    def __init__(self, session: _Session, **options) -> None:
        self.session = session
        super().__init__(**options)

    def training_step(self, model, inputs, num_items_in_batch=None):
        epochs, executions = self.session.epochs, self.session.learner.executions
        while len(epochs) <= int(self.state.epoch or 0):
            epochs.append({"layer_executions": 0, "seconds": 0.0})
        started, before = time.perf_counter(), executions["train"]
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not math.isfinite(loss.item()):
            raise Diverged(
                f"the loss is {loss.item()} in step {self.state.global_step + 1}; the last good state is kept"
            )
        epochs[-1]["layer_executions"] += executions["train"] - before
        epochs[-1]["seconds"] += time.perf_counter() - started
        return loss

    @torch.no_grad()
    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """Mean loss over all predicted tokens of the validation rows; keeps the best state."""
        self.session.learner.eval()
        total, count = 0.0, 0
        for batch in self.get_eval_dataloader():
            batch = self._prepare_inputs(batch)
            items = int((batch["labels"][:, 1:] != -100).sum())
            with self.compute_loss_context_manager():
                total += self.model_wrapped(**batch)["loss"].item() * items
            count += items
        metrics = {"eval_loss": total / count}
        if not math.isfinite(metrics["eval_loss"]):
            raise Diverged(f"the validation loss is {total / count} after step {self.state.global_step}")
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        step = self.state.global_step
        if step % self.args.save_steps == 0 or step == self.state.max_steps:
            best = state.best_loss(self.session.folder)
            if self.session.settings.keeps_best and (best is None or metrics["eval_loss"] < best[0]):
                metadata = {"loss": repr(metrics["eval_loss"]), "step": str(step)}
                state.save(self.session.attached.parameters, self.session.folder / state.BEST, metadata)
        return metrics

    def _save(self, output_dir=None, state_dict=None):
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        state.save(self.session.attached.parameters, folder / state.WEIGHTS)

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        folder = self.session.folder / f"checkpoint-{self.state.global_step}"
        if folder.exists():
            state.write(folder / state.PROGRESS, {"seconds": self.session.seconds, "epochs": self.session.epochs})

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        state.restore(self.session.attached.parameters, Path(resume_from_checkpoint) / state.WEIGHTS)


class _Watch(TrainerCallback):
    """Progress for someone who looks on, and a stop before a step that is not finite."""

    def __init__(self, session: _Session, visible: bool) -> None:
        self.session, self.visible, self.bar = session, visible, None

    def on_train_begin(self, args, trainer_state, control, **unused):
        name = f"fine-tuning ({self.session.settings.method})"
        step, steps = trainer_state.global_step, trainer_state.max_steps
        self.bar = tqdm(desc=name, unit="step", initial=step, total=steps, disable=not self.visible)

    def on_pre_optimizer_step(self, args, trainer_state, control, **unused):
        if args.fp16:  # the loss scaler leaves such a step out and lowers its scale
            return
        for name, parameter in self.session.attached.parameters.items():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                step = trainer_state.global_step + 1
                raise Diverged(f"the gradient of {name} is not finite in step {step}; the last good state is kept")

    def on_step_end(self, args, trainer_state, control, **unused):
        self.bar.update()

    def on_train_end(self, args, trainer_state, control, **unused):
        self.bar.close()


def _store(train, valid, settings: Settings, boundary: int, folder: Path) -> FrozenPrefix:
    """Room for the rows whose frozen layers would run more than once."""
    if not boundary:
        return FrozenPrefix([], [], "off", folder)
    steps_per_epoch = math.ceil(len(train) / settings.batch)
    epochs = settings.epochs if settings.max_steps is None else settings.max_steps / steps_per_epoch
    validations = math.ceil(epochs * steps_per_epoch / settings.evaluate_every)
    wanted = [epochs > 1] * len(train) + [validations > 1] * len(valid)
    lengths = [len(row["input_ids"]) for rows in (train, valid) for row in rows]
    return FrozenPrefix(lengths, wanted, settings.store, folder)


def _arguments(settings: Settings, folder: Path, validated: bool, device: torch.device) -> TrainingArguments:
    gpu = device.type == "cuda"
    optimizer = settings.optimizer or ("paged-adamw-8bit" if settings.quantised else "adamw")
    names = {"adamw": "adamw_torch", "paged-adamw-8bit": "paged_adamw_8bit" if gpu else "adamw_8bit"}
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=settings.micro_batch,
        per_device_eval_batch_size=settings.micro_batch,
        gradient_accumulation_steps=settings.batch // settings.micro_batch,
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_epsilon=settings.epsilon,
        max_grad_norm=settings.clip,
        optim=names[optimizer],
        fp16=gpu and settings.autocast == "float16",
        bf16=gpu and settings.autocast == "bfloat16",
        eval_strategy="steps" if validated else "no",
        eval_steps=settings.evaluate_every,
        save_strategy="steps",
        save_steps=settings.save_every,
        save_total_limit=2,  # the older one must stand until the newer is complete
        logging_steps=1,
        logging_nan_inf_filter=False,
        seed=settings.seed,
        data_seed=settings.seed,
        use_cpu=not gpu,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=gpu,
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # several GPUs hold parts of one model (device "auto"), never copies of it
    return arguments

"""Hugging Face's Trainer, with checkpoints of what trains alone, and a stop at what is not finite."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Protocol

import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import TrainerCallback

from common.training.finetuning import state
from common.training.finetuning.learner import IGNORE, Learner
from common.training.finetuning.settings import Settings
from common.utils.errors import UserError
from common.utils.progress import track


class Session(Protocol):
    """What the trainer knows of the training it belongs to. seconds, epochs: so far, earlier processes included."""

    settings: Settings
    parameters: dict[str, nn.Parameter]
    learner: Learner
    folder: Path
    seconds: float
    epochs: list[dict]


class Diverged(Exception):
    """A loss or a gradient was not finite; the parameters have not taken the step."""


class ParameterTrainer(Trainer):
    """Trainer that saves and restores the trained parameters alone, and stops at what is not finite."""

    def __init__(self, session: Session, **options) -> None:
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
            items = int((batch["labels"][:, 1:] != IGNORE).sum())
            with self.compute_loss_context_manager():
                total += self.model_wrapped(**batch)["loss"].item() * items
            count += items
        step, metrics = self.state.global_step, {"eval_loss": total / count}
        if not math.isfinite(metrics["eval_loss"]):
            raise Diverged(f"the validation loss is {total / count} after step {step}; the last good state is kept")
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if step % self.args.save_steps == 0 or step == self.state.max_steps:
            best = state.best_loss(self.session.folder)
            if self.session.settings.keeps_best and (best is None or metrics["eval_loss"] < best[0]):
                metadata = {"loss": repr(metrics["eval_loss"]), "step": str(step)}
                state.save(self.session.parameters, self.session.folder / state.BEST, metadata)
        return metrics

    def _save(self, output_dir=None, state_dict=None):
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        state.save(self.session.parameters, folder / state.WEIGHTS)

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        folder = self.session.folder / f"checkpoint-{self.state.global_step}"
        if folder.exists():
            state.write(folder / state.PROGRESS, {"seconds": self.session.seconds, "epochs": self.session.epochs})

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        state.restore(self.session.parameters, Path(resume_from_checkpoint) / state.WEIGHTS)


class Watch(TrainerCallback):
    """Progress for someone who looks on, and a stop before a step that is not finite."""

    def __init__(self, session: Session, visible: bool) -> None:
        self.session, self.visible, self.bar = session, visible, None

    def on_train_begin(self, args, trainer_state, control, **unused):
        name = f"fine-tuning ({self.session.settings.method})"
        step, steps = trainer_state.global_step, trainer_state.max_steps
        self.bar = track(None, name, initial=step, total=steps, shown=self.visible)

    def on_pre_optimizer_step(self, args, trainer_state, control, **unused):
        if args.fp16:  # the loss scaler leaves such a step out and lowers its scale
            return
        for name, parameter in self.session.parameters.items():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                step = trainer_state.global_step + 1
                raise Diverged(f"the gradient of {name} is not finite in step {step}; the last good state is kept")

    def on_step_end(self, args, trainer_state, control, **unused):
        self.bar.update()

    def on_log(self, args, trainer_state, control, logs=None, **unused):
        if "loss" in (logs or {}):
            self.bar.note(f"loss {logs['loss']:.4f}")

    def on_train_end(self, args, trainer_state, control, **unused):
        self.bar.close()


def arguments(
    settings: Settings,
    folder: Path,
    device: torch.device,
    *,
    validated: bool = False,
    processes: int = 1,
    progress: bool = False,
) -> TrainingArguments:
    """Trainer's own names for the settings, on this device.

    validated: whether there are validation rows. processes: how many share a step's rows (one GPU each). progress: show
    Trainer's own bar.

    Raises:
        UserError: the rows of a step cannot be shared evenly.
    """
    share = settings.micro_batch * processes
    if settings.batch % share:
        raise UserError(
            f"{settings.batch} rows a step do not split into micro-batches of {settings.micro_batch} on {processes} "
            f"processes; use micro-batches that make {settings.batch} a multiple of {processes} times their size"
        )
    gpu = device.type == "cuda"
    # fused: the unfused one holds four bytes more of each trained parameter while it steps
    names = {
        "adamw": "adamw_torch_fused" if gpu else "adamw_torch",
        "paged-adamw-8bit": "paged_adamw_8bit" if gpu else "adamw_8bit",
    }
    made = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=settings.micro_batch,
        per_device_eval_batch_size=settings.micro_batch,
        gradient_accumulation_steps=settings.batch // share,
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
        optim=names[settings.optimizer_used],
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
        disable_tqdm=not progress,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=gpu,
    )
    if made.n_gpu > 1:
        made._n_gpu = 1  # several GPUs hold parts of one model (device "auto"), never copies of it
    return made

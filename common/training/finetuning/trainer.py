"""Hugging Face's Trainer with a loss over tokens, a stop at non-finite losses, and a count of each step's cost.

Checkpoints, resuming, batch order, schedules and the choice of the best state are Trainer's.
"""

import math
import time
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from common.console.progress import track
from common.training.checkpoint_clock import CheckpointClock
from common.training.finetuning.learner import IGNORE
from common.training.finetuning.settings import Settings
from common.utils.errors import UserError


class Diverged(Exception):
    """A loss or a gradient was not finite."""


class TimedCheckpoints(TrainerCallback):
    """Write checkpoints by time, too. For one process: several would have to agree on the moment."""

    def __init__(self) -> None:
        self.clock, self.step_ended = CheckpointClock(), 0.0

    def on_step_end(self, args, state, control, **unused) -> None:
        """Ask for a checkpoint after this step if one is due."""
        self.step_ended = time.monotonic()
        control.should_save = control.should_save or self.clock.due()

    def on_save(self, args, state, control, **unused) -> None:
        """Start to count anew."""
        self.clock.complete(self.step_ended)


class TokenTrainer(Trainer):
    """Trainer of a `common.training.finetuning.learner.Learner`.

    Every entry of the log also has the seconds and the layer executions since the previous one; the first counts from
    ``started``.
    """

    def __init__(self, label: str, progress: bool, started: float, **options) -> None:
        super().__init__(**options)
        self.remove_callback(PrinterCallback)  # it prints to stdout, which is for results
        self.label, self.progress, self.bar = label, progress, None
        self.logged, self.counted = started, self.model.decoder.executions

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log to the progress bar."""
        step = self.state.global_step
        for name, shown in (("loss", "loss"), ("eval_loss", "validation loss"), ("grad_norm", "gradient's norm")):
            scaled = name == "grad_norm" and self.args.fp16  # the loss scaler leaves such a step out
            if not math.isfinite(logs.get(name, 0.0)) and not scaled:
                raise Diverged(f"the {shown} is {logs[name]} in step {step}; the last good state is kept")
        now, count = time.perf_counter(), self.model.decoder.executions
        super().log(logs | {"seconds": now - self.logged, "layer_executions": count - self.counted}, start_time)
        self.logged, self.counted = now, count
        if "loss" in logs:
            if self.bar is None:
                self.bar = track(None, self.label, initial=step - 1, total=self.state.max_steps, shown=self.progress)
            self.bar.note(f"loss {logs['loss']:.4f}")
            self.bar.update()

    def close_bar(self) -> None:
        """Close the progress bar."""
        if self.bar is not None:
            self.bar.close()

    def summary(self, before: int) -> dict:
        """Return the log's facts for a report, including those of earlier processes (`common.training.finetuning.finetune`).

        ``before`` is the number of layer executions before the first step.
        """
        steps = [entry for entry in self.state.log_history if "loss" in entry]
        epochs = [{"layer_executions": 0, "seconds": 0.0} for _ in range(math.ceil(steps[-1]["epoch"]) if steps else 0)]
        for entry in steps:
            epoch = epochs[math.ceil(entry["epoch"]) - 1]
            epoch |= {name: value + entry[name] for name, value in epoch.items()}
        if epochs:
            epochs[0]["layer_executions"] += before
        return {
            "steps": self.state.global_step,
            "peak_rate": max((entry["learning_rate"] for entry in steps), default=0.0),
            "losses": [entry["loss"] for entry in steps],
            "validation": [[e["step"], e["eval_loss"]] for e in self.state.log_history if "eval_loss" in e],
            "seconds": sum(entry["seconds"] for entry in self.state.log_history),
            "epochs": epochs,
        }

    @torch.no_grad()
    def evaluate(self, *unused, **options) -> dict[str, float]:
        """Return and log the mean loss over all predicted tokens of the validation rows (Trainer's mean is over batches)."""
        self.model.eval()
        total, count = 0.0, 0
        for batch in self.get_eval_dataloader():
            batch = self._prepare_inputs(batch)
            items = int((batch["labels"][:, 1:] != IGNORE).sum())
            total, count = total + self.model_wrapped(**batch)["loss"].item() * items, count + items
        metrics = {"eval_loss": total / count}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        """Consider only states that are saved, because only these can be restored; Trainer counts all."""
        step = self.state.global_step
        saved = step % self.args.save_steps == 0 or step == self.state.max_steps
        return saved and super()._determine_best_metric(metrics, trial)


def arguments(
    settings: Settings,
    folder: Path,
    device: torch.device,
    *,
    validated: bool = False,
    processes: int = 1,
    progress: bool = False,
) -> TrainingArguments:
    """Translate settings into the arguments of transformers' Trainer, which keeps its checkpoints in ``folder``.

    ``validated``: there are validation rows. ``processes`` share a step's rows (one GPU each). ``progress``: Trainer's
    own bar is shown.

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
    args = TrainingArguments(
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
        metric_for_best_model="eval_loss" if validated and settings.keeps_best else None,
        greater_is_better=False,
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
    if args.n_gpu > 1:
        args._n_gpu = 1  # several GPUs hold parts of one model (device "auto"), never copies of it
    return args

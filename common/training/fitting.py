"""A training loop for the few parameters that repair a pruned model; it can be killed at any moment.

`fit` knows no model: it takes named parameters and a function from sample numbers to a loss. Killed and started again
with the same folder, it ends with the same weights as an uninterrupted run: on a CPU bit for bit, on a GPU as closely
as two uninterrupted runs (its sums have no fixed order). A loss that is not finite stops it, and the parameters are
restored to the last ones whose loss was finite: a result, not an error. transformers' Trainer, which fine-tuning uses,
cannot revert such a step, and it scales losses only under autocast.
"""

import hashlib
import json
import math
import os
import pickle
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from common.console.progress import track
from common.training.checkpoint_clock import CheckpointClock
from common.utils import atomic_files
from common.utils.errors import UserError, UserValueError, unknown

CHECKPOINT = "fit.pt"
ORDERS = ("sequential", "shuffled")


@dataclass(frozen=True)
class Fitting:
    """Settings of a training by AdamW; the defaults are those of LinearPatch's official scripts.

    The learning rate follows a cosine per step from `learning_rate` to `final_share` of it.

    Attributes:
        warmup_share: Share of the steps over which the rate rises linearly to `learning_rate`.
        clip: Largest norm of gradients, None for no clipping.
        batch_size: Samples per backward pass.
        accumulate: Backward passes per optimizer step.
        order: 'sequential', or 'shuffled' in every epoch.
        seed: Seed of the shuffles.
        loss_scaling: Scale the loss against underflow of float16 gradients (steps that overflow are left out).
        save_every: Steps between checkpoints; long steps have more of them (`common.training.checkpoint_clock`).
    """

    learning_rate: float = 1e-4
    final_share: float = 0.05
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    warmup_share: float = 0.0
    clip: float | None = None
    batch_size: int = 1
    accumulate: int = 1
    epochs: int = 1
    order: str = "sequential"
    seed: int = 0
    loss_scaling: bool = False
    save_every: int = 250

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise unknown("order", self.order, ORDERS)
        for name in ("learning_rate", "batch_size", "accumulate", "epochs", "save_every"):
            if getattr(self, name) <= 0:
                raise UserValueError(f"{name} must be positive, not {getattr(self, name)}")

    def steps(self, samples: int) -> int:
        """Return the number of optimizer steps for `samples` samples, over all epochs."""
        return self.epochs * math.ceil(samples / (self.batch_size * self.accumulate))

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of step `step` of `steps` (0-based)."""
        warm = self.warmup_share * steps
        if step < warm:
            return self.learning_rate * min(1.0, (step + 1) / warm)
        cosine = (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2
        return self.learning_rate * (self.final_share + (1 - self.final_share) * cosine)

    def batches(self, epoch: int, samples: int) -> list[list[int]]:
        """Return the sample numbers of every step of one epoch."""
        order = list(range(samples))
        if self.order == "shuffled":
            order = torch.randperm(samples, generator=torch.Generator().manual_seed(self.seed + epoch)).tolist()
        size = self.batch_size * self.accumulate
        return [order[start : start + size] for start in range(0, samples, size)]


def fit(
    parameters: Mapping[str, nn.Parameter],
    loss: Callable[[Sequence[int]], Tensor],
    samples: int,
    how: Fitting = Fitting(),
    *,
    identity: Mapping | None = None,
    folder: str | os.PathLike | None = None,
    counter: Callable[[], int] | None = None,
    progress: bool = False,
) -> dict:
    """Train `parameters` in place on a loss.

    ``loss`` is a function from sample numbers below ``samples`` to the mean loss over these. ``identity`` holds JSON-able
    facts that also decide the result; a checkpoint in ``folder`` with other facts is refused. ``counter`` returns a running
    count (layer executions), whose growth over the training is reported.

    Returns:
        {"status", "losses", "steps", "planned_steps", "seconds", "executions"}. status is 'finished' or 'diverged'
        (then `reason` names the step). losses has one entry per step; seconds and executions include earlier runs of
        the same training.

    Raises:
        UserError: the folder holds another training, or there is no sample.
    """
    if not samples:
        raise UserValueError("there is nothing to train on: no samples")
    run = _Run(dict(parameters), how, samples, identity or {}, folder, counter)
    if run.report["status"] == "running":
        run.train(loss, progress)
    return run.report


class _Run:
    """One training: parameters, optimizer, report, and their checkpoint."""

    def __init__(self, parameters, how, samples, identity, folder, counter):
        self.parameters, self.how, self.samples, self.counter = parameters, how, samples, counter
        self.folder = None if folder is None else Path(folder)
        self.identity = _digest(
            {**identity, "fitting": asdict(replace(how, save_every=1)), "samples": samples}
            | {"parameters": {name: list(value.shape) for name, value in parameters.items()}}
        )
        self.optimizer = torch.optim.AdamW(
            parameters.values(), lr=how.learning_rate, betas=how.betas, weight_decay=how.weight_decay
        )
        device = next(iter(parameters.values())).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=how.loss_scaling)
        self.good = {name: value.detach().clone() for name, value in parameters.items()}
        steps = how.steps(samples)
        self.report = {"status": "running", "losses": [], "steps": 0, "planned_steps": steps}
        self.report |= {"seconds": 0.0, "executions": 0}
        self._load()

    def train(self, loss, progress: bool) -> None:
        how, report = self.how, self.report
        first, started = report["steps"], time.perf_counter()
        before, counted = dict(report), self.counter() if self.counter else 0
        batches = [batch for epoch in range(how.epochs) for batch in how.batches(epoch, self.samples)]
        if first and progress:
            print(
                f"training continues from {self.folder}: {first:,} of {len(batches):,} steps were done", file=sys.stderr
            )
        clock = CheckpointClock()
        steps = track(range(first, len(batches)), "training", total=len(batches), initial=first, shown=progress)
        for step in steps:
            problem = self._step(step, batches[step], loss)
            report["seconds"] = before["seconds"] + time.perf_counter() - started
            report["executions"] = before["executions"] + (self.counter() - counted if self.counter else 0)
            if problem:
                report |= {"status": "diverged", "reason": problem}
                break
            report["steps"] = step + 1
            steps.note(f"loss {report['losses'][-1]:.4f}")
            if report["steps"] % how.save_every == 0 or clock.due():
                begun = time.monotonic()
                self._save()
                clock.complete(begun)
        else:
            report["status"] = "finished"
        self._save()

    def _step(self, step: int, batch: list[int], loss) -> str | None:
        """Make one optimizer step; return the problem if the loss or a gradient is not finite."""
        how, total = self.how, 0.0
        for start in range(0, len(batch), how.batch_size):
            part = batch[start : start + how.batch_size]
            value = loss(part)
            self.scaler.scale(value * (len(part) / len(batch))).backward()
            total += value.item() * len(part) / len(batch)
        if not math.isfinite(total):
            self._restore(self.good)
            return f"the loss of step {step} is {total}"
        self.scaler.unscale_(self.optimizer)
        limit = math.inf if how.clip is None else how.clip
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), limit).item()
        if not math.isfinite(norm) and not how.loss_scaling:
            self.optimizer.zero_grad(set_to_none=True)
            return f"the gradient of step {step} is {norm}"
        for name, value in self.parameters.items():
            self.good[name].copy_(value.detach())
        for group in self.optimizer.param_groups:
            group["lr"] = how.rate(step, self.report["planned_steps"])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.report["losses"].append(total)
        return None

    @torch.no_grad()
    def _restore(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])
        self.optimizer.zero_grad(set_to_none=True)

    def _save(self) -> None:
        """Write the checkpoint; it is whole or the one before."""
        if self.folder is None:
            return
        state = {
            "identity": self.identity,
            "report": self.report,
            "parameters": {name: value.detach() for name, value in self.parameters.items()},
            "good": self.good,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_files.whole(self.folder / CHECKPOINT) as file:
                torch.save(state, file)
        except (OSError, RuntimeError) as error:
            raise UserError(f"cannot write the checkpoint in {self.folder}: {error}; free space there") from error

    def _load(self) -> None:
        path = None if self.folder is None else self.folder / CHECKPOINT
        if path is None or not path.exists():
            return
        try:
            if not zipfile.is_zipfile(path):
                raise ValueError("it is cut short")
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
            raise UserError(f"cannot read {path}: {error}; delete it to train again from the start") from error
        if state["identity"] != self.identity:
            raise UserError(
                f"{path} is the checkpoint of another training (settings, data or model differ: {state['identity']} "
                f"there, {self.identity} here); name another folder, or delete it"
            )
        self._restore(state["parameters"])
        for name, value in self.good.items():
            value.copy_(state["good"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.report = state["report"]


def _digest(content: Mapping) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

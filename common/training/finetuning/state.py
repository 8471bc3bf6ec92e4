"""What a training keeps in its folder, so that it can be killed at any time and started again.

plan.json                 what is trained, with what, on what: another training is refused here
start.safetensors         the trained parameters before the first step
checkpoint-N/             Trainer's checkpoint (trained parameters alone); complete once it has progress.json
best.safetensors          the trained parameters with the lowest validation loss so far
trained.safetensors, report.json   the result; a finished training is loaded from these
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from common.training.finetuning.settings import Settings
from common.utils import atomic_files
from common.utils.errors import UserError

START, BEST, TRAINED, WEIGHTS = "start.safetensors", "best.safetensors", "trained.safetensors", "weights.safetensors"
PROGRESS = "progress.json"


def fingerprint(model: nn.Module, train: Sequence[Mapping], valid: Sequence[Mapping], settings: Settings) -> dict:
    """What a training depends on: settings, data, and a sample of every parameter."""
    data, weights = hashlib.sha256(), hashlib.sha256()
    for part in (train, valid):
        for row in part:
            data.update(json.dumps([list(map(int, row["input_ids"])), list(map(int, row["labels"]))]).encode())
        data.update(b"end")
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        sample = flat[:: max(1, len(flat) // 16)][:16].double().cpu()
        weights.update(f"{name}{list(parameter.shape)}".encode() + sample.numpy().tobytes())
    chosen = asdict(settings)
    # younger than trainings that are kept: without them they are found again
    if chosen["untie"]:
        del chosen["untie"]
    if chosen["first"] is None:
        del chosen["first"]
    plan = {"settings": chosen, "data": data.hexdigest(), "weights": weights.hexdigest()}
    return json.loads(json.dumps(plan))


def write(path: Path, content: Mapping) -> None:
    """A JSON file, whole or not at all."""
    with atomic_files.whole(path) as file:
        file.write_text(json.dumps(content, indent=1) + "\n")


def claim(folder: Path, plan: dict) -> None:
    """Make ``folder`` this training's. Raises UserError if it holds another one or cannot be written."""
    path = folder / "plan.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            there = json.loads(path.read_text())
            different = [key for key in plan if there.get(key) != plan[key]]
            if different:
                raise UserError(
                    f"{folder} holds a training with other {' and '.join(different)}; choose another folder or empty it"
                )
        else:
            write(path, plan)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot keep a training in {folder}: {error}; choose another folder") from error


def check(folder: Path) -> None:
    """Raises UserError if a file that a training is gone on with cannot be read: a disk was full, or a copy cut short."""
    last_checkpoint(folder)  # removes what was being written
    for path in sorted(folder.rglob("*")):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".safetensors":
                with safe_open(path, "pt"):
                    pass
            elif path.suffix in (".pt", ".pth") and not zipfile.is_zipfile(path):
                raise ValueError("it is cut short")
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(
                f"cannot go on with a training: {path} cannot be read ({error}); delete {folder} to train from the start"
            ) from error


def save(parameters: Mapping[str, nn.Parameter], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write parameters, whole or not at all."""
    with atomic_files.whole(path) as file:
        save_file({n: p.detach().cpu().contiguous() for n, p in parameters.items()}, file, dict(metadata or {}))


@torch.no_grad()
def restore(parameters: Mapping[str, nn.Parameter], path: Path) -> None:
    """Read parameters back, to the bit."""
    stored: dict[str, Tensor] = load_file(path)
    if stored.keys() != parameters.keys():
        raise UserError(f"{path} does not hold what this method trains; choose another folder or empty it")
    for name, parameter in parameters.items():
        parameter.copy_(stored[name])


def best_loss(folder: Path) -> tuple[float, int] | None:
    """(validation loss, step) of the best state kept so far."""
    if not (folder / BEST).exists():
        return None
    with safe_open(folder / BEST, "pt") as file:
        metadata = file.metadata()
    return float(metadata["loss"]), int(metadata["step"])


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint; those that were being written when the training died are removed."""
    found = {}
    for path in folder.glob("checkpoint-*"):
        if (path / PROGRESS).exists():
            found[int(path.name.rpartition("-")[2])] = path
        else:
            shutil.rmtree(path, ignore_errors=True)
    return found[max(found)] if found else None


def finished(folder: Path) -> dict | None:
    """The report of a training that ended in ``folder``."""
    path = folder / "report.json"
    return json.loads(path.read_text()) if path.exists() and (folder / TRAINED).exists() else None


def finish(folder: Path, parameters: Mapping[str, nn.Parameter], report: Mapping) -> None:
    """Keep the result and drop what only an unfinished training needs."""
    save(parameters, folder / TRAINED)
    write(folder / "report.json", report)
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path, ignore_errors=True)
    for name in (START, BEST):
        (folder / name).unlink(missing_ok=True)

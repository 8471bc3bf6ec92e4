"""Keep the state of a training in its folder, so that it can be stopped at any time and started again.

plan.json             what is trained, with what, on what: another training is refused here
start-0/              the trained parameters before the first step
checkpoint-N/         Trainer's checkpoints; one that cannot be read (a kill, a full disk) does not count
trained.safetensors, report.json   the result; a finished training is loaded from these
"""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from common.training.finetuning.settings import Settings
from common.utils import atomic_files
from common.utils.errors import UserError

START, TRAINED, REPORT = "start-0", "trained.safetensors", "report.json"


def fingerprint(model: nn.Module, train: Sequence[Mapping], valid: Sequence[Mapping], settings: Settings) -> dict:
    """Return the facts that a training depends on: settings, data, and a sample of every parameter."""
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


def claim(folder: Path, plan: dict) -> None:
    """Reserve ``folder`` for this training.

    Raises:
        UserError: the folder holds another training, or cannot be written.
    """
    path = folder / "plan.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            stored = json.loads(path.read_text())
            different = [key for key in plan if stored.get(key) != plan[key]]
            if different:
                raise UserError(
                    f"{folder} holds a training with other {' and '.join(different)}; choose another folder or empty it"
                )
        else:
            _write(path, plan)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot keep a training in {folder}: {error}; choose another folder") from error


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest readable checkpoint, after removing the unreadable ones."""
    for path in sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True):
        if _complete(path):
            return path
        shutil.rmtree(path, ignore_errors=True)
    return None


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was written."""
    return int(checkpoint.name.rpartition("-")[2])


def weights(checkpoint: Path) -> dict[str, Tensor]:
    """Return the trained parameters in a checkpoint."""
    return load_file(checkpoint / SAFE_WEIGHTS_NAME)


def _complete(checkpoint: Path) -> bool:
    """Return whether Trainer wrote all of a checkpoint, of which its state is the last file, and all is still there."""
    try:
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text())
        with safe_open(checkpoint / SAFE_WEIGHTS_NAME, "pt"):
            return all(zipfile.is_zipfile(file) for file in checkpoint.glob("*.pt*"))
    except (OSError, ValueError, SafetensorError):
        return False


def finished(folder: Path) -> tuple[dict, dict[str, Tensor]] | None:
    """Return the report and the trained parameters of a finished training in ``folder``; None if there is none."""
    try:
        return json.loads((folder / REPORT).read_text()), load_file(folder / TRAINED)
    except (OSError, ValueError, SafetensorError):
        return None


def finish(folder: Path, trained: Mapping[str, Tensor], report: Mapping) -> None:
    """Save the result, then delete files that only an unfinished training needs."""
    with atomic_files.whole(folder / TRAINED) as file:
        save_file(dict(trained), file)
    _write(folder / REPORT, report)
    clear(folder)


def clear(folder: Path) -> None:
    """Delete the start and checkpoints."""
    for path in (folder / START, *folder.glob("checkpoint-*")):
        shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, content: Mapping) -> None:
    with atomic_files.whole(path) as file:
        file.write_text(json.dumps(content, indent=1) + "\n")

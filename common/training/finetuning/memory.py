"""Count the memory and disk of a training before anything is loaded, and refuse what does not fit.

    weights      frozen ones as loaded (4-bit: .53 bytes), trained ones in float32, under autocast in half of it, too
    gradients    float32, of what trains
    optimizer    AdamW 8 bytes a trained parameter, in 8 bits 2

Activations come on top: they depend on the rows, and are recomputed layer by layer where a model is large.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from common.training.finetuning.settings import Settings
from common.utils.errors import UserError

# Above so many parameters layers are run again in the backward pass and rows are trained on one at a time, unless the
# settings say for themselves. The loss is the mean over a step's tokens either way.
LARGE = 3e9
QUANTISED = 0.53  # bytes of a parameter in NF4 with doubly quantised constants


@dataclass(frozen=True)
class Need:
    """Numbers of parameters of a training, and the bytes that it needs whatever its rows are."""

    parameters: float
    trained: float
    weights: float
    gradients: float
    optimizer: float

    @property
    def bytes(self) -> float:
        """Return the sum of weights, gradients and optimizer states."""
        return self.weights + self.gradients + self.optimizer


def sized(settings: Settings, parameters: float) -> Settings:
    """Return the settings for a model with this number of parameters, see `LARGE`."""
    if parameters <= LARGE or settings.checkpointing is not None:
        return settings
    return replace(settings, checkpointing=True, micro_batch=1)


def need(facts: dict, removed: int, settings: Settings, itemsize: int, *, gpu: bool = True) -> Need:
    """Return the memory that training a model without ``removed`` layers needs.

    ``facts`` are those of the original model in `common.models.registry`, ``itemsize`` the bytes per weight as it is
    loaded. On a CPU there is no autocast.
    """
    layers = facts["layers"] - removed
    parameters = facts["params"] - removed * facts["layer_params"]
    head = facts["vocab"] * facts["hidden"]
    if settings.method == "full":
        trained = parameters
    elif settings.method == "partial":
        trained = min(settings.last, layers) * facts["layer_params"]
        if settings.untie or not facts["tied"]:
            trained += head
        if settings.untie and facts["tied"]:
            parameters += head
    else:
        trained = layers * settings.rank * sum(_sides(facts, target) for target in settings.targets)
    adapters = settings.method in ("lora", "qlora")
    frozen = parameters if adapters else parameters - trained
    quantised = layers * facts["layer_params"] if settings.quantised else 0
    weights = (frozen - quantised) * itemsize + quantised * QUANTISED + 4 * trained
    if gpu and settings.autocast not in (None, "float32"):
        weights += 2 * trained  # a copy of them in the type that is computed in
    return Need(parameters + adapters * trained, trained, weights, 4 * trained, _optimizer(settings) * trained)


def _optimizer(settings: Settings) -> int:
    """Return bytes of the optimizer's state for each trained parameter."""
    return 8 if settings.optimizer_used == "adamw" else 2


def on_disk(trained: int, settings: Settings) -> int:
    """Return the largest number of bytes that a training of ``trained`` parameters keeps in its folder at a time.

    These are the start and three checkpoints: the best, the last and the one being written.
    """
    return trained * (4 + 3 * (4 + _optimizer(settings)))


def check_disk(folder: Path, trained: int, settings: Settings) -> None:
    """Refuse a training whose checkpoints do not fit on the disk, counting those already in its folder.

    Raises:
        UserError: the disk has less free space; the message says what takes less.
    """
    present = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    needed, free = on_disk(trained, settings) - present, shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"cannot keep a training's checkpoints in {folder}: up to {needed / 2**20:,.0f} MiB more are needed and "
            f"{free / 2**20:,.0f} MiB are free; free space, choose another folder, or train fewer layers or adapters (LoRA)"
        )


def _sides(facts: dict, target: str) -> int:
    """Return the inputs plus outputs of a projection: the parameters that each rank of an adapter adds."""
    hidden, inner = facts["hidden"], facts["intermediate"]
    if target in ("q_proj", "o_proj"):
        return hidden + facts["heads"] * facts["head_dim"]
    if target in ("k_proj", "v_proj"):
        return hidden + facts["kv_heads"] * facts["head_dim"]
    return hidden + inner if target in ("gate_proj", "up_proj", "down_proj") and not facts["experts"] else 0


def check_training(name: str, needed: Need, settings: Settings, device: str) -> None:
    """Refuse a training that does not fit into memory.

    Raises:
        UserError: it needs more than the device has; the message gives the parts, and what takes less.
    """
    available = capacity(device)
    if needed.bytes <= available:
        return
    parts = ", ".join(f"{part} {_gb(getattr(needed, part))}" for part in ("weights", "gradients", "optimizer"))
    if settings.method == "full":
        remedies = ["ZeRO-2 over several cards", "an 8-bit optimizer", "LoRA"]
    else:
        remedies = ["a larger card", "QLoRA"]
    training = f"training {needed.trained / 1e9:.2g} B of {name}'s {needed.parameters / 1e9:.2g} B parameters"
    raise UserError(
        f"{training} takes {_gb(needed.bytes)} ({parts}) and its activations; {device} has {_gb(available)}: "
        f"use {' or '.join(remedies)}"
    )


def check_weights(name: str, parameters: float, itemsize: int, device: str) -> None:
    """Refuse a model whose weights alone do not fit into memory.

    Raises:
        UserError: they do not fit; the message says what does.
    """
    available, weights = capacity(device), parameters * itemsize
    if weights <= available:
        return
    spread = "" if device == "auto" else "spread it over several cards with --device auto (make: DEVICE=auto), "
    raise UserError(
        f"{name} has {parameters / 1e9:.3g} B parameters, {_gb(weights)}, and {device} has {_gb(available)}: {spread}"
        "use a larger machine, or prune it with a tool's --stream, two layers at a time"
    )


def capacity(device: str) -> float:
    """Return the memory of a device in bytes; ``auto``: of all GPUs and the machine."""
    import torch

    if device.startswith("cuda"):
        return float(torch.cuda.get_device_properties(device).total_memory)
    machine = float(psutil.virtual_memory().total)
    if device != "auto":
        return machine
    return machine + sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in range(torch.cuda.device_count()))


def _gb(size: float) -> str:
    return f"{size / 1e9:,.0f} GB" if size >= 1e10 else f"{size / 1e9:.2g} GB"

"""Checkpoints with pickled weights only (`pytorch_model*.bin`), converted to safetensors once, when the user asks for it.

Unpickling can run code, so nothing here is read unasked, and then only by `torch.load(weights_only=True)`, which builds
tensors and refuses the rest. The conversion changes no value.

transformers' own conversion asks a service on the hub for it, with the user's token, and needs the network; loading and
saving the model by transformers would leave out what its class does not know. So files are converted here.
"""

import hashlib
import pickle
import shutil
import sys
import zipfile
from pathlib import Path

import huggingface_hub
import torch
from torch import Tensor

from common.models.files import safetensors_reader
from common.utils import cache
from common.utils.errors import UserError

FLAG = "--convert-weights"
INDEX, SINGLE = "pytorch_model.bin.index.json", "pytorch_model.bin"
UNVERSIONED = "local-"  # begins the folder of a conversion whose source names no commit
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5", ".onnx", ".gguf")


def refusal(hub_id: str) -> UserError:
    """Return the message that these weights are not read, with a remedy."""
    return UserError(
        f"could not load {hub_id}: it has no safetensors weights, and pickled ones are never read unasked; "
        f"`python -m reproductions fetch TARGET {FLAG}` converts them once"
    )


def only(path: Path) -> bool:
    """Return whether a checkpoint's weights are complete, but pickled."""
    if any(path.glob("*.safetensors")):
        return False
    try:
        return all((path / name).exists() for name in shards(path))
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def folder(path: Path, hub_id: str) -> Path:
    """Return the folder for the conversion of the checkpoint at `path`, named by its commit or its files."""
    if path.parent.name == "snapshots":  # of the hub's cache
        name = path.name
    else:
        files = sorted(path.glob("*.bin")) or sorted(path.iterdir())
        states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        name = UNVERSIONED + hashlib.sha256(repr((str(path.resolve()), states)).encode()).hexdigest()[:12]
    return cache.folder() / "models" / hub_id.replace("/", "--") / name


def convert(path: Path, hub_id: str) -> Path:
    """Return the checkpoint at `path` with safetensors weights, converted into the user's cache if it is not there yet.

    Raises:
        UserError: a file holds more than tensors or is damaged, or there is too little disk space.
    """

    def make(_work: Path, result: Path) -> None:
        print(f"{hub_id}: converting its pickled weights to safetensors, once, into {result.parent}", file=sys.stderr)
        for file in path.iterdir():
            if file.is_file() and file.suffix not in _OTHER_WEIGHTS and file.name != INDEX:
                shutil.copyfile(file, result / file.name)
        tensors = {name: tensor for shard in shards(path) for name, tensor in read(path / shard).items()}
        huggingface_hub.save_torch_state_dict(tensors, result, metadata={"format": "pt"})

    return cache.once(folder(path, hub_id), make, hub_id)


def shards(path: Path) -> list[str]:
    """Return the pickled weight files in order.

    As in transformers, a single complete file has priority over an index beside it.
    """
    if (path / SINGLE).exists() or not (path / INDEX).exists():
        return [SINGLE]
    return safetensors_reader.shards(path / INDEX)


def read(path: Path) -> dict[str, Tensor]:
    """Return one file's tensors, each in separate memory, as safetensors requires (a tied head is stored twice then)."""
    try:
        # files of before torch 1.6 are no zip archives and cannot be mapped
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise UserError(
            f"cannot convert {path}: it holds more than tensors, and nothing else is read from it"
        ) from error
    except (RuntimeError, EOFError) as error:
        raise UserError(f"cannot convert {path}: it is damaged; download it again") from error
    if not all(isinstance(tensor, Tensor) for tensor in loaded.values()):
        raise UserError(f"cannot convert {path}: it is no plain list of named tensors")
    storages: set[int] = set()
    tensors = {}
    for name, tensor in loaded.items():
        shared = tensor.untyped_storage().data_ptr() in storages
        storages.add(tensor.untyped_storage().data_ptr())
        tensors[name] = tensor.clone(memory_format=torch.contiguous_format) if shared else tensor.contiguous()
    return tensors

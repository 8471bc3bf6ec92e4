"""Read single tensors of a checkpoint's safetensors files without mapping the files into memory.

`safetensors` maps an entire file, and the touched part of a mapping counts as the process's memory. For models larger
than memory (`common.models.offload`), tensors are read into separate memory, one layer's at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from common.utils.errors import UserError, first_line

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
LFS = b"version https://git-lfs"
PATCHES = "patches.safetensors"  # holds no weights of the model (`common.models.checkpoint`)
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorEntry:
    """Place of one tensor in a file.

    The dtype is in safetensors' spelling. The tensor's bytes are [begin, end). ``state`` is the file's when it was
    opened, to notice changes.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    state: tuple[int, ...]

    def read(self) -> Tensor:
        """Return the tensor, in separate memory.

        Raises:
            UserError: the file is damaged, has changed since it was opened, or has an unknown type.
        """
        if self.dtype not in DTYPES:
            raise UserError(f"cannot read {self.file}: it holds tensors of type {self.dtype}; use unquantised weights")
        with torch.inference_mode(False):  # a parameter made in inference mode could not be watched for changes
            data = torch.empty(self.end - self.begin, dtype=torch.uint8)
            tensor = data.view(DTYPES[self.dtype]).view(self.shape)
        with self.file.open("rb") as stream:
            if _state(stream.fileno()) != self.state:
                raise UserError(f"cannot read {self.file}: it was changed or replaced meanwhile; run again")
            stream.seek(self.begin)
            if stream.readinto(data.numpy()) < len(data):
                raise UserError(f"cannot read {self.file}: it ends too early; save or download it again")
        return tensor

    def rows(self, first: int, stop: int) -> TensorEntry:
        """Return the place of rows ``first`` to ``stop`` (excluded; at most the end) of a matrix."""
        stop, row = min(stop, self.shape[0]), (self.end - self.begin) // self.shape[0]
        shape = (stop - first, *self.shape[1:])
        return replace(self, shape=shape, begin=self.begin + first * row, end=self.begin + stop * row)


def _state(file: int) -> tuple[int, ...]:
    """Return what tells an open file from another, or from itself rewritten."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def lfs_pointer(file: Path) -> str:
    """Return what to do with a file that is a pointer of Git LFS; '' for another file."""
    with file.open("rb") as stream:
        if not stream.read(len(LFS)).startswith(LFS):
            return ""
    return "it is a pointer of Git LFS, not the file itself. Run `git lfs pull` in its directory"


def header(file: Path) -> dict[str, TensorEntry]:
    """Return {name: entry} of one safetensors file.

    Raises:
        UserError: the file is damaged.
    """
    try:
        if pointer := lfs_pointer(file):
            raise UserError(f"cannot read {file}: {pointer}")
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            whole, state = os.fstat(stream.fileno()).st_size, _state(stream.fileno())
            if not 0 < size < min(whole, 2**30):
                raise ValueError("its header is cut off")
            content = json.loads(stream.read(size))
        entries = {
            name: TensorEntry(
                file, entry["dtype"], tuple(entry["shape"]), *(8 + size + at for at in entry["data_offsets"]), state
            )
            for name, entry in content.items()
            if name != "__metadata__"
        }
        if max((entry.end for entry in entries.values()), default=0) > whole:
            raise ValueError("it ends too early")
    except FileNotFoundError as error:
        raise UserError(f"cannot read {file}: there is no such file; save or download it again") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"cannot read {file}: {first_line(error)}; save or download it again") from error
    return entries


def shards(index: Path) -> list[str]:
    """Return the weight files that a checkpoint's index names, in order.

    Raises:
        UserError: the index cannot be read, or does not name a file for each tensor.
    """
    try:
        content = json.loads(index.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {index}: {error}; save or download it again") from error
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"cannot read {index}: its weight_map names no file for each tensor; save or download it again")
    return sorted(set(places.values()))


def loaded(folder: Path) -> list[str]:
    """Return the files that transformers loads: model.safetensors, else those of the index.

    Both may exist: a checkpoint in parts that is saved again in one file keeps its index, whose files are missing or
    outdated.

    Raises:
        UserError: the index cannot be read.
    """
    if (folder / WHOLE).is_file():
        return [WHOLE]
    return shards(folder / INDEX) if (folder / INDEX).is_file() else []


def entries(folder: Path) -> dict[str, TensorEntry]:
    """Return {name: entry} of the safetensors files that transformers loads of a checkpoint, or of all if it finds none.

    Raises:
        UserError: a file is damaged or missing.
    """
    names = loaded(folder)
    files = names or sorted(file.name for file in folder.glob("*.safetensors") if file.name != PATCHES)
    return {name: entry for file in files for name, entry in header(folder / file).items()}


def prevailing_dtype(tensors: Iterable[TensorEntry]) -> str | None:
    """Return the dtype of most bytes, in safetensors' spelling; None without tensors."""
    sizes: dict[str, int] = {}
    for entry in tensors:
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.end - entry.begin
    return max(sizes, key=sizes.__getitem__, default=None)

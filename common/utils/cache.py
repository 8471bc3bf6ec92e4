"""The user's cache folder, and things that are made once in it: whole or not at all, by one process at a time."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from common.utils import locks
from common.utils.errors import UserError, first_line, is_full_disk

VARIABLE = "LAYERLAB_CACHE"

Key, Value = TypeVar("Key"), TypeVar("Value")


def folder() -> Path:
    """Return the folder for files that can be made again.

    It is ``$LAYERLAB_CACHE``, else ``~/.cache/layerlab`` (``$XDG_CACHE_HOME/layerlab`` if that is set).
    """
    override = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(override or Path(base) / "layerlab").expanduser()


def once(path: Path, make: Callable[[Path, Path], None], what: str) -> Path:
    """Return `path`, after `make(work, result)` has filled it if it does not exist.

    `make` writes the result to the empty directory `result`, and may use the empty directory `work` beside it. `result`
    becomes `path` by one rename, so that a kill leaves no incomplete result; the next process that makes `path` deletes
    the rest. A second process waits for the first and takes its result. Errors name the result ``what``.

    Raises:
        UserError: the folder cannot be written to or is full; nothing is left there.
    """
    if path.is_dir():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locks.locked(path.parent / f".{path.name}.lock"):
            if not path.is_dir():
                _make(path, make)
    except (OSError, SafetensorError) as error:
        reason = f"{first_line(error)}; name another folder in {VARIABLE} if that one cannot be written to"
        if is_full_disk(error):
            reason = f"the disk is full; free space there, or name a folder on a larger disk in {VARIABLE}"
        raise UserError(f"could not make {what} in {path.parent}: {reason}") from error
    return path


def forget(entries: dict[Key, Value], size: Callable[[Value], int], most: int) -> None:
    """Drop the oldest entries of `entries`, in place, until the sizes of the others come to `most` at most."""
    total = sum(map(size, entries.values()))
    for key in list(entries):
        if total <= most:
            return
        total -= size(entries.pop(key))


def _make(path: Path, make: Callable[[Path, Path], None]) -> None:
    prefix = f".{path.name}.making-"
    for stale in path.parent.glob(f"{prefix}*"):  # nobody else makes it now: the lock is ours
        shutil.rmtree(stale, ignore_errors=True)
    work, result = (Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent)) for _ in range(2))
    try:
        make(work, result)
        result.chmod(0o755)  # mkdtemp makes it private
        shutil.rmtree(work)  # first, so that a kill between the two leaves nothing that is never swept
        result.rename(path)
    finally:
        for directory in (work, result):
            shutil.rmtree(directory, ignore_errors=True)

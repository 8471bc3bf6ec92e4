"""A file or a directory written beside its place and then put there: a kill at any moment leaves the old or the new one.

    .NAME.new-PID-XXXXXXXX     being written, or whole and about to go to NAME; after an exchange, what NAME was before
    .NAME.old-PID-XXXXXXXX     what NAME was before, where the system cannot exchange two directories at once

Every such directory, and the finished one, carries `MARKER`, which says what wrote it and, once it is whole, names every
file with size and time. `recover` at the next start puts a whole one in place if NAME is missing, and clears away the others.
What NAME was before is told by its marker, which has the XXXXXXXX that it was written under: it never comes back by itself,
for where NAME is missing its successor was moved away.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

MARKER = ".layer-pruning.json"
FORMAT = 1
STALE_SECONDS = 24 * 3600  # of a directory whose process cannot be asked after: it is another machine's
_HALF = f"{MARKER}.tmp"
_HERE, _EXCHANGE, _SWAP = -100, 2, 2  # AT_FDCWD; RENAME_EXCHANGE of Linux; RENAME_SWAP of macOS


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write a file to, beside `path`: then it goes there, on disk and of the umask's mode, or nothing does.

    Errors of the file system are passed on; what is at `path` is then as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode & 0o777
        yield temporary
        temporary.chmod(mode)  # safetensors writes files of its own for the owner alone
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def put(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write(directory)` fill a new directory and put it at `path`, in place of a directory there, all or nothing.

    The caller has made sure that what is there may go. Files and directories have the umask's mode, and are on disk before
    they are put in place. Errors of the file system and of `write` are passed on; `path` is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path)
    made = _beside(path, "new")
    made.mkdir()
    try:
        _mark(made, None)
        write(made)
        _settle(made)
        if not path.exists():
            made.rename(path)
        elif not exchange(made, path):
            _replace(made, path)
        _sync(path.parent)
    finally:
        _clear(made)


def rewrite(directory: Path, texts: Mapping[str, str]) -> None:
    """Replace text files of a finished directory, each whole or not at all; errors of the file system are passed on."""
    temporary = directory.with_name(f".{directory.name}.text.tmp")  # beside it: nothing unknown ever lies in it
    for name, text in texts.items():
        temporary.write_text(text, encoding="utf-8")
        _sync(temporary)
        os.replace(temporary, directory / name)


def tried(path: Path) -> Path:
    """Make and remove what `put` would make beside `path`, in the nearest folder that is there; returns that folder.

    Errors of the file system are passed on: no directory, not writable, a name too long.
    """
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(0, f"{folder} is no directory")
    made = folder / _beside(path, "new").name
    made.mkdir()
    made.rmdir()
    return folder


def recover(path: Path) -> None:
    """Undo what a killed process left of a `put` to `path`: nothing is lost, and what can be deleted is."""
    with suppress(OSError):
        _recover(path)


def _recover(path: Path) -> None:
    left = [found for found in _left(path) if not _alive(found)]
    if not path.exists():
        whole = [found for found in left if not _replaced(found) and (files(found) or {""}) <= contents(found)]
        whole.sort(key=lambda found: (_kind(path, found) == "new", found.stat().st_mtime))
        if whole:
            whole[-1].rename(path)
            left.remove(whole[-1])
    for found in left:
        if path.exists() or not _replaced(found):  # else it may be all that a failing disk has left
            _clear(found)


def files(directory: Path) -> set[str] | None:
    """The files that a finished directory of ours was written with, the marker left out; None if it is none of ours."""
    marker = _marker(directory)
    named = marker.get("files") if marker else None
    return set(named) if isinstance(named, list) and marker.get("format") == FORMAT else None


def changed(directory: Path) -> set[str]:
    """The files of a finished directory of ours that were written again since, by size and time; none that are gone.

    What an earlier version wrote names no sizes and times: nothing of it counts as changed.
    """
    written = (_marker(directory) or {}).get("written")
    known = written if isinstance(written, dict) else {}
    return {name for name, state in known.items() if (directory / name).exists() and _state(directory / name) != state}


def contents(directory: Path) -> set[str]:
    """Every file below a directory, and every empty folder, by its path in it."""
    found = set()
    for folder, folders, names in os.walk(directory):
        inside = [*names, *(name for name in folders if (Path(folder) / name).is_symlink())]
        if not inside and not folders:
            found.add(Path(folder).relative_to(directory).as_posix() + "/")
        found |= {(Path(folder) / name).relative_to(directory).as_posix() for name in inside}
    return found - {MARKER, "./"}


def exchange(one: Path, other: Path) -> bool:
    """Let two directories change places in one step; False where the system cannot do that."""
    name, flag, here = ("renameatx_np", _SWAP, -2) if sys.platform == "darwin" else ("renameat2", _EXCHANGE, _HERE)
    try:
        call = getattr(ctypes.CDLL(None), name)
    except (OSError, TypeError, AttributeError):
        return False
    return call(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(flag)) == 0


def _replace(made: Path, path: Path) -> None:
    """Two renames; between them `path` is missing, and `recover` knows what belongs there."""
    aside = _beside(path, "old")
    path.rename(aside)
    try:
        made.rename(path)
    except BaseException:  # an interrupt too
        if not path.exists():
            aside.rename(path)
        raise
    _clear(aside)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}-{os.getpid()}-{secrets.token_hex(4)}")


def _kind(path: Path, found: Path) -> str | None:
    match = re.fullmatch(rf"\.{re.escape(path.name)}\.(new|old)-\d+-[0-9a-f]{{8}}", found.name)
    return match and match[1]


def _token(directory: Path) -> str:
    return directory.name.rpartition("-")[2]


def _host(token: str) -> str:
    """What stands for this host in a marker: it stays there, and what is shared should not name the host."""
    return hashlib.sha256(f"{token} {socket.gethostname()}".encode()).hexdigest()[:16]


def _replaced(directory: Path) -> bool:
    """Whether a directory of a temporary name was in place before; False where the marker is an earlier version's."""
    return (_marker(directory) or {}).get("token", _token(directory)) != _token(directory)


def _left(path: Path) -> list[Path]:
    """What bears our name pattern beside `path` and our marker, or nothing but a marker half written."""
    if not path.parent.is_dir():
        return []
    named = [found for found in path.parent.iterdir() if _kind(path, found) and not found.is_symlink()]
    return [found for found in named if found.is_dir() and (_marker(found) or contents(found) <= {_HALF})]


def _alive(directory: Path) -> bool:
    """Whether the process that writes a directory may still be at work."""
    marker = _marker(directory) or {}
    known = (None, _host(_token(directory)), socket.gethostname())  # the last in markers of earlier versions
    if marker.get("host") not in known and not _replaced(directory):
        return time.time() - directory.stat().st_mtime < STALE_SECONDS
    process = int(directory.name.split("-")[-2])
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it lives, and is somebody else's
    return time.time() - directory.stat().st_mtime < STALE_SECONDS


def _marker(directory: Path) -> dict | None:
    try:
        found = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _mark(directory: Path, names: list[str] | None) -> None:
    """Write the marker, whole or not at all; names: of the files of a finished directory."""
    content, token = _marker(directory), _token(directory)
    if content is None:
        content = {"format": FORMAT, "written_by": "layer-pruning-reproductions", "token": token, "host": _host(token)}
    if names is not None:
        content["files"] = names
        content["written"] = {name: _state(directory / name) for name in names if not name.endswith("/")}
    temporary = directory / _HALF
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    _sync(temporary)
    os.replace(temporary, directory / MARKER)


def _state(file: Path) -> list[int]:
    """What differs once a file was written again: its size, and the nanosecond of the last change."""
    found = file.stat()
    return [found.st_size, found.st_mtime_ns]


def _settle(directory: Path) -> None:
    """Give every file the umask's mode (safetensors writes its own for the owner alone), then to disk, then the marker."""
    names = sorted(contents(directory))
    mode = (directory / MARKER).stat().st_mode & 0o777  # opened like any file
    for name in names:
        if not name.endswith("/"):
            (directory / name).chmod(mode)
            _sync(directory / name)
    _mark(directory, names)
    _sync(directory)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # not every file system does this for a directory
            raise
    finally:
        os.close(handle)


def _clear(directory: Path) -> None:
    """Delete a directory of ours, the marker last, so that what a kill leaves is known for ours."""
    with suppress(OSError):
        for inside in directory.iterdir():
            if inside.name == MARKER:
                continue
            if inside.is_dir() and not inside.is_symlink():
                shutil.rmtree(inside, ignore_errors=True)
            else:
                inside.unlink()
        (directory / MARKER).unlink(missing_ok=True)
        directory.rmdir()

"""A file or a directory written beside its place and then put there: a kill at any moment leaves the old or the new one.

    .NAME.new-XXXXXXXX     being written, or whole and about to go to NAME
    .NAME.old-XXXXXXXX     what NAME was before
    .NAME.lock             locked while one process writes; another one waits, or leaves all of this alone

A finished directory has `MARKER`, which names every file with size and time. No system replaces a directory that holds files
by one rename, so there are two, and between them NAME is missing. `recover` at the next start then puts the whole new one in
place, and clears away the rest. What NAME was before never comes back by itself: where NAME is missing and no new one waits,
its successor was moved away. The standard library has `os.replace` for files alone; no library writes directories whole.
"""

import glob
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from common.utils import locks

MARKER = ".layer-pruning.json"
FORMAT = 1


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write a file to; afterwards it replaces `path`, or on an error nothing does.

    The file is on disk and has the umask's mode. Errors of the file system are passed on; `path` is unchanged then.
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
    """Let `write(directory)` fill a new directory and put it at `path`, completely or not at all.

    A directory at `path` is replaced; the caller has checked that it may be. Files and directories have the umask's
    mode, and are on disk before the replacement. Errors of the file system and of `write` are passed on; `path` is
    unchanged then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locks.locked(_lock(path)):
        try:
            _recover(path)
            staged, aside = _temporary(path, "new"), _temporary(path, "old")
            staged.mkdir()
            write(staged)
            _finish(staged)
            if path.exists():
                path.rename(aside)
            try:
                staged.rename(path)
            except BaseException:  # an interrupt too
                if aside.exists() and not path.exists():
                    aside.rename(path)
                raise
            _sync(path.parent)
        finally:
            _delete_leftovers(path)


def rewrite(directory: Path, texts: Mapping[str, str]) -> None:
    """Replace text files of a finished directory, each completely or not at all; errors of the file system are passed on."""
    temporary = directory.with_name(f".{directory.name}.text.tmp")  # beside it: nothing unknown ever lies in it
    try:
        for name, text in texts.items():
            temporary.write_text(text, encoding="utf-8")
            _sync(temporary)
            os.replace(temporary, directory / name)
    finally:
        temporary.unlink(missing_ok=True)


def try_beside(path: Path) -> Path:
    """Create and remove the temporary files of `put` beside `path`, in the nearest existing folder; return that folder.

    Errors of the file system are passed on: no directory, not writable, a name too long.
    """
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(0, f"{folder} is no directory")
    probe = folder / _temporary(path, "new").name
    probe.mkdir()
    probe.rmdir()
    return folder


def recover(path: Path) -> None:
    """Undo a `put` to `path` that a killed process left: nothing is lost, and temporary files are deleted."""
    with suppress(OSError):
        if not (_lock(path).exists() or _leftovers(path, "*")) or (lock := locks.take(_lock(path))) is None:
            return  # there is nothing, or another process writes
        try:
            _recover(path)
        finally:
            _delete_leftovers(path)
            lock.release()


def files(directory: Path) -> set[str] | None:
    """Return the files that `put` wrote into a finished directory, without the marker; None for other directories."""
    marker = _marker(directory)
    names = marker.get("files") if marker else None
    return set(names) if isinstance(names, list) and marker.get("format") == FORMAT else None


def changed(directory: Path) -> set[str]:
    """Return the files of a finished directory that were changed after `put`, by size and time."""
    states = (_marker(directory) or {}).get("written", {})
    return {name for name, state in states.items() if (directory / name).exists() and _state(directory / name) != state}


def contents(directory: Path) -> set[str]:
    """Return every file below a directory, and every empty folder, by its path in it."""
    paths = set()
    for entry in directory.rglob("*"):
        path = entry.relative_to(directory).as_posix()
        if entry.is_symlink() or not entry.is_dir():
            paths.add(path)
        elif not any(entry.iterdir()):
            paths.add(f"{path}/")
    return paths - {MARKER}


def _recover(path: Path) -> None:
    """Put a whole new directory in place where there is none; the lock is held."""
    finished = [candidate for candidate in _leftovers(path, "new") if (files(candidate) or {""}) <= contents(candidate)]
    if finished and not path.exists():
        max(finished, key=lambda candidate: candidate.stat().st_mtime).rename(path)


def _delete_leftovers(path: Path) -> None:
    """Delete what lies beside `path`; the lock is held. What was there before may be all that a failing disk has left."""
    for stale in [*_leftovers(path, "new"), *(_leftovers(path, "old") if path.exists() else [])]:
        shutil.rmtree(stale, ignore_errors=True)
    with suppress(OSError):
        _lock(path).unlink(missing_ok=True)  # who waits for it makes another


def _lock(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _temporary(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}-{secrets.token_hex(4)}")


def _leftovers(path: Path, kind: str) -> list[Path]:
    """Return the directories beside `path` that `_temporary` named."""
    pattern = f".{glob.escape(path.name)}.{kind}-{'[0-9a-f]' * 8}"
    return [entry for entry in path.parent.glob(pattern) if entry.is_dir() and not entry.is_symlink()]


def _marker(directory: Path) -> dict | None:
    try:
        content = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _state(file: Path) -> list[int]:
    """Return what differs once a file was written again: its size, and the nanosecond of the last change."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def _finish(directory: Path) -> None:
    """Give every file the umask's mode (safetensors writes its own for the owner alone), then to disk, then the marker."""
    names = sorted(contents(directory))
    with whole(directory / MARKER) as marker:
        mode = marker.stat().st_mode & 0o777  # opened like any file
        for name in names:
            if not name.endswith("/"):
                (directory / name).chmod(mode)
                _sync(directory / name)
        content = {"format": FORMAT, "written_by": "layer-pruning-reproductions", "files": names}
        content["written"] = {name: _state(directory / name) for name in names if not name.endswith("/")}
        marker.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
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

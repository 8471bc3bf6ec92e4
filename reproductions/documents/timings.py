"""Time each target for docs/tables.md: ``python -m reproductions.documents.timings TARGET...``.

The times are written to ``timings.csv``.

The targets are made in turn, each after those before it, in a fresh clone of the last commit whose records are removed: what
an earlier target has measured, a later one only reads. The clone uses this environment and the user's cache of downloads.
"""

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from common.console.command_line import answering, option, parse
from common.records.results import ROOT
from common.utils import atomic_files, csv_rows
from common.utils.errors import UserError, unknown
from reproductions.spec import registry

PATH = Path(__file__).with_name("timings.csv")
FIELDS = ("target", "seconds", "cpus", "commit", "date")
OWN_FOLDERS = ("LAYERLAB_RESULTS", "LAYERLAB_WORK")  # where they are set, a clone would find records

# (command, folder) -> exit status and what was printed
Runner = Callable[[list[str], Path], tuple[int, str]]


def run(command: list[str], folder: Path) -> tuple[int, str]:
    """Run a command in a folder; return (exit status, standard output). Its messages go to standard error."""
    variables = {name: value for name, value in os.environ.items() if name not in OWN_FOLDERS}
    done = subprocess.run(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


@contextmanager
def clone(runner: Runner = run) -> Iterator[tuple[Path, str]]:
    """Yield (folder, commit) of a clone of the last commit without results, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="timings-") as folder:
        place = Path(folder) / "clone"
        for command, at in (
            (["git", "clone", "-q", str(ROOT), str(place)], ROOT),
            (["git", "rm", "-rq", "--ignore-unmatch", "reproductions/results"], place),
        ):
            status, _ = runner(command, at)
            if status:
                raise UserError(
                    f"'{' '.join(command)}' failed with status {status}; timing needs git and a clone of its own"
                )
        yield place, runner(["git", "rev-parse", "--short", "HEAD"], place)[1].strip()


def make(target: str) -> list[str]:
    """Return the command that makes a target in the present environment."""
    environment = Path(sys.prefix)
    return ["make", f"VENV={environment}", "-o", str(environment / ".stamp"), target]


def read(path: Path = PATH) -> dict[str, dict[str, str]]:
    """Read the timings by target; empty if there is no file."""
    return {line["target"]: line for line in csv_rows.read(path)} if path.exists() else {}


def write(lines: Iterable[dict], path: Path = PATH) -> None:
    """Replace the file by one with these lines, atomically."""
    with atomic_files.whole(path) as file, file.open("w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, FIELDS, lineterminator="\n")
        table.writeheader()
        table.writerows(lines)


def measure(targets: list[str], path: Path = PATH, runner: Runner = run) -> None:
    """Make the targets in turn; each line is written as soon as its target is made, over its former line.

    Raises:
        UserError: an unknown target, before anything is made; or a target that cannot be made, which is not recorded.
    """
    known = [*registry.targets(), *registry.PAPERS]
    for target in targets:
        if target not in known:
            raise unknown("target", target, known)
    with clone(runner) as (folder, commit):
        for target in targets:
            started = time.monotonic()
            status, _ = runner(make(target), folder)
            seconds = time.monotonic() - started
            if status:
                raise UserError(f"make {target} failed with status {status}; its time is not recorded")
            values = (target, max(1, round(seconds)), os.cpu_count(), commit, date.today().isoformat())
            lines = read(path) | {target: dict(zip(FIELDS, values, strict=True))}
            write(lines.values(), path)
            print(f"{target}: {seconds:.0f} s", file=sys.stderr)


@dataclass(kw_only=True)
class TimingCommand:
    """Time targets and record the times."""

    targets: list[str] = option(help="a table, a figure, or a paper for all of them", positional=True, metavar="TARGET")


@answering
def main(arguments: list[str] | None = None) -> int:
    """Time the named targets; return the exit status."""
    options = parse(TimingCommand, arguments, prog="python -m reproductions.documents.timings")
    try:
        measure(options.targets)
    except KeyboardInterrupt:
        print("interrupted; the targets made so far are recorded", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

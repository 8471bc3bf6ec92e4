"""``python -m papers``: every step that a recipe can name, with its options, from the steps themselves."""

from __future__ import annotations

import dataclasses
import os
import sys

import common.pruning.steps  # noqa: F401 - registers its steps
import papers
from common import baselines
from common.pruning.recipe import PARTS, known


def main() -> int:
    """Print the steps by the part of a recipe that they stand in; returns the exit status."""
    baselines.load_steps()
    papers.load_steps()
    try:
        _print()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _print() -> None:
    for part in PARTS[:3]:
        print(f"{part}:")
        for name, step in sorted(known(part).items()):
            lines = (step.__doc__ or "").strip().splitlines()
            print(f"  {name:<22} {lines[0] if lines else ''}")
            if options := [_shown(field) for field in dataclasses.fields(step)]:
                print(f"  {'':<22} {' '.join(options)}")


def _shown(field: dataclasses.Field) -> str:
    """An option by name; with its default, where that is not to be left out."""
    return field.name if field.default in (dataclasses.MISSING, None) else f"{field.name}={field.default}"


if __name__ == "__main__":
    sys.exit(main())

"""``python -m papers``: every step that a recipe can name, with its options, from the steps themselves."""

from __future__ import annotations

import dataclasses
import sys

import common.steps  # noqa: F401 - registers its steps
import papers
from common.recipe import PARTS, known


def main() -> int:
    """Print the steps by the part of a recipe that they stand in; returns the exit status."""
    papers.load_steps()
    for part in PARTS[:3]:
        print(f"{part}:")
        for name, step in sorted(known(part).items()):
            lines = (step.__doc__ or "").strip().splitlines()
            print(f"  {name:<22} {lines[0] if lines else ''}")
            if options := [_shown(field) for field in dataclasses.fields(step)]:
                print(f"  {'':<22} {' '.join(options)}")
    return 0


def _shown(field: dataclasses.Field) -> str:
    """An option by name; with its default, where that is not to be left out."""
    return field.name if field.default in (dataclasses.MISSING, None) else f"{field.name}={field.default}"


if __name__ == "__main__":
    sys.exit(main())

"""Read the package's CSV files."""

import csv
from pathlib import Path


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file with a header, each by its column's name."""
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))

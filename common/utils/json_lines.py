"""JSON lines, one object per line: distinguish them from plain text, and read them.

pandas guesses types (a text "007" becomes a number) and does not name the line that is no JSON.
"""

import json
from pathlib import Path

from common.utils.errors import UserError

_ENDINGS = (".jsonl", ".ndjson", ".json")


def is_json(name: str, text: str) -> bool:
    """Return whether a file is JSON by its name, its first line or its whole content."""
    if Path(name).suffix.lower() in _ENDINGS:
        return True
    first = text.lstrip().partition("\n")[0]
    return any(part.startswith(("{", "[")) and not _plain(_parsed(part)) for part in (first, text.strip()))


def rows(name: str, text: str) -> list[dict]:
    """Return the objects of a file's JSON lines, or of one JSON array.

    Only a line feed ends a line: U+2028 and the like may be inside a string.

    Raises:
        UserError: the message names the first line that is no JSON object.
    """
    whole = _parsed(text.strip())
    if isinstance(whole, dict):
        whole = [whole]
    if isinstance(whole, list) and whole and all(isinstance(row, dict) for row in whole):
        return whole
    objects = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"cannot read {name}: line {number} is no JSON ({error}). {_FIX}") from error
        if not isinstance(row, dict):
            raise UserError(f"cannot read {name}: line {number} is no JSON object. {_FIX}")
        objects.append(row)
    if not objects:
        raise UserError(f"cannot read {name}: it holds no JSON object. {_FIX}")
    return objects


_FIX = "One JSON object a line is needed"


def _plain(value: dict | list | None) -> bool:
    """Return whether a value is none of JSON, or a list of numbers, as a footnote's [1]."""
    return value is None or (isinstance(value, list) and all(isinstance(item, int | float) for item in value))


def _parsed(text: str) -> dict | list | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None

"""The text of a record's file: valid JSON whatever was measured, and checked before anything relies on it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

SCHEMA = 1
STATUSES = ("ok", "failed", "no data")
# JSON has no such numbers: in a record these words stand for them.
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
DEPTH = 64  # levels of nesting that a record may have; ours have seven
_TYPES = {
    "recipe": dict,
    "recipe_hash": str,
    "benchmark": str,
    "status": str,
    "values": dict,
    "stderr": dict,
    "details": dict,
    "provenance": dict,
    "reason": str | None,
    "schema": int,
}


class Unreadable(ValueError):
    """Not a record. kind: a word for file names; reason: what is wrong."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


def write(content: Mapping, indent: int | None = 1) -> str:
    """Return a record's fields as the text of its file.

    Args:
        content: the fields.
        indent: spaces a level; None for one line, which is written about ten times faster.
    """
    return json.dumps(_spelled(content), indent=indent, sort_keys=True, allow_nan=False) + "\n"


def read(text: str) -> dict:
    """The fields that `write` was given.

    Raises:
        Unreadable: no JSON, another schema, unknown or missing fields, wrong types, numbers that no float can hold, or nested
            too deeply.
    """
    try:
        content = json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_number)
    except RecursionError as error:
        raise Unreadable("corrupt", f"it is nested deeper than {DEPTH} levels") from error
    except json.JSONDecodeError as error:
        raise Unreadable("corrupt", "it is not valid JSON") from error
    return checked(content)


def checked(content: object) -> dict:
    """Return the fields of a record from parsed JSON, with numbers in place of the words of `NOT_FINITE`.

    Raises:
        Unreadable: See `read`.
    """
    try:
        content = _read_back(content)
    except RecursionError as error:
        raise Unreadable("corrupt", f"it is nested deeper than {DEPTH} levels") from error
    _check(content)
    return content


def _check(content: object) -> None:
    """Refuse JSON that is not a record of this schema."""
    if not isinstance(content, dict):
        raise Unreadable("corrupt", "it is not an object")
    schema = content.get("schema")
    if type(schema) is not int or not 0 <= schema < 1000:
        raise Unreadable("corrupt", "it names no schema")
    if schema != SCHEMA:
        raise Unreadable(f"schema-{schema}", f"it has schema {schema}, not {SCHEMA}")
    for name in ("recipe", "recipe_hash", "benchmark", "status"):
        if name not in content:
            raise Unreadable("corrupt", f"it lacks {name!r}")
    for name, value in content.items():
        if name not in _TYPES:
            raise Unreadable("corrupt", f"it has an unknown field {name[:40]!r}")
        if not isinstance(value, _TYPES[name]):
            raise Unreadable("corrupt", f"{name!r} has the wrong type")
    if content["status"] not in STATUSES:
        raise Unreadable("corrupt", f"its status is none of {', '.join(STATUSES)}")
    for part, kind in (("values", int | float), ("stderr", int | float | None)):
        for name, value in content.get(part, {}).items():
            if not isinstance(value, kind) or isinstance(value, bool):
                raise Unreadable("corrupt", f"{part}: {name[:40]!r} is not a number")


def _number(text: str) -> int | float:
    """A number of a JSON text as Python has it; NaN, infinities and what would become one are refused."""
    if not math.isfinite(float(text)):
        raise Unreadable("corrupt", "it holds a number that is not finite")
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _spelled(value: object) -> object:
    """The same with the words of NOT_FINITE for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _spelled(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return next(word for word, number in NOT_FINITE.items() if number == value or value != value)
    return value


def _read_back(value: object, level: int = 0) -> object:
    """The same with the numbers that the words of NOT_FINITE stand for."""
    if level > DEPTH:
        raise RecursionError
    if isinstance(value, dict):
        return {key: _read_back(part, level + 1) for key, part in value.items()}
    if isinstance(value, list):
        return [_read_back(part, level + 1) for part in value]
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value

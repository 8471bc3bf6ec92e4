"""The text of a record's file: valid JSON whatever was measured, and checked before anything relies on it.

pydantic checks the fields and gives the JSON schema (docs/results-schema.json).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Literal, NotRequired

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA = 1
# JSON has no such numbers: in a record these words stand for them.
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
Number = int | float | Literal["NaN", "Infinity", "-Infinity"]


class Fields(TypedDict):
    """One measurement: a recipe, a benchmark, and the measured values. Other versions of the schema are refused."""

    __pydantic_config__ = {"strict": True, "extra": "forbid"}

    schema: Literal[1]
    recipe: dict
    recipe_hash: str
    benchmark: str
    status: Literal["ok", "failed", "no data"]
    values: NotRequired[dict[str, Number]]
    stderr: NotRequired[dict[str, Number | None]]
    details: NotRequired[dict]
    provenance: NotRequired[dict]
    reason: NotRequired[str | None]


class Unreadable(ValueError):
    """A file or text that is no result. kind: a word for file names; reason: the defect."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


def write(content: Mapping, indent: int | None = 1) -> str:
    """Return a result's fields as the text of its file; indent None: one line, which is written ten times faster."""
    try:
        text = json.dumps(content, indent=indent, sort_keys=True, allow_nan=False)
    except ValueError:  # a number that JSON does not have
        words = json.loads(json.dumps(content), parse_constant=str)
        text = json.dumps(words, indent=indent, sort_keys=True)
    return text + "\n"


def read(text: str) -> dict:
    """Return the fields that `write` was given.

    Raises:
        Unreadable: no JSON, another schema, unknown or missing fields, or wrong types.
    """
    try:
        content = json.loads(text, parse_constant=int)  # which refuses NaN and infinities: JSON has none
    except RecursionError as error:
        raise Unreadable("corrupt", "it is nested too deeply") from error
    except ValueError as error:
        raise Unreadable("corrupt", "it is not valid JSON") from error
    return checked(content)


def checked(content: object) -> dict:
    """Return the fields of a result from parsed JSON, with numbers in place of the words of `NOT_FINITE`.

    Raises:
        Unreadable: See `read`.
    """
    try:
        content = _read_back(content)
    except RecursionError as error:
        raise Unreadable("corrupt", "it is nested too deeply") from error
    _check(content)
    return content


@cache
def adapter() -> TypeAdapter:
    """Return the validator of a result's fields; pydantic is imported only when a result is read."""
    from pydantic import TypeAdapter

    return TypeAdapter(Fields)


def json_schema() -> str:
    """Return the JSON schema of a result's file, as in docs/results-schema.json."""
    name = f"Result, schema {SCHEMA}"
    described = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | adapter().json_schema() | {"title": name}
    return json.dumps(described, indent=1) + "\n"


def _check(content: object) -> None:
    """Refuse JSON that is not a record of this schema."""
    if not isinstance(content, dict):
        raise Unreadable("corrupt", "it is not an object")
    schema = content.get("schema")
    if type(schema) is not int or not 0 <= schema < 1000:
        raise Unreadable("corrupt", "it names no schema")
    if schema != SCHEMA:
        raise Unreadable(f"schema-{schema}", f"it has schema {schema}, not {SCHEMA}")
    try:
        adapter().validate_python(content)
    except ValueError as error:
        raise Unreadable("corrupt", _reason(error.errors()[0])) from error


def _reason(error: Mapping) -> str:
    """Return what is wrong with a record, from the first of pydantic's errors."""
    name, *within = (str(part)[:40] for part in error["loc"])
    if error["type"] == "missing":
        return f"it lacks {name!r}"
    if error["type"] == "extra_forbidden":
        return f"it has an unknown field {name!r}"
    if within and name in ("values", "stderr"):
        return f"{name}: {within[0]!r} is not a number"
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        return f"its {name} is none of {error['ctx']['expected']}"
    return f"{name!r} has the wrong type"


def _read_back(value: object) -> object:
    """Return the same with the numbers that the words of NOT_FINITE stand for."""
    if isinstance(value, dict):
        return {key: _read_back(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_read_back(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise Unreadable("corrupt", "it has a number that is not finite, such as 1e999")
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value

"""Flags of a command line made of dataclass fields: an option's type, default, choices, range and help are said once."""

from __future__ import annotations

import argparse
import math
import types
import typing
from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    choices: Collection[str] = (),
    least: float = -math.inf,
    most: float = math.inf,
) -> Any:
    """A dataclass field that a tool may ask for.

    help: what a flag for it does; of a field that is True, what the flag that turns it off does. choices, or least and
    most: what a flag may be given.
    """
    said = {"help": help, "choices": tuple(choices), "least": least, "most": most}
    return field(default=default, metadata=said)


@dataclass(frozen=True)
class Flag:
    """A field, made with `option`, that a tool asks for.

    name: of the flag, where it is not the field's. default, choices: the tool's, where they are not the field's; a default
    of None leaves the matter to the tool. says: what --help calls such a default.
    """

    kind: type
    field: str
    name: str = ""
    default: Any = ...
    choices: tuple[str, ...] = ()
    says: str = ""

    @property
    def dest(self) -> str:
        """The attribute of the parsed options."""
        return (self.name or self.field).replace("-", "_")

    @property
    def option(self):
        """The dataclass's field, with what `option` was told in its metadata."""
        return next(field for field in fields(self.kind) if field.name == self.field)

    def add(self, group: argparse._ActionsContainer) -> None:
        """Put the flag into a group of a parser."""
        flag, said, kind = f"--{self.name or self.field}", self.option.metadata, self._type()
        if kind is bool:
            group.add_argument(flag, action="store_true", help=said["help"])
            return
        default = self._default()
        usual = self.says or default
        if kind is str:
            more = {"choices": self.choices or said["choices"] or None}
        else:
            more = {"type": kind, "metavar": "N" if kind is int else "X"}
        shown = said["help"] if usual is None else f"{said['help']} (default: {usual})"
        group.add_argument(flag, default=default, help=shown, **more)

    def value(self, options: argparse.Namespace) -> Any:
        """What the field is to be; None where that was not said."""
        given = getattr(options, self.dest)
        return not given if self._default() is True else given

    def _default(self) -> Any:
        return self.default if self.default is not ... else self.option.default

    def _type(self) -> type:
        hint = typing.get_type_hints(self.kind)[self.field]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        return next(kind for kind in kinds if kind is not types.NoneType)

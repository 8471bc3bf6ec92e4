"""Declare command lines as dataclasses: each field is an option, with its type, default, range, group and help.

The module is a layer on argparse. jsonargparse spells `--held_out` and `--no_graft true`, and prints an error on up to ten
lines. Typer takes functions, so the layer stays; it has no option whose value may be left out (`--stream [GB]`).
"""

from __future__ import annotations

import argparse
import difflib
import functools
import inspect
import math
import os
import re
import shutil
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from common.utils.errors import UserError, one_line

T = TypeVar("T")
HIDDEN = argparse.SUPPRESS  # as an option's help: leave it out of --help
WIDEST = 112  # columns of --help
_KEY = "option"
# What argparse says, and how it is said here.
_WORDINGS = (
    (r"argument (\S+): invalid int value: (.*)", r"\1 \2 is not a whole number. Write digits alone, as in \1 8"),
    (r"argument (\S+): invalid float value: (.*)", r"\1 \2 is not a number. Write it as in \1 0.5"),
    (r"argument (\S+): invalid share value: (.*)", r"\1 \2 is not a share. Write it as in \1 10%"),
    (r"argument (\S+): invalid choice: (.*?) \(choose from (.*)\)", r"\1 does not know \2. Use one of \3"),
    (r"argument (\S+): expected one argument", r"\1 needs a value. Write it after the option"),
    (r"argument (\S+): ignored explicit argument (.*)", r"\1 takes no value. Leave \2 out"),
    (r"argument (\S+): refused: (.*)", r"\1 \2"),
    (r"the following arguments are required: (.*)", r"\1 is missing. Add it to the command"),
)


@dataclass(frozen=True)
class OptionFacts:
    """Facts of an option besides its field's type and default.

    Attributes:
        help: A verb phrase; `HIDDEN` leaves the option out of --help.
        group: Heading in --help.
        choices: Accepted values; () for all.
        least: Smallest number.
        most: Largest number.
        why: Reason for the range, part of a refusal.
        usual: The default in words, if the field's default is None.
        metavar: The value's name in --help.
        bare: The value of the option when it is given without one.
        read: Function from the text to the value; None: the field's type.
        old: Former names of the option; they are refused with the new one.
        name: The option's name, if it is not the field's.
        positional: The value is given without a name.
    """

    help: str = ""
    group: str = ""
    choices: Collection[str] = ()
    least: float = -math.inf
    most: float = math.inf
    why: str = ""
    usual: str = ""
    metavar: str = ""
    bare: Any = None
    read: Callable[[str], Any] | None = None
    old: Sequence[str] = ()
    name: str = ""
    positional: bool = False


def option(default: Any = MISSING, help: str = "", **about: Any) -> Any:
    """Declare a dataclass field that is an option; ``about`` holds fields of `OptionFacts`."""
    metadata = {_KEY: OptionFacts(help, **about)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def share(text: str) -> float:
    """Parse a share: 0.25 for ``25%`` and for ``0.25``.

    Raises:
        ValueError: no number, or one of 1 or more without %: who writes 10 means 10%, not 1000%.
    """
    if text.endswith("%"):
        return float(text[:-1]) / 100
    if 1 <= (value := float(text)) < math.inf:
        raise ValueError(f"write {text}%")
    return value


def parse(kind: type[T], arguments: Sequence[str] | None = None, **settings: Any) -> T:
    """Parse a command line, by default the process's, of options that a dataclass declares; ``settings``: of `Parser`.

    Raises:
        SystemExit: 2 with one line on standard error, 0 after --help.
    """
    return kind(**vars(parser(kind, **settings).parse_args(arguments)))


def parser(kind: type, **settings: Any) -> Parser:
    """Return the parser of options that a dataclass declares."""
    top = Parser(**{"description": inspect.getdoc(kind)} | settings)
    add(top, kind)
    return top


def add(to: Parser, kind: type) -> None:
    """Add the fields of a dataclass to a parser, under their groups in the order of its GROUPS."""
    hints = typing.get_type_hints(kind)
    groups = {name: to.add_argument_group(name) for name in getattr(kind, "GROUPS", ())}
    usage = []
    for entry in fields(kind):
        about = entry.metadata.get(_KEY, OptionFacts())
        if about.group and about.group not in groups:
            groups[about.group] = to.add_argument_group(about.group)
        name = entry.name if about.positional else about.name or f"--{entry.name.replace('_', '-')}"
        settings = _settings(entry, about, hints[entry.name])
        groups.get(about.group, to).add_argument(name, **settings)
        for old in about.old:
            to.add_argument(f"--{old}", nargs="?", action=_Renamed, const=name, default=HIDDEN, help=HIDDEN)
        value = settings.get("metavar") or entry.name.upper()
        if about.positional:
            usage.append(f"[{value}]" if settings.get("nargs") in ("?", "*") else value)
        elif settings.get("required"):
            usage.append(f"{name} {value}")
    to.usage = " ".join([to.prog, *usage, "[options]"])


def add_commands(to: Parser, kinds: Mapping[str, type]) -> dict[str, Parser]:
    """Add subcommands, each with the options of a dataclass; return their parsers.

    The attribute ``command`` of the options is the subcommand's name.
    """
    commands = to.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {}
    for name, kind in kinds.items():
        text = inspect.getdoc(kind) or ""
        parsers[name] = commands.add_parser(name, description=text, help=text.splitlines()[0].rstrip("."))
        add(parsers[name], kind)
    return parsers


def answering(main: Callable[..., int]) -> Callable[..., int]:
    """Wrap a command's main: a UserError prints one line and exits with 2, and a reader that closes the pipe gives 0."""

    @functools.wraps(main)
    def answered(*arguments, **options) -> int:
        try:
            status = main(*arguments, **options)
            sys.stdout.flush()
            return status
        except UserError as error:
            print(one_line(f"error: {error}"), file=sys.stderr)
            return 2
        except BrokenPipeError:  # the reader (head, less) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0

    return answered


def typed(values: Mapping[str, Any]) -> list[str]:
    """Return options, by the names of their fields, as words of a command line; those that are not set are left out."""
    words = []
    for name, value in values.items():
        for one in value if isinstance(value, list) else [value]:
            if one not in (None, "") and one is not False:
                words += [f"--{name.replace('_', '-')}", *([] if one is True else [str(one)])]
    return words


def value_in(about: OptionFacts, value: Any) -> str:
    """Return how an option's value violates its range, as the end of an error; '' if it does not."""
    free = (about.least, about.most) == (-math.inf, math.inf)
    if free or not isinstance(value, int | float) or about.least <= value <= about.most:
        return ""
    upto = "or more" if about.most == math.inf else f"to {about.most:,}"
    return f"{value}: {about.why + '; ' if about.why else ''}use {about.least:,} {upto}"


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one line: problem, cause, fix."""

    def __init__(self, *, owners: Callable[[], Mapping[str, str]] = dict, **settings: Any) -> None:
        """owners: returns which other command has an option, by the option's name."""
        self.owners = owners
        super().__init__(**{"formatter_class": _Formatter, "allow_abbrev": False} | settings)

    def parse_known_args(self, args=None, namespace=None):
        """Refuse empty values, so that an unset shell variable does not start a run with the default."""
        arguments = sys.argv[1:] if args is None else list(args)
        names = _options(self)
        for before, value in zip(["", *arguments], arguments):
            if before.startswith("--") and not value or re.fullmatch(r"--[\w-]+=", value):
                self.error(f"{value[:-1] or before} has an empty value. Give it a value, or leave it out")
        for name in (value.partition("=")[0] for value in arguments):
            if re.match(r"--\w", name) and name not in names:
                self.error(self._unknown(name))
        return super().parse_known_args(arguments, namespace)

    def error(self, message: str):
        """Print the error and exit with 2."""
        if match := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message, re.S):
            near = difflib.get_close_matches(match[1], re.findall(r"'([^']*)'", match[2]), 1, 0.7)
            message = f"{message}. Did you mean {near[0]}?" if near else message
        for pattern, wording in _WORDINGS:
            message = re.sub(pattern, wording, message, flags=re.S)
        if match := re.fullmatch(r"unrecognized arguments: (.*)", message, re.S):
            message = self._unknown(match[1].split()[0] if match[1].split() else match[1])
        ended = message if message.endswith(("?", ".")) else f"{message}."
        print(one_line(f"error: {ended} `{self.prog} --help` lists all options"), file=sys.stderr)
        raise SystemExit(2)

    def _unknown(self, name: str) -> str:
        if not name.startswith("-"):
            return f"{name!r} is no option and belongs to none. Quote a value that holds a space"
        if owner := self.owners().get(name):
            return f"there is no option {name} here. It belongs to {owner}"
        near = difflib.get_close_matches(name, _options(self, visible=True), 1, 0.7)
        return f"there is no option {name}." + (f" Did you mean {near[0]}?" if near else "")


class _Renamed(argparse.Action):
    """Refuse the old name of an option."""

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(f"{option_string} has a new name. Use {self.const}")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help in short lines, so that an option takes one."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(shutil.get_terminal_size().columns - 2, WIDEST))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Fill paragraphs, and leave those with indented lines, which are lists and code, as they are."""
        raw, filled = super()._fill_text, argparse.HelpFormatter._fill_text
        parts = re.split(r"\n\s*\n", text.strip())
        return "\n\n".join(raw(p, width, indent) if "\n " in p else filled(self, p, width, indent) for p in parts)


def _settings(entry: Any, about: OptionFacts, hint: Any) -> dict:
    """Return the options of `add_argument` for a field."""
    kind, many = _kind(hint)
    required = entry.default is MISSING and entry.default_factory is MISSING
    if kind is bool:
        return {"action": "store_true", "help": about.help}
    settings: dict[str, Any] = {"type": _reader(about, kind), "help": about.help.replace("%", "%%")}
    if about.name:
        settings["dest"] = entry.name
    if about.choices:
        settings["choices"] = tuple(about.choices)
    metavar = about.metavar or {int: "N", float: "X"}.get(kind, "")
    if metavar:
        settings["metavar"] = metavar
    if about.positional:
        if many:
            return settings | {"nargs": "+" if required else "*"}
        return settings if required else settings | {"nargs": "?", "default": entry.default}
    if many:  # some values after the option, or, where there are none by default, the option again and again
        default = entry.default_factory()
        return settings | {"default": default} | ({"nargs": "+"} if default else {"action": "append"})
    if about.bare is not None:
        settings |= {"nargs": "?", "const": about.bare}
    default = None if required else entry.default
    usual = about.usual or default
    if usual not in (None, "") and about.help != HIDDEN:
        settings["help"] = f"{about.help} (default: {usual})".strip().replace("%", "%%")
    return settings | {"default": default, "required": required}


def _kind(hint: Any) -> tuple[type, bool]:
    """Return a field's type without None, of a list its elements', and whether it is a list."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is list:
        return typing.get_args(hint)[0], True
    return hint, False


def _reader(about: OptionFacts, kind: type) -> Callable[[str], Any]:
    """Return a function that makes the value of a text and refuses one that is out of range."""
    make = about.read or (lambda text: Path(text).expanduser() if kind is Path else kind(text))

    def read(text: str) -> Any:
        value = make(text)
        if wrong := value_in(about, value):
            raise argparse.ArgumentTypeError(f"refused: {wrong}")
        return value

    read.__name__ = getattr(about.read, "__name__", kind.__name__)  # argparse says it
    return read


def _options(parser: argparse.ArgumentParser, visible: bool = False) -> list[str]:
    """Return the long options of a parser and of its subcommands; visible: those of --help alone."""
    names = []
    for action in parser._actions:
        if not (visible and action.help == HIDDEN):
            names += [name for name in action.option_strings if name.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            names += [name for sub in action.choices.values() for name in _options(sub, visible)]
    return names

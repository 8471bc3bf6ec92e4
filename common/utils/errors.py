"""What is said to the person at the keyboard: errors of one line that name the thing, the reason and the remedy; the log."""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import sys
from collections.abc import Iterable, Sequence

LONGEST = 500  # characters of an error; more is not read
_FEW = 12  # so many names are listed in full; lm-eval alone knows fourteen thousand tasks
_NAME = 80  # characters of a name that are said and compared
# torchao comes with GPTQ's extra: what it says of kernels that a machine lacks is said at every import
_NOISY = ("httpx", "urllib3", "filelock", "lm_eval", "datasets", "transformers", "torchao", "torch.utils._pytree")


# What argparse says, and how it is said here.
_OURS = (
    (r"argument (\S+): invalid int value: (.*)", r"\1 \2 is not a whole number. Write digits alone, as in \1 8"),
    (r"argument (\S+): invalid float value: (.*)", r"\1 \2 is not a number. Write it as in \1 0.5"),
    (r"argument (\S+): invalid choice: (.*?) \(choose from (.*)\)", r"\1 does not know \2. Use one of \3"),
    (r"argument (\S+): expected one argument", r"\1 needs a value. Write it after the option"),
    (r"argument (\S+): ignored explicit argument (.*)", r"\1 takes no value. Leave \2 out"),
    (r"the following arguments are required: (.*)", r"\1 is missing. Add it to the command"),
)


class UserError(Exception):
    """Something the user can put right. The command line prints it as one line, without a traceback, and exits with 2."""


class UserValueError(UserError, ValueError):
    """A `UserError` about a value, for functions whose contract promises `ValueError`."""


class NoData(UserError):
    """Text or items that a measurement reads cannot be had: its cell says so, and the others go on."""


def plural(count: int, noun: str) -> str:
    """A number of things in words.

    >>> plural(1, "layer"), plural(1_000, "window")
    ('1 layer', '1,000 windows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def one_line(error: object) -> str:
    """An error's text on one line; of a longer one than `LONGEST` the middle is left out."""
    text = " ".join(str(error).split())
    half = (LONGEST - 5) // 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one line."""

    def parse_known_args(self, args=None, namespace=None):
        """Refuse empty values: a shell variable that is not set should not start a run with the default."""
        given = sys.argv[1:] if args is None else list(args)
        for before, value in zip(["", *given], given):
            if before.startswith("--") and not value or value.startswith("--") and value.endswith("="):
                self.error(f"{value[:-1] or before} has an empty value. Give it a value, or leave it out")
        return super().parse_known_args(given, namespace)

    def error(self, message: str):
        """Say what is wrong and exit with 2."""
        for pattern, ours in _OURS:
            message = re.sub(pattern, ours, message)
        if match := re.fullmatch(r"unrecognized arguments: (.*)", message, re.S):
            message = self.unknown_option(match[1])
        ended = message if message.endswith(("?", ".")) else f"{message}."
        print(one_line(f"error: {ended} `{self.prog} --help` lists all options"), file=sys.stderr)
        raise SystemExit(2)

    def unknown_option(self, given: str, others: Iterable[str] = ()) -> str:
        """Return the message for an option that does not exist; others: names beside the parser's own."""
        name = given.split()[0].split("=")[0] if given.split() else given
        if not name.startswith("-"):
            return f"{name!r} is no option and belongs to none. Quote a value that holds a space"
        near = difflib.get_close_matches(name, [*_options(self), *others], 1, 0.7)
        return f"there is no option {name}." + (f" Did you mean {near[0]}?" if near else "")


def quiet_logging(verbose: bool = False) -> None:
    """Log to standard error as the command lines do: our warnings, and only the errors of the libraries beneath."""
    level, root = logging.DEBUG if verbose else logging.WARNING, logging.getLogger()
    others = list(root.handlers)  # of a program around this one: they keep what they are told
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", stream=sys.stderr)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for handler in root.handlers:
        if handler not in others:
            handler.addFilter(_Once())  # a sweep reads the same model again and again


class _Once(logging.Filter):
    """Let each text pass once."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in self.said
        self.said.add(text)
        return new


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a parser and of its subcommands."""
    found = []
    for action in parser._actions:
        found += [name for name in action.option_strings if name.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            found += [name for sub in action.choices.values() for name in _options(sub)]
    return found


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """The error for a name that is not in a registry: with the nearest three names, or all of a few when none is near.

    where: says where all names are, if that is anywhere; told unless one name alone is meant.

    >>> str(unknown("model", "llama2-7b", ["llama-2-7b", "qwen3-8b"]))
    "unknown model 'llama2-7b'; did you mean 'llama-2-7b'?"
    """
    known = sorted(set(known))
    given = name if len(str(name)) <= _NAME else f"{str(name)[:_NAME]}..."
    likeness = {other: _likeness(str(name).lower()[:_NAME], other.lower()) for other in known}
    nearest = sorted(known, key=lambda other: -likeness[other])
    best = max(likeness.values(), default=0.0)
    near = [other for other in nearest if likeness[other] >= max(0.55, best - 0.05)][:3]
    listed = ", ".join(known)
    more = f"; {where}" if where and len(near) != 1 else ""
    if near:
        return UserError(f"unknown {kind} {given!r}; did you mean {_either(near)}?{more.removeprefix(';')}")
    if len(known) <= _FEW and len(listed) <= LONGEST // 2:
        return UserError(f"unknown {kind} {given!r}; known: {listed or 'none'}")
    return UserError(f"unknown {kind} {given!r}; the nearest of {len(known):,}: {_either(nearest[:3])}{more}")


def first_of(names: Sequence[str], shown: int) -> str:
    """The first ``shown`` names of a list, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more}"


def _either(names: list[str]) -> str:
    return " or ".join(map(repr, names))


def _likeness(name: str, other: str) -> float:
    """From 0 to 1; what begins as the name does is near, however much longer it is."""
    begins = 0.75 if len(name) > 2 and other.startswith(name) else 0.0
    return max(begins, difflib.SequenceMatcher(None, name, other).ratio())

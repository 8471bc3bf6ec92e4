"""What is said to the person at the keyboard: errors of one line that name the thing, the reason and the remedy; the log."""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Iterable

LONGEST = 500  # characters of an error; more is not read
_LISTED = 60  # lm-eval alone knows fourteen thousand tasks
# torchao comes with GPTQ's extra: what it says of kernels that a machine lacks is said at every import
_NOISY = ("httpx", "urllib3", "filelock", "lm_eval", "datasets", "transformers", "torchao", "torch.utils._pytree")


class UserError(Exception):
    """Something the user can put right. The command line prints it as one line, without a traceback, and exits with 2."""


class UserValueError(UserError, ValueError):
    """A `UserError` about a value, for functions whose contract promises `ValueError`."""


class NoData(UserError):
    """Text or items that a measurement reads cannot be had: its cell says so, and the others go on."""


def one_line(error: object) -> str:
    """An error's text on one line; of a longer one than `LONGEST` the middle is left out."""
    text = " ".join(str(error).split())
    half = (LONGEST - 5) // 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"


def quiet_logging(verbose: bool = False) -> None:
    """Log to standard error as the command lines do: our warnings, and only the errors of the libraries beneath."""
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", stream=sys.stderr)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not in a registry, with the nearest names, or all of them when none is near.

    >>> str(unknown("model", "llama2-7b", ["llama-2-7b", "qwen3-8b"]))
    "unknown model 'llama2-7b'; did you mean 'llama-2-7b'?"
    """
    known = sorted(known)
    likeness = {other: difflib.SequenceMatcher(None, str(name).lower(), other.lower()).ratio() for other in known}
    best = max(likeness.values(), default=0.0)
    near = [other for other in known if likeness[other] >= max(0.55, best - 0.05)]
    near = sorted(near, key=lambda other: -likeness[other])[:3]
    if near:
        return UserError(f"unknown {kind} {name!r}; did you mean {' or '.join(map(repr, near))}?")
    shown = ", ".join(known[:_LISTED]) + (f", ... ({len(known)} in all)" if len(known) > _LISTED else "")
    return UserError(f"unknown {kind} {name!r}; known: {shown or 'none'}")

"""Errors meant for the person at the keyboard: one line that names the thing, the reason and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 60  # lm-eval alone knows fourteen thousand tasks


class UserError(Exception):
    """Something the user can put right. The command line prints it as one line, without a traceback, and exits with 2."""


class UserValueError(UserError, ValueError):
    """A `UserError` about a value, for functions whose contract promises `ValueError`."""


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

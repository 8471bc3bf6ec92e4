"""Report errors in one line that names the problem, the cause and the fix; set up the log."""

import difflib
import errno
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from common.utils.make_names import translated

LONGEST = 500  # characters of an error; more is not read
_FEW = 12  # so many names are listed in full; lm-eval alone knows fourteen thousand tasks
_NAME = 80  # characters of a name that are said and compared
# How allocators of CPU and GPU, and cuBLAS, say that there is not enough memory.
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
# How libraries that have no errno say it: safetensors and tokenizers, huggingface_hub.
_FULL = re.compile("os error 28|No space left on device|disk space")
# torchao comes with GPTQ's extra: what it says of kernels that a machine lacks is said at every import
_NOISY = ("httpx", "urllib3", "filelock", "lm_eval", "datasets", "transformers", "torchao", "torch.utils._pytree")


class UserError(Exception):
    """An error that the user can fix. The command line prints it as one line, without a traceback, and exits with 2."""


class UserValueError(UserError, ValueError):
    """A `UserError` about a value, for functions whose contract promises `ValueError`."""


class NoData(UserError):
    """Text or items for a measurement are not available: its cell says so, and the others continue."""


def plural(count: int, noun: str) -> str:
    """Return a number of things in words.

    >>> plural(1, "layer"), plural(1_000, "sequence")
    ('1 layer', '1,000 sequences')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(parts: Iterable[object]) -> str:
    """Join parts, one at least, by commas and a last "and".

    >>> listed(["7", "9", "11"])
    '7, 9 and 11'
    """
    *most, last = map(str, parts)
    return f"{', '.join(most)} and {last}" if most else last


def one_line(error: object) -> str:
    """Return an error's text on one line, in make's words under make; the middle of a longer text is left out."""
    text = translated(" ".join(str(error).split()))
    half = (LONGEST - 5) // 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def is_full_disk(error: BaseException | None) -> bool:
    """Return whether an error, or one that it came from, says that a disk is full."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out; most allocators raise a plain RuntimeError."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY)


def quiet_logging(verbose: bool = False) -> None:
    """Log to standard error as the command lines do: this project's warnings, and only the errors of libraries."""
    level, root = logging.DEBUG if verbose else logging.WARNING, logging.getLogger()
    foreign = list(root.handlers)  # of a program around this one: they keep what they are told
    logging.basicConfig(level=level, stream=sys.stderr)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for handler in root.handlers:
        if handler not in foreign:
            handler.setFormatter(_AsErrors())
            handler.addFilter(_Once())  # a sweep reads the same model again and again


@contextmanager
def errors_only(logger_name: str, level: int = logging.ERROR) -> Iterator[None]:
    """Let a library log nothing below a level while the context is open."""
    logger = logging.getLogger(logger_name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


class _AsErrors(logging.Formatter):
    """Begin a line as errors of the command lines begin: "warning: "."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {super().format(record)}"


class _Once(logging.Filter):
    """Let each text pass once."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in self.seen
        self.seen.add(text)
        return new


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """Return the error for an unknown name, with the nearest three names, or all of a few when none is near.

    ``where`` names the place of a list of all names, which is stated unless exactly one name is near.

    >>> str(unknown("model", "llama2-7b", ["llama-2-7b", "qwen3-8b"]))
    "unknown model 'llama2-7b'; did you mean 'llama-2-7b'?"
    """
    known = sorted(set(known))
    quoted = name if len(str(name)) <= _NAME else f"{str(name)[:_NAME]}..."
    likeness = {candidate: _likeness(str(name).lower()[:_NAME], candidate.lower()) for candidate in known}
    nearest = sorted(known, key=lambda candidate: -likeness[candidate])
    best = max(likeness.values(), default=0.0)
    near = [candidate for candidate in nearest if likeness[candidate] >= max(0.55, best - 0.05)][:3]
    all_names = ", ".join(known)
    hint = f"; {where}" if where and len(near) != 1 else ""
    if near:
        return UserError(f"unknown {kind} {quoted!r}; did you mean {_either(near)}?{hint.removeprefix(';')}")
    if len(known) <= _FEW and len(all_names) <= LONGEST // 2:
        return UserError(f"unknown {kind} {quoted!r}; known: {all_names or 'none'}")
    return UserError(f"unknown {kind} {quoted!r}; the nearest of {len(known):,}: {_either(nearest[:3])}{hint}")


def with_sentence(error: UserError, sentence: str) -> UserError:
    """Return an error of the same type whose text goes on with a sentence.

    >>> str(with_sentence(UserError("unknown model 'x'"), "There is no directory x either"))
    "unknown model 'x'. There is no directory x either"
    """
    stop = "" if str(error).endswith(("?", ".")) else "."
    return type(error)(f"{error}{stop} {sentence}")


def first_of(names: Sequence[object], count: int) -> str:
    """Return the first ``count`` names of a list, and how many more there are."""
    rest = f" and {len(names) - count} more" if len(names) > count else ""
    return f"{', '.join(map(str, names[:count]))}{rest}"


def _either(names: list[str]) -> str:
    return " or ".join(map(repr, names))


def _likeness(name: str, candidate: str) -> float:
    """Return a likeness from 0 to 1; a candidate that begins as the name does is near, however much longer it is."""
    begins = 0.75 if len(name) > 2 and candidate.startswith(name) else 0.0
    return max(begins, difflib.SequenceMatcher(None, name, candidate).ratio())

"""Start every command line alike: Ctrl-C gives one line and exit status 130 at any moment, also during imports.

A KeyboardInterrupt in the middle of an import is a traceback, and some libraries make another error of it; so until a
command's own code runs, which answers it, the process ends at once: nothing has been begun. No library for command lines
answers signals before its own import is done.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERRUPTED = 130
ENDING = (signal.SIGTERM, signal.SIGHUP)  # as a scheduler, `timeout` or a closed terminal end a process


def guard() -> None:
    """From here on Ctrl-C ends the process; not where the caller has it ignored (nohup), and not off the main thread."""
    _answer(signal.default_int_handler, _leave)


def run(main: Callable[..., int], *arguments) -> int:
    """Return the exit status of a command's own code.

    Ctrl-C, SIGTERM and SIGHUP are a KeyboardInterrupt; where the command does not answer it, it is one line. The process is
    to end then.
    """
    _answer(_leave, signal.default_int_handler)
    try:
        with ended_as_by_ctrl_c():
            return main(*arguments)
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        return INTERRUPTED
    finally:
        _answer(signal.default_int_handler, signal.SIG_IGN)


@contextmanager
def nothing_begun() -> Iterator[None]:
    """Inside, Ctrl-C, SIGTERM and SIGHUP end the process at once: for imports that wait until they are needed."""
    guarded = [number for number in (signal.SIGINT, *ENDING) if _answer(signal.default_int_handler, _leave, number)]
    try:
        yield
    finally:
        for number in guarded:
            _answer(_leave, signal.default_int_handler, number)


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP are Ctrl-C; not where the caller has them ignored (nohup), and not off the main thread."""
    answers = (signal.SIG_DFL, signal.default_int_handler)
    answered = [number for number in ENDING if _answer(*answers, number)]
    try:
        yield
    finally:
        for number in answered:
            _answer(*reversed(answers), number)


def _answer(before, after, number: int = signal.SIGINT) -> bool:
    """Exchange the answer to a signal, if it is `before`; whether it was."""
    if signal.getsignal(number) is not before:
        return False
    try:
        signal.signal(number, after)
    except ValueError:  # not the main thread, which alone is interrupted
        return False
    return True


def _leave(*_) -> None:
    os.write(2, b"interrupted; nothing was begun\n")
    os._exit(INTERRUPTED)

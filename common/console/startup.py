"""Start every command line alike: Ctrl-C gives one line and exit status 130 at any moment, also during imports.

A KeyboardInterrupt in the middle of an import is a traceback, and some libraries make another error of it; so until a
command's own code runs, which answers it, the process ends at once: nothing has been begun. No library for command lines
answers signals before its own import is done.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

INTERRUPTED = 130
SLOW = 10.0  # seconds from which on imports say that they take long
ENDING = (signal.SIGTERM, signal.SIGHUP)  # as a scheduler, `timeout` or a closed terminal end a process


def guard() -> None:
    """Let Ctrl-C end the process at once from here on.

    It has no effect if the caller ignores Ctrl-C (nohup), or off the main thread.
    """
    _exchange(signal.default_int_handler, _exit_at_once)


def run(main: Callable[..., int], *arguments) -> int:
    """Run a command's main function and return its exit status.

    Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt in it. If the command does not handle it, one line is printed.
    The process should end afterwards.
    """
    _exchange(_exit_at_once, signal.default_int_handler)
    try:
        with ended_as_by_ctrl_c():
            return main(*arguments)
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        return INTERRUPTED
    finally:
        _exchange(signal.default_int_handler, signal.SIG_IGN)


@contextmanager
def nothing_begun() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP end the process at once while the context is open; for late imports.

    Imports that take long say so on standard error.
    """
    slow = threading.Timer(
        SLOW, os.write, (2, b"still loading PyTorch and Transformers: the disk or the machine is busy\n")
    )
    slow.daemon = True
    slow.start()
    try:
        with _exchanged(signal.default_int_handler, _exit_at_once, (signal.SIGINT, *ENDING)):
            yield
    finally:
        slow.cancel()


def ended_as_by_ctrl_c() -> AbstractContextManager[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C while the context is open.

    Signals that the caller ignores (nohup) stay ignored. Off the main thread it has no effect.
    """
    return _exchanged(signal.SIG_DFL, signal.default_int_handler, ENDING)


def without_ctrl_c() -> AbstractContextManager[None]:
    """Ignore Ctrl-C while the context is open, and for good in processes that start then: who started them ends them."""
    return _exchanged(signal.default_int_handler, signal.SIG_IGN, (signal.SIGINT,))


@contextmanager
def _exchanged(before, after, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Exchange the answers that are `before` while the context is open."""
    exchanged = [number for number in numbers if _exchange(before, after, number)]
    try:
        yield
    finally:
        for number in exchanged:
            _exchange(after, before, number)


def _exchange(before, after, number: int = signal.SIGINT) -> bool:
    """Exchange the answer to a signal if it is `before`; return whether it was."""
    if signal.getsignal(number) is not before:
        return False
    try:
        signal.signal(number, after)
    except ValueError:  # not the main thread, which alone is interrupted
        return False
    return True


def _exit_at_once(*_) -> None:
    os.write(2, b"interrupted; nothing was begun\n")
    os._exit(INTERRUPTED)

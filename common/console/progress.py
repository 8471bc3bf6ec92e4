"""Show the progress of long work on standard error: a bar on a terminal, elsewhere lines for a log file.

    for layer in track(layers, "SLEB", unit="layer", each=True) as bar: ...     bar.note("layer 21 goes")

Off a terminal a line is written after every step of work whose steps are long (`each`; those of less than five seconds share
one), and otherwise once a minute; work that is done within the first minute then says nothing.

tqdm draws the bar. Off a terminal it would write carriage returns and draw again whenever its monitor thread likes; so the
lines are written here.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from tqdm import tqdm

MOMENT, MINUTE = 5.0, 60.0  # seconds between two lines: of long steps, of short ones
_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"  # without tqdm's estimate of the time that is left
Item = TypeVar("Item")
tqdm.set_lock(threading.RLock())  # no process shares a bar; a lock of processes would be said to leak when one is ended


class track(Generic[Item]):  # noqa: N801 - used like range
    """Iterate over ``items``, or count with `update`, and show the progress under the label ``what``.

    ``initial`` items were done before; ``shown=False`` shows nothing; with ``leave`` the bar stays on the terminal once
    it is full; with ``each`` a line is written after every step if standard error is no terminal. ``left`` returns the
    seconds left, or None if unknown; without it, steps are assumed to be equally long.
    """

    def __init__(
        self,
        items: Iterable[Item] | None,
        what: str,
        *,
        total: int | None = None,
        initial: int = 0,
        unit: str = "step",
        shown: bool = True,
        leave: bool = True,
        each: bool = False,
        left: Callable[[], float | None] | None = None,
    ) -> None:
        self.items, self.what, self.unit, self.each = items, what, unit, each
        self.total = len(items) if total is None and hasattr(items, "__len__") else total
        self.count = self.initial = initial
        self.text, self.left = "", left
        self.lines = shown and not sys.stderr.isatty()
        self.bar = tqdm(
            desc=what,
            total=self.total,
            initial=initial,
            unit=unit,
            leave=leave,
            disable=not shown or self.lines,
            bar_format=None if left is None else _FORMAT,
        )
        self.started = time.monotonic()
        self.last_line: float | None = None

    def __iter__(self) -> Iterator[Item]:
        with self:
            for item in self.items:
                yield item
                self.update()

    def __enter__(self) -> track[Item]:
        return self

    def __exit__(self, *unused) -> None:
        self.close()

    def close(self) -> None:
        """End the bar."""
        self.bar.close()

    def note(self, text: str, *, say: bool = False) -> None:
        """Show a text about the present step, behind the bar or in the step's line.

        ``say`` prints a line at once before a step that may be long, unless there was one just now.
        """
        self.text = text
        self._show(refresh=True)
        if say:
            self._say(first=self.last_line is None)

    def update(self, steps: int = 1) -> None:
        """Report that ``steps`` more steps are done."""
        self.count += steps
        if self.left is not None:
            self._show(refresh=False)
        self.bar.update(steps)
        self._say()

    def _show(self, refresh: bool) -> None:
        """Set what stands behind the bar."""
        seconds = None if self.left is None or self.bar.disable else self._seconds_left(0.0)
        estimate = "" if seconds is None else f"about {clock(seconds)} left"
        self.bar.set_postfix_str(", ".join(filter(None, (self.text, estimate))), refresh=refresh)

    def _say(self, first: bool = False) -> None:
        now = time.monotonic()
        if self.lines and (first or now - (self.last_line or self.started) >= (MOMENT if self.each else MINUTE)):
            self.last_line = now
            print(self._line(now - self.started), file=sys.stderr, flush=True)

    def _line(self, elapsed: float) -> str:
        of = f" of {self.total:,}" if self.total else ""
        parts = [f"{self.what}: {self.unit} {self.count:,}{of}", self.text, f"{clock(elapsed)} elapsed"]
        if (seconds := self._seconds_left(elapsed)) is not None:
            parts.append(f"about {clock(seconds)} left")
        return ", ".join(part for part in parts if part)

    def _seconds_left(self, elapsed: float) -> float | None:
        if not self.total or self.count >= self.total:
            return None
        if self.left is not None:
            return self.left()
        done = self.count - self.initial
        return elapsed / done * (self.total - self.count) if done else None


def clock(seconds: float) -> str:
    """Format seconds for people: ``0:05``, ``12:30``, ``3:04:05``.

    >>> clock(3725)
    '1:02:05'
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def say(line: str) -> None:
    """Print a line about the work to standard error; results go to standard output."""
    print(line, file=sys.stderr, flush=True)

"""How far targets are: cells done, running, failed and left, with rates, from records and locks alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from common.records.results import Store
from common.utils import locks
from common.utils.progress import clock
from reproductions.engine import costs
from reproductions.engine.runner import Work

HOUR = 3600.0
FIELDS = ("model", "done", "running", "failed", "no data", "left", "last hour", "time left")


@dataclass
class Count:
    """Cells of one model. done, failed, without data, being measured, and neither; hour: done in the last hour.

    rate: of `reproductions.engine.costs`' units done in a second of the last hour; todo: such units running and left.
    """

    done: int = 0
    running: int = 0
    failed: int = 0
    no_data: int = 0
    left: int = 0
    hour: int = 0
    worked: float = 0.0
    todo: float = 0.0
    holders: frozenset[str] = frozenset()

    def __add__(self, other: Count) -> Count:
        names = ("done", "running", "failed", "no_data", "left", "hour", "worked", "todo")
        summed = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Count(**summed, holders=self.holders | other.holders)

    def line(self, name: str, since: float) -> tuple[str, ...]:
        """As `FIELDS`; since: seconds that ``worked`` took."""
        numbers = (self.done, self.running, self.failed, self.no_data, self.left)
        rate = f"{self.hour * HOUR / since:,.0f}/h" if self.hour else "-"
        remaining = clock(self.todo * since / self.worked) if self.worked and self.todo else "-"
        return (name, *(f"{number:,}" for number in numbers), rate, remaining)


def count(work: Sequence[Work], store: Store, now: float | None = None) -> tuple[dict[str, Count], float]:
    """Counts by model of all cells that are wanted, and the seconds of the last hour in which records were written."""
    now = time.time() if now is None else now
    found: dict[str, Count] = {}
    earliest = now
    for entry in work:
        for benchmark in entry.benchmarks:
            cell, written = _cell(entry, benchmark, store, now)
            earliest = min(earliest, written)
            found[entry.recipe.model] = found.get(entry.recipe.model, Count()) + cell
    return found, max(1.0, now - earliest)


def _cell(entry: Work, benchmark: str, store: Store, now: float) -> tuple[Count, float]:
    """One cell's count, and when it was written if that was in the last hour."""
    recipe, record = entry.recipe, store.get(entry.recipe, benchmark)
    cost = costs.benchmark(recipe, benchmark)
    if record is not None and record.status == "ok":
        written = (store.written(recipe, benchmark) or 0) / 1e9
        if now - written > HOUR:
            return Count(done=1), now
        # a model's first record, so to say, has waited for its preparation: each cell carries its part of that
        seconds = record.provenance.get("seconds", 0.0) + record.provenance.get("preparing_seconds", 0.0)
        return Count(done=1, hour=1, worked=cost), written - seconds
    holder = locks.holder(store.lock_path(recipe, benchmark))
    if holder is not None:
        return Count(running=1, todo=cost, holders=frozenset([str(holder)])), now
    if record is None:
        return Count(left=1, todo=cost), now
    return Count(failed=1, todo=cost) if record.status == "failed" else Count(no_data=1), now


def render(counts: dict[str, Count], since: float) -> str:
    """A line for each model, one for all, and who is measuring."""
    total = sum(counts.values(), Count())
    lines = [FIELDS, *(value.line(name, since) for name, value in sorted(counts.items())), total.line("all", since)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(FIELDS))]
    rows = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))]) for line in lines
    ]
    return "\n".join([*rows, *(f"measuring: {name}" for name in sorted(total.holders))]) + "\n"

"""Which of the missing cells this process measures, where others may be measuring too.

A cell is locked before its model is prepared (`common.utils.locks`) and released once its record is written. Records
and locks are all that processes share, so any of them may be killed, and any other goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from common.pruning.recipe import Recipe
from common.records.results import Record, Store
from common.utils import locks
from common.utils.errors import UserError
from reproductions.engine.work import Work

log = logging.getLogger(__name__)

_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds between looks at others' locks; the last one from then on


class Turns:
    """Cells locked by this process; as a context manager it gives up what it still has.

    since: nanoseconds since the epoch: what was recorded after it was measured for this very request. force: what was
    recorded before it counts as missing. done: cells that others turned out to have measured. failed: of these.
    """

    def __init__(self, store: Store, since: int, force: bool) -> None:
        self.store, self.since, self.force = store, since, force
        self.done = self.failed = self._looks = 0
        self._mine: set[tuple[str, str]] = set()
        self._recipes: dict[str, Recipe] = {}
        self._told: set[str] = set()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *unused) -> None:
        for key, benchmark in list(self._mine):
            self.release(self._recipes[key], benchmark)

    def next(self, work: Sequence[Work], measure) -> tuple[list[Work], list[Work]]:
        """The first recipes of which cells are ours now, of one model, as many as are to be held together; and what is left.

        What others are measuring goes to the end; what they have measured is left out.
        """
        held: list[Work] = []
        theirs: list[Work] = []
        filled = Fraction(0)
        for position, entry in enumerate(work):
            share = Fraction(1, measure.held_together(entry.recipe))
            if held and (filled + share > 1 or entry.recipe.model != held[0].recipe.model):
                return held, [*work[position:], *theirs]
            mine, others = self._lock(entry)
            if mine.benchmarks:
                held.append(mine)
                filled += share
            if others.benchmarks:
                theirs.append(others)
        return held, theirs

    def release(self, recipe: Recipe, benchmark: str) -> None:
        """The cell's record is written, or it is given up."""
        self._mine.discard((recipe.hash, benchmark))
        locks.release(self.store.lock_path(recipe, benchmark))

    def wait(self, theirs: Sequence[Work]) -> None:
        """Pause; say, once for each, who is waited for."""
        for entry in theirs:
            for benchmark in entry.benchmarks:
                holder = locks.holder(self.store.lock_path(entry.recipe, benchmark))
                if holder is not None and str(holder) not in self._told:
                    self._told.add(str(holder))
                    log.warning("%s, %s: waiting for %s, which measures it", entry.title, benchmark, holder)
        time.sleep(_PAUSES[min(self._looks, len(_PAUSES) - 1)])
        self._looks += 1

    def _lock(self, entry: Work) -> tuple[Work, Work]:
        """The cells of a recipe that are ours now, and those that another process has."""
        mine, others = replace(entry, benchmarks=[]), replace(entry, benchmarks=[])
        for benchmark in entry.benchmarks:
            if self._settled(entry.recipe, benchmark):
                continue
            path = self.store.lock_path(entry.recipe, benchmark)
            try:
                taken = locks.take(path)
            except OSError as error:
                raise UserError(
                    f"cannot write the lock {path}: {error.strerror}; free space there or name another folder in "
                    "LAYERLAB_RESULTS; records written so far are kept"
                ) from error
            if not taken:
                others.benchmarks.append(benchmark)
            elif self._settled(entry.recipe, benchmark):  # recorded just before the lock was free
                locks.release(path)
            else:
                self._looks = 0
                self._mine.add((entry.recipe.hash, benchmark))
                self._recipes[entry.recipe.hash] = entry.recipe
                mine.benchmarks.append(benchmark)
        return mine, others

    def _settled(self, recipe: Recipe, benchmark: str) -> bool:
        """Whether another process has recorded the cell; a failure counts if it is of this request."""
        record = self._recorded(recipe, benchmark)
        if record is None:
            return False
        self.done += 1
        self.failed += record.status == "failed"
        return True

    def _recorded(self, recipe: Recipe, benchmark: str) -> Record | None:
        asked = (self.store.written(recipe, benchmark) or 0) >= self.since
        if self.force and not asked:
            return self.store.attempted(recipe, benchmark, self.since)
        record = self.store.get(recipe, benchmark)
        return record if record is not None and (asked or record.status == "ok") else None

"""Measure what a target still lacks: each cell once, each record written as soon as it is known."""

from __future__ import annotations

import errno
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction

from common.console.progress import track
from common.records import results
from common.records.results import Recipe, Record, Store
from common.utils import locks
from common.utils.errors import NoData, UserError, is_out_of_memory
from reproductions.engine.expected_time import TimeLeft
from reproductions.engine.work import Work, count_cells
from reproductions.spec import coverage, narrowing
from reproductions.spec.registry import Row, Table
from reproductions.spec.subjects import PAPER, Subject

log = logging.getLogger(__name__)

# Seconds for which models that are held together are prepared: so long the group's first record waits, and so much a kill
# loses. A GPU measures many cells in a minute.
CPU_GROUP, GPU_GROUP = 600.0, 60.0
PAUSE = 2.0  # seconds between looks at what other processes measure


def missing(tables: Sequence[Table], store: Store, subject: Subject, *, force: bool = False, **chosen) -> list[Work]:
    """Return the cells to measure, grouped by recipe.

    Cells that failed or had no data are tried again, and so is a part whose whole was measured anew. ``force`` measures
    all cells again, as the tables read them (`coverage.columns`). ``chosen``: see `_cells`.
    """
    work: dict[str, Work] = {}
    for row, recipe, benchmark in _cells(tables, store, subject, force=force, **chosen):
        record = None if force else store.get(recipe, benchmark)
        if record is not None and record.status == "ok" and not _outdated(record, recipe, store):
            continue
        entry = work.setdefault(recipe.hash, Work(recipe, f"{row.label} {row.sparsity} {row.name}"))
        if benchmark not in entry.benchmarks:
            entry.benchmarks.append(benchmark)
    return list(work.values())


def _cells(
    tables: Sequence[Table],
    store: Store,
    subject: Subject,
    *,
    models: Sequence[str] = (),
    pattern: str | None = None,
    limit: int | None = None,
    columns: Sequence[str] = (),
    force: bool = False,
) -> Iterator[tuple[Row, Recipe, str]]:
    """Yield the cells that a command names, each as its row, recipe and benchmark.

    Cells of the paper's models that need no weights are part of either profile. columns: patterns of labels or ids; where
    there are any, only the columns that fit one. force: of parts or the whole, what the tables read (`coverage`).
    """
    for table, _, rows in narrowing.fitting([(table, subject, models) for table in tables], pattern, limit):
        chosen = narrowing.named_columns(
            coverage.columns(table, store, subject, limit) if force else table.columns_for(subject), columns
        )
        for row in rows:
            for column in chosen if row.recipe is not None else ():
                if not column.shape_only or row.recipe == row.shapes:
                    yield row, row.recipe, column.benchmark
        shapes = (subject.toy or subject.printed) and not subject.changes
        for row in table.rows(PAPER, None) if shapes else []:
            if row.shapes is not None and narrowing.fits(row, models, pattern):
                for column in narrowing.named_columns(table.columns_for(PAPER), columns):
                    if column.weight_free:
                        yield row, row.shapes, column.benchmark


def _outdated(record: Record, recipe: Recipe, store: Store) -> bool:
    """Return whether the user has measured a part's whole again since the part was taken from it."""
    whole = store.get(recipe, record.provenance.get("part_of", record.benchmark))
    if whole is None or whole.status != "ok" or whole.origin == "published":
        return False
    return whole.provenance.get("measured_at") != record.provenance.get("measured_at")


def describe(error: BaseException) -> str:
    """Return one line that says why a cell failed, with the remedy if there is one."""
    if is_out_of_memory(error):
        return "out of memory; use a larger device, --dtype bfloat16 or --device auto"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk ({error.filename or 'a temporary file'}); free some, finished work is kept"
    first = (str(error).strip().splitlines() or [""])[0]
    return first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"


def measured(
    work: list[Work],
    store: Store,
    measure,
    *,
    device: str = "cpu",
    force: bool = False,
    lacking: Callable[[Recipe, str], str | None] = lambda recipe, benchmark: None,
    since: int | None = None,
    patience: float = math.inf,
) -> int:
    """Measure cells, except those of recipes that another process is measuring; return the number of failed ones.

    A failed cell is stored with its reason and does not stop the others. A cell without data is stored as such, and is
    no failure. A recipe is locked from before its model is prepared until its results are written. Processes share only
    results and locks, so any of them may be killed, and any other continues.

    Args:
        work: Work to measure, in this order.
        store: Store of results.
        measure: Offers ``held_together(recipe)``, ``prepare(recipe, device=, progress=, force=, recorded=)`` and
            ``benchmark(context, name)`` returning values, standard errors, details and, perhaps, outcomes per item.
        device: Device to measure on.
        force: Whether results from before ``since`` count as missing.
        lacking: Function that returns why a cell has no data, if that is known beforehand
            (`reproductions.engine.fetch.lacking`). Such cells are stored at once, and a model that only has such cells
            is not loaded.
        since: Time of the request in nanoseconds since the epoch; None: now, by this process alone. Cells that were
            stored or tried later are not measured again.
        patience: Seconds to wait while others measure all the rest; the recipes of a process that dies meanwhile are
            taken over.
    """
    provenance = results.environment() | {"device": device}
    shared_request = since is not None
    request = Request(store, time.time_ns() if since is None else since, force)
    work = _without(work if force else _unknown(work, store), store, lacking, provenance, shared_request)
    total = count_cells(work)
    logged: set[str] = set()  # one reason can stop every cell of a model: say it once
    failed, idle = 0, None
    time_left = TimeLeft(work, store)
    with track(None, "measuring", total=total, unit="cell", each=True, left=time_left.seconds) as bar:
        while work:
            # Models that are held together answer each benchmark one after the other: what they share is computed once.
            with ExitStack() as group_locks:
                group, work = _group(work, request, measure, device, bar, time_left, group_locks)
                if not group and work:
                    idle = idle or time.monotonic()
                    if time.monotonic() - idle >= patience:
                        break
                    if "waiting" not in logged:
                        logged.add("waiting")
                        log.warning("waiting for other processes, which measure %s and what is left", work[0].title)
                    time.sleep(PAUSE)
                    continue
                idle = None
                names = sorted({b: None for ready in group for b in ready.work.benchmarks}, key=_LAST.__contains__)
                cells = [(ready, name) for name in names for ready in group if name in ready.work.benchmarks]
                for ready, benchmark in cells:
                    bar.note(f"{ready.work.title}, {benchmark}")
                    record, items = _cell(ready, benchmark, measure, provenance | ready.provenance)
                    _keep(store, record, ready.work.recipe, items, shared_request)
                    failed += record.status == "failed"
                    if record.reason is not None and record.reason not in logged:
                        level = logging.ERROR if record.status == "failed" else logging.WARNING
                        log.log(level, "%s, %s: %s", ready.work.title, benchmark, record.reason)
                        logged.add(record.reason)
                    seconds = record.provenance["seconds"] if record.status == "ok" else None
                    time_left.done(ready.work.recipe.hash, benchmark, seconds)
                    bar.update()
                group = cells = ready = None  # they go before the next ones come: there may be room for one only
    return failed + request.failed


@dataclass
class Request:
    """Cells that one command requested; other processes may have measured some meanwhile.

    since: time of the request, in nanoseconds since the epoch. force: earlier results do not count. failed: cells that
    other processes stored as failed.
    """

    store: Store
    since: int
    force: bool
    failed: int = 0

    def recorded(self, recipe: Recipe, benchmark: str) -> Record | None:
        """Return another process's result of a cell, or of its failure if it was tried for this request."""
        this_request = (self.store.written(recipe, benchmark) or 0) >= self.since
        if self.force and not this_request:
            return self.store.attempted(recipe, benchmark, self.since)
        record = self.store.get(recipe, benchmark)
        return record if record is not None and (this_request or record.status == "ok") else None


@dataclass
class Ready:
    """A recipe locked by this process: its model, or why there is none, and facts about its preparation for its results."""

    work: Work
    prepared: object | None
    problem: Problem | None
    provenance: dict


def _group(
    work: Sequence[Work],
    request: Request,
    measure,
    device: str,
    bar: track,
    time_left: TimeLeft,
    group_locks: ExitStack,
) -> tuple[list[Ready], list[Work]]:
    """Lock and prepare the first free recipes, of one model, as many as are to be held together; also return what is left."""
    group: list[Ready] = []
    remaining, filled, started = list(work), Fraction(0), time.monotonic()
    for entry in work:
        if group and entry.recipe.model != group[0].work.recipe.model:
            continue
        share = Fraction(1, measure.held_together(entry.recipe))
        if group and (filled + share > 1 or time.monotonic() - started > (CPU_GROUP if device == "cpu" else GPU_GROUP)):
            break
        path = request.store.lock_path(entry.recipe)
        try:
            lock = locks.take(path)
        except OSError as error:
            raise UserError(
                f"cannot write the lock {path}: {error.strerror}; free space there or name another folder in "
                "LAYERLAB_RESULTS; records written so far are kept"
            ) from error
        if lock is None:
            continue
        remaining = [other for other in remaining if other is not entry]
        records = {name: record for name in entry.benchmarks if (record := request.recorded(entry.recipe, name))}
        request.failed += sum(record.status == "failed" for record in records.values())
        for benchmark in records:
            time_left.done(entry.recipe.hash, benchmark)
        bar.update(len(records))
        missing = entry.without(records)
        if not missing:
            lock.release()
            continue
        group_locks.callback(lock.release)
        filled += share
        ready = Ready(missing[0], *_prepared(missing[0], request.store, measure, device, request.force, bar))
        if ready.prepared is not None:
            time_left.done(entry.recipe.hash, None, ready.provenance["preparing_seconds"])
        group.append(ready)
    return group, remaining


def _keep(store: Store, record: Record, recipe: Recipe, items: dict, several: bool) -> None:
    """Write a record, unless it says that nothing was measured now where an earlier one has a value: that one stays.

    several: other processes measure for the same request, and are to know that it was tried.
    """
    if (
        record.status != "ok"
        and (earlier := store.get(recipe, record.benchmark)) is not None
        and earlier.status == "ok"
    ):
        log.warning("%s: not measured anew (%s); the earlier record is kept", record.benchmark, record.reason)
        if several:
            store.put(record, recipe, attempt=True)
        return
    store.put(record, recipe, items)


def _unknown(work: list[Work], store: Store) -> list[Work]:
    """Return the work that is no part of what has been measured; the records of what is are written."""
    from reproductions.measurements import partial_records  # loads torch: what shows a table does without

    remaining = []
    for entry in work:
        parts = {name: part for name in entry.benchmarks if (part := partial_records.part(store, entry.recipe, name))}
        for record, items in parts.values():
            store.put(record, entry.recipe, items)
        remaining += entry.without(parts)
    return remaining


def _without(
    work: list[Work], store: Store, lacking: Callable[[Recipe, str], str | None], shared: dict, several: bool
) -> list[Work]:
    """Return the work for which there is data; the other cells' records say why there is none."""
    remaining = []
    for entry in work:
        reasons = {name: reason for name in entry.benchmarks if (reason := lacking(entry.recipe, name)) is not None}
        for benchmark, reason in reasons.items():
            provenance = shared | {"measured_at": results.now()}
            record, _ = _record(entry.recipe, benchmark, None, None, Problem(reason, "no data"), provenance)
            _keep(store, record, entry.recipe, {}, several)
        remaining += entry.without(reasons)
    return remaining


# Measured after all others, so that most of a table is there early: about as many items as all other tasks have together.
_LAST = ("hellaswag",)


def _cell(ready: Ready, benchmark: str, measure, provenance: dict) -> tuple[Record, dict]:
    """Measure one cell; return its record, with its value or why there is none, and its outcomes per item."""
    started = time.perf_counter()
    recipe, outcome, problem = ready.work.recipe, None, ready.problem
    if ready.prepared is not None:
        outcome, problem = _attempt(lambda: measure.benchmark(ready.prepared, benchmark))
    provenance = provenance | {"seconds": time.perf_counter() - started}
    provenance |= results.peak_memory() | {"measured_at": results.now()}

    def legible() -> tuple[Record, dict]:
        record, items = _record(recipe, benchmark, ready.prepared, outcome, problem, provenance)
        Record.from_json(record.to_json())  # raises if its file could not be written or read: a type that JSON lacks
        return record, items

    result, illegible = _attempt(legible)
    return result or _record(recipe, benchmark, None, None, illegible, provenance)


def _prepared(
    entry: Work, store: Store, measure, device: str, force: bool, bar: track
) -> tuple[object | None, Problem | None, dict]:
    """Return a recipe's model, or why there is none, and the seconds that took, as its records name them."""
    bar.note(f"preparing {entry.title}", say=True)
    earlier = None if force else store.pruned(entry.recipe)
    options = {"device": device, "progress": True, "force": force, "recorded": earlier and earlier.details}
    started = time.perf_counter()
    prepared, problem = _attempt(lambda: measure.prepare(entry.recipe, **options))
    if prepared is not None and earlier is not None and (difference := _other_layers(prepared.details, earlier)):
        prepared, problem = None, Problem(difference, "failed")
    return prepared, problem, {"preparing_seconds": time.perf_counter() - started}


def _other_layers(details: Mapping, earlier: Record) -> str | None:
    """Return why a model is not the one of its recipe's record: what was removed from it is something else.

    None: it is the same.
    """
    for name in {"removed", "halves"} & details.keys() & earlier.details.keys():
        now, then = (sorted(layers[name]) for layers in (details, earlier.details))
        if now != then:
            return (
                f"the choice made here, {name} {now}, is not that of this row's records, {then} (scores nearly equal fall "
                "either way on another machine): the row would be of two models; FORCE=1 (--force) measures it anew, "
                "LAYERLAB_RESULTS=FOLDER keeps the records apart"
            )
    return None


@dataclass(frozen=True)
class Problem:
    """Reason why a cell has no value: one line, and the status of its result."""

    text: str
    status: str


def _attempt(action: Callable) -> tuple[object | None, Problem | None]:
    try:
        return action(), None
    except Exception as error:  # whatever stops one cell must not stop the others
        if not isinstance(error, UserError):
            log.debug("cell failed", exc_info=True)
        return None, Problem(describe(error), "no data" if isinstance(error, NoData) else "failed")


def _record(
    recipe: Recipe, benchmark: str, prepared, outcome, problem: Problem | None, provenance: dict
) -> tuple[Record, dict]:
    """Return the record of a cell, and its outcomes per item."""
    base = {"recipe": recipe.__dict__ | {}, "recipe_hash": recipe.hash, "benchmark": benchmark}
    if prepared is not None:
        provenance = provenance | prepared.provenance
    if outcome is None:
        return Record(**base, status=problem.status, reason=problem.text, provenance=provenance), {}
    values, stderr, details, *items = outcome
    details = prepared.details | details
    record = Record(**base, status="ok", values=values, stderr=stderr, details=details, provenance=provenance)
    return record, dict(*items)

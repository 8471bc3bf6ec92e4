"""Measure on a GPU what is missing of the real models, the most valuable first, and stop in time: `make gpu-batch`.

    python -m reproductions.engine.gpu_batch --dry-run             # what would be measured, and for how long
    python -m reproductions.engine.gpu_batch --minutes 9 --workers 8

A batch is a list of stages, each some tables of one model. Several processes share the GPU, as one model of this size does
not fill it. They take the stages in order, and within a stage the next configuration that nobody measures. When the time is
over they are ended: every finished cell has its record, and the same command continues with what is left.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from common.console import startup, threads
from common.console.command_line import answering, option, parse
from common.records.results import Store
from common.utils.errors import plural, quiet_logging
from reproductions.engine.work import count_cells

if __name__ == "__main__":
    startup.guard()
    threads.settle()

MODELS = ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct")
# How many times as fast as the published results' two CPU cores one process is, roughly; small cells are bound by overhead.
SPEED = {"cuda": 30.0, "cpu": 1.0}
MINUTES = 9.0
WORKERS = {"cuda": 8, "cpu": 1}


@dataclass(frozen=True)
class Stage:
    """Some columns of some tables.

    Attributes:
        title: Name in the forecast.
        targets: As `python -m reproductions list` prints them.
        columns: Labels; none: all columns.
        rows: Ids; none: all rows.
        trains: Whether rows with a training are meant, or those without.
        whole: Whether entire test sets and texts are read.
        shares: Whether only the papers' shares of layers are removed, if the table has more numbers.
        most: The largest model, in parameters.
    """

    title: str
    targets: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    trains: bool = False
    whole: bool = False
    shares: bool = False
    most: float = float("inf")


_TEXTS = ("table11-linearpatch", "table1-prunecomp")
_TASKS = ("table1-linearpatch", "table2-prunecomp")
_OTHERS = (
    "table12-linearpatch", "table3-prunecomp", "table4-prunecomp", "table1-laco", "table2-laco", "table1-reassessing",
    "table2-reassessing", "table4-reassessing", "tableK-reassessing",
)  # fmt: skip
_PARTS = ("table5-linearpatch", "figure6-linearpatch")
_LEADERS = ("Dense", *(f"{block}/{repair}" for block in "ls" for repair in ("none", "ghosted", "refit", "shift-llm")))
_ACCURACY = ("league-distilled", "league-texts")
_MMLU = ("league-questions",)
_READ = ("WIKI-2", "PTB")  # the league's texts
# The most valuable first. The stages of a group are measured on one model before the next model has its turn.
STAGES = (
    (Stage("perplexities of LinearPatch and Prune&Comp", _TEXTS), Stage("tasks of LinearPatch and Prune&Comp", _TASKS)),
    (Stage("league's leaders, perplexities", ("league",), columns=_READ, rows=_LEADERS, shares=True, most=1e9),),
    (
        Stage("accuracy after a refit", _ACCURACY, shares=True, most=1e9),
        Stage("accuracy after a short distillation", _ACCURACY, shares=True, trains=True, most=1e9),
    ),
    (
        Stage("MMLU after calibration on its examples", _MMLU, shares=True, most=2e9),
        Stage("MMLU after a short distillation on them", _MMLU, shares=True, trains=True, most=2e9),
    ),
    (Stage("other tables, nothing trained", _OTHERS),),
    (Stage("parts of the patch", _PARTS),),
    (Stage("league, perplexities", ("league", "ablation-league"), columns=_READ, shares=True, most=1e9),),
    (Stage("whole texts and test sets", (*_TEXTS, *_TASKS), whole=True),),
    (Stage("league", ("league",), most=1e9),),
    (Stage("what is trained", (*_TEXTS, *_TASKS, *_OTHERS), trains=True),),
)
SHARES = ((7, 32), (9, 32))
# They try each layer that is left, step by step, and are measured after the group's other rows.
SEARCHES = ("sleb", "iterated-patch")


@dataclass(frozen=True)
class Planned:
    """A stage of one model with its missing cells, without those of an earlier stage.

    seconds: approximate, for one process, of the cells with data. unknown: number of cells with data without an
    estimate. lacking: number of cells without data.
    """

    title: str
    work: tuple
    seconds: float = 0.0
    unknown: int = 0
    lacking: int = 0

    @property
    def cells(self) -> int:
        """Return the number of missing results."""
        return count_cells(self.work)


def plan(models: Sequence[str], store: Store, *, limit: int | None = None) -> list[Planned]:
    """Return the stages with missing cells, in the order in which they are measured.

    Each group of stages is planned for all models before the next. limit: items of each task, for a rehearsal.
    """
    from common.models import loading
    from reproductions.engine import expected_time
    from reproductions.spec import subjects

    planned_cells: set[tuple[str, str]] = set()
    planned = []

    def add(title: str, subject, work: list) -> None:
        if work:
            ordered = tuple(reversed(expected_time.longest_first(work, store)))  # so that many records are there early
            planned.append(Planned(f"{title}, {subject.label.partition(',')[0]}", ordered))

    for group, subject in ((group, subjects.of_model(name)) for group in STAGES for name in models):
        searches: dict = {}  # by recipe's hash; they hold up no records of the group's other rows
        for stage in group:
            if loading.parameters(subject.model) > stage.most:
                continue
            work = []
            for entry in _missing(stage, subject, store, limit):
                new_names = [name for name in entry.benchmarks if (entry.recipe.hash, name) not in planned_cells]
                planned_cells |= {(entry.recipe.hash, name) for name in new_names}
                work += [replace(entry, benchmarks=new_names)] if new_names else []
            long = [e for e in work if not stage.trains and (e.recipe.selection or {}).get("method") in SEARCHES]
            for entry in long:  # a search is made once for all tables of the group
                first = searches.setdefault(entry.recipe.hash, entry)
                if first is not entry:
                    first.benchmarks.extend(entry.benchmarks)
            add(stage.title, subject, [entry for entry in work if entry not in long])
        add("long searches of these tables", subject, list(searches.values()))
    return planned


def _missing(stage: Stage, subject, store: Store, limit: int | None) -> list:
    """Return the recipes of a stage that lack records, with what they lack."""
    from reproductions.engine import runner
    from reproductions.spec import narrowing, registry, steps

    subject = replace(subject, full_test_sets=stage.whole and subject.small)
    if stage.shares and not subject.toy:
        subject = replace(subject, remove=subject.counts(*SHARES, toy=1))
    columns = () if subject.toy else stage.columns  # whose columns have other labels
    tables = [registry.get(target) for target in stage.targets]
    narrowing.check_columns(tables, [subject], columns)
    work = (
        runner.missing(tables, store, subject, limit=limit, columns=columns, pattern=row)
        for row in stage.rows or (None,)
    )
    return [entry for entry in chain.from_iterable(work) if steps.trains(entry.recipe) == stage.trains]


def timed(planned: Iterable[Planned], store: Store, speed: float, lacking: Callable) -> list[Planned]:
    """Return the stages with the approximate time of their cells with data.

    speed: of one process, in published results' CPU cores. lacking: see `reproductions.engine.fetch.Lacking.why`.
    """
    from reproductions.engine import expected_time

    stages = []
    for stage in planned:
        work = [part for entry in stage.work for part in entry.where(lambda *cell: lacking(*cell) is None)]
        seconds, unknown = expected_time.expected(work, store)
        absent = stage.cells - count_cells(work)
        stages.append(replace(stage, seconds=seconds / speed, unknown=unknown, lacking=absent))
    return stages


def forecast(planned: Iterable[Planned], workers: int, minutes: float) -> str:
    """Return a table of the stages: cells, minutes, end of each, and whether that is in time."""
    lines, until = [f"{'cells':>6} {'minutes':>8} {'until':>8}  stage"], 0.0
    for stage in planned:
        duration = stage.seconds / 60 / workers
        until += duration
        late = "" if until <= minutes else "  (not in time)"
        unknown = f"  ({plural(stage.unknown, 'cell')} of unknown time)" if stage.unknown else ""
        absent = f"  ({plural(stage.lacking, 'cell')} without data here)" if stage.lacking else ""
        lines.append(f"{stage.cells:>6} {duration:>8.1f} {until:>8.1f}  {stage.title}{absent}{unknown}{late}")
    rough = "minutes are rough estimates from the published results"
    return "\n".join([*lines, f"{plural(workers, 'worker')}, {minutes:g} minutes; {rough}"])


def run(
    planned: Sequence[Planned],
    *,
    device: str,
    workers: int,
    ends: float,
    lacking: Callable | None = None,
    measure: str | None = None,
) -> int:
    """Measure the stages in order until a time limit, in seconds since the epoch; return how many cells have a result.

    measure: module that measures, if not the usual one.
    """
    from common.pruning.pipeline import work_folder
    from reproductions.engine import workers as processes

    store = Store()
    store.check_writable()
    work = tuple(entry for stage in planned for entry in stage.work)
    worker = processes.Worker(work, time.time_ns(), device, lacking=lacking)
    if measure is not None:
        worker = replace(worker, measure=measure)
    processes.local(worker, workers, work_folder() / "jobs", ends)
    cells = [(entry.recipe, name) for entry in work for name in entry.benchmarks]
    return sum((store.written(*cell) or 0) >= worker.since for cell in cells)


@dataclass(kw_only=True)
class BatchCommand:
    """Measure what is missing, most valuable first."""

    minutes: float = option(MINUTES, "stop after so many minutes", least=1e-3)
    model: list[str] = option([], f"measure these models; repeatable (default: {', '.join(MODELS)})", metavar="NAME")
    device: str | None = option(None, "device", choices=sorted(SPEED), usual="cuda where there is a GPU")
    workers: int | None = option(None, "processes side by side", least=1, usual="8 on a GPU, else 1")
    limit: int | None = option(
        None, "rehearse: only N items of each task", least=2, why="1 item leaves no standard error"
    )
    dry_run: bool = option(False, "print the forecast of all cells, with data or without, and measure nothing")


@answering
def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status, which is also 0 if the time limit came before the end of the work."""
    started = time.time()
    options = parse(BatchCommand, arguments, prog="python -m reproductions.engine.gpu_batch")
    quiet_logging()
    device = options.device or _device()
    workers = options.workers or WORKERS[device]
    store = Store()
    planned = plan(options.model or MODELS, store, limit=options.limit)
    if not planned:
        print("every cell has a record; nothing to measure")
        return 0
    if options.dry_run:
        planned = timed(planned, store, SPEED[device], lambda recipe, benchmark: None)
        print(forecast(planned, workers, options.minutes))
        print("a dry run looks for no data: cells without data count here as well, and are not measured")
        return 0
    from reproductions.engine import fetch  # loads torch

    lacking = fetch.lacking([entry for stage in planned for entry in stage.work]).why
    planned = timed(planned, store, SPEED[device], lacking)
    print(forecast(planned, workers, options.minutes), flush=True)
    total = sum(stage.cells for stage in planned)
    results = run(planned, device=device, workers=workers, ends=started + 60 * options.minutes, lacking=lacking)
    print(f"{results} of {total} cells have a record now; the same command continues with what is left")
    return 0


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    sys.exit(startup.run(main))

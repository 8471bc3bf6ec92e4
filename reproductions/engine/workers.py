"""Measure with several processes of this machine or of a SLURM cluster, or print the work for another scheduler.

    run TARGET... --workers 4                               # processes of this machine, one a GPU or a set of cores
    run TARGET... --slurm partition=gpu,gpus=1,array=64     # tasks of a job array, by submitit
    run TARGET... --list-work                               # one command a recipe, the longest first

Every worker has all the work. It takes the next recipe whose lock is free, the longest first, until none is left
(`reproductions.engine.runner.measured`). Records and locks are all that workers share. The system frees the lock of a worker
that dies, another worker takes its recipe, and the same command continues with what is left. Logs are in the work folder's
``jobs``.
"""

import importlib
import logging
import math
import multiprocessing
import os
import shlex
import signal
import sys
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from common.console import startup, threads
from common.console.command_line import option, typed
from common.console.progress import track
from common.models import registry
from common.pruning.recipe import Recipe
from common.records.results import Record, Store
from common.utils.errors import UserError, one_line, plural, quiet_logging, unknown
from reproductions.engine import expected_time
from reproductions.engine.runner import Request, measured
from reproductions.engine.work import Work

log = logging.getLogger(__name__)

# Our short names of sbatch's options; others are taken as submitit names them (account, qos, mem, cpus_per_task, ...).
SHORT = {"gpus": "gpus_per_node", "array": "array_parallelism", "minutes": "time"}
_OURS = ("command", "folder", "return", "map_count", "stderr_to_stdout")  # arguments of submitit that are set here
DEFAULTS = {"time": 24 * 60, "array_parallelism": 64}
# Seconds that a task of a cluster looks for a free recipe before it gives its GPU back. A file server may need 90 to free
# the locks of a lost node, whose task begins again meanwhile.
PATIENCE = 120.0
_NARROWING = (
    "profile", "remove", "row", "limit", "dtype", "device", "columns", "samples", "seed", "text", "alpha", "model",
    "full_test_sets", "paper_budget", "force",
)  # fmt: skip
WHERE = "where to measure"  # the group of these options in --help
LOOK = 2.0  # seconds between two looks at how far the workers are


@dataclass(frozen=True)
class Worker:
    """One process's task: when called, it measures and returns the number of failed cells.

    since: time of the request, in nanoseconds since the epoch. device: None: a GPU if the process has one. dtype: of the
    weights, if one was requested. force: earlier results do not count. lacking: why a cell has no data, determined once
    for all workers. directories: of models that are named after them. measure: the module that measures. patience:
    seconds to wait for a free recipe.
    """

    work: tuple[Work, ...]
    since: int
    device: str | None = None
    dtype: str | None = None
    force: bool = False
    lacking: Callable[[Recipe, str], str | None] | None = None
    directories: tuple[str, ...] = ()
    measure: str = "reproductions.engine.execute"
    patience: float = math.inf

    def __call__(self) -> int:
        """Measure what is free until nothing is left and return the exit status."""
        quiet_logging()
        measure = importlib.import_module(self.measure)
        for path in self.directories:
            importlib.import_module("common.models").describe(path)  # from here on this process knows it by its name
        options = {} if self.lacking is None else {"lacking": self.lacking}
        options |= {"force": self.force, "since": self.since, "patience": self.patience}
        device = measure.device_for(self.device, self.dtype, self.work)
        return measured(list(self.work), Store(), measure, device=device, **options)

    def checkpoint(self):
        """Return the task that submitit queues again when the job is about to be preempted or to time out: the same one."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass(kw_only=True)
class SpreadingOptions:
    """Options of `run` that distribute its work."""

    workers: int | None = option(
        None,
        "measure with N processes of this machine, one a GPU or core set",
        group=WHERE,
        least=1,
        why="nobody would measure",
    )
    slurm: str | None = option(
        None,
        "submit workers to SLURM: partition=gpu,gpus=1,array=64,minutes=1440 and what sbatch knows",
        group=WHERE,
        metavar="NAME=VALUE,...",
    )
    list_work: bool = option(False, "print one command a line instead, for GNU parallel or any scheduler", group=WHERE)
    recipe: list[str] = option([], "measure only this recipe; repeatable", group=WHERE, metavar="HASH")


def check(options: SpreadingOptions) -> None:
    """Refuse impossible options before anything is read."""
    if options.slurm is not None and options.workers is not None:
        raise UserError("--workers and --slurm are two places for one run; choose one of them")
    if options.list_work and (options.workers is not None or options.slurm is not None):
        raise UserError("--list-work prints commands and measures nothing. Leave --workers and --slurm out")
    if options.slurm is not None:
        slurm_options(options.slurm)


def named_work(work: Sequence[Work], recipes: Sequence[str], all_work: Sequence[Work]) -> list[Work]:
    """Return the work that ``--recipe`` names; ``all_work`` includes recipes that are already measured, which are no error.

    Raises:
        UserError: A name that is no recipe's hash.
    """
    hashes = {entry.recipe.hash for entry in all_work}
    for key in recipes:
        if key not in hashes:
            raise unknown("recipe", key, hashes, "`run --list-work` prints them")
    return [entry for entry in work if entry.recipe.hash in recipes]


def list_work(options, work: Sequence[Work]) -> str:
    """Return a command for every recipe, the longest first; its output is meant for a log, without tables."""
    command = [sys.executable, "-m", "reproductions", "run", *options.targets, "--no-show"]
    command += typed({name: getattr(options, name) for name in _NARROWING})
    ordered = dict.fromkeys(entry.recipe.hash for entry in expected_time.longest_first(work, Store()))
    return "".join(f"{shlex.join([*command, '--recipe', key])}\n" for key in ordered)


def spread(options, store: Store, work: Sequence[Work], lacking: Callable) -> int:
    """Measure with several processes and wait for them, or submit jobs; return the number of cells that failed or remain."""
    store.check_writable()
    from common.pruning.pipeline import work_folder

    folder = work_folder() / "jobs"
    directories = tuple(
        name for name in options.model if registry.find(name) is None and Path(name).expanduser().is_dir()
    )
    worker = Worker(
        work=tuple(expected_time.longest_first(work, store)),
        since=time.time_ns(),
        device=options.device,
        dtype=options.dtype,
        force=options.force,
        lacking=lacking,
        directories=directories,
    )
    if options.slurm is None:
        local(worker, options.workers, folder)
        return _outcome(worker)
    jobs = slurm(worker, slurm_options(options.slurm), folder)
    job = jobs[0].job_id.partition("_")[0]
    print(
        f"submitted {plural(len(jobs), 'worker')} as job {job}: `squeue -j {job}` shows them, `scancel {job}` ends them, "
        "and the same command with --list-work counts the recipes that are left",
        file=sys.stderr,
    )
    return 0


def local(worker: Worker, count: int, folder: Path, ends: float | None = None) -> None:
    """Run at most ``count`` workers on this machine until they have ended. Ctrl-C, SIGTERM and SIGHUP end them.

    folder: for their logs. ends: time limit in seconds since the epoch; unfinished cells are dropped then.
    """
    count = min(count, len({entry.recipe.hash for entry in worker.work}))
    gpus = _gpus(worker.device)
    spread_models = worker.device == "auto"
    if gpus and worker.device not in (None, "auto"):
        worker = replace(worker, device="cuda")  # as the process that has this one alone calls it
    folder.mkdir(parents=True, exist_ok=True)
    logs = {}
    with startup.ended_as_by_ctrl_c():
        try:
            for number in range(count):
                own_gpus, cores = _gpus_of(gpus, number, count, spread_models), _cores(number, count)
                path = folder / f"{os.getpid()}-{worker.since}-{number}.log"
                arguments = (worker, () if gpus else cores, path)
                process = multiprocessing.get_context("spawn").Process(target=_begin, args=arguments)
                with _environment(cores, own_gpus), startup.without_ctrl_c():
                    process.start()
                logs[process] = path
            _watch(worker, logs, ends)
        finally:
            _end(logs)


def slurm(worker: Worker, options: dict, folder: Path) -> list:
    """Submit workers as a job array and return the jobs.

    Raises:
        UserError: There is no SLURM, or it refuses.
    """
    import submitit

    recipes = {entry.recipe.hash for entry in worker.work}
    options = {"job_name": "reproductions"} | options
    options["array_parallelism"] = min(options["array_parallelism"], len(recipes))
    worker = replace(worker, patience=min(worker.patience, PATIENCE))
    try:
        executor = submitit.SlurmExecutor(folder, max_num_timeout=100)
        executor.update_parameters(stderr_to_stdout=True, additional_parameters={"requeue": True}, **options)
        with executor.batch():
            return [executor.submit(worker) for _ in range(options["array_parallelism"])]
    except (RuntimeError, OSError) as error:  # no srun; submitit's own errors of sbatch are RuntimeErrors
        raise UserError(
            f"cannot submit to SLURM: {one_line(error)}; on a machine without it use --workers N, or --list-work for "
            "another scheduler"
        ) from error


def slurm_options(text: str) -> dict:
    """Return submitit's options from ``partition=gpu,gpus=1,array=64``; a part without ``=`` belongs to the one before it.

    Raises:
        UserError: A part that is no NAME=VALUE, or an option that cannot be given as text.
    """
    from submitit.slurm import slurm as sbatch

    hints = typing.get_type_hints(sbatch._make_sbatch_string)
    types = {name: set(typing.get_args(hint)) or {hint} for name, hint in hints.items() if name not in _OURS}
    names = {name for name, kind in types.items() if kind & {str, int, bool}} | SHORT.keys()
    options, name = dict(DEFAULTS), ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" not in part and isinstance(options.get(name), str) and part not in names:
            options[name] += f",{part}"
            continue
        name, _, value = part.partition("=")
        if not value:
            raise UserError(
                f"--slurm {part!r} is no NAME=VALUE; write for instance --slurm partition=gpu,gpus=1,array=64"
            )
        if name not in names:
            raise unknown("SLURM option", name, names)
        name = SHORT.get(name, name)
        number = int in types[name] or types[name] == {bool}  # an account 00123 is a name
        options[name] = int(value) if number and value.isdigit() else value
    for name in DEFAULTS:
        if not isinstance(options[name], int) or options[name] < 1:
            raise UserError(f"--slurm {name}={options[name]}: a whole number above 0 is needed (time is in minutes)")
    return options


def _begin(worker: Worker, cores: Sequence[int], path: Path) -> None:
    """Work in a new process: on its cores, its output in its log."""
    with path.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # before torch counts them
    worker()


def _watch(worker: Worker, logs: dict, ends: float | None) -> None:
    """Show how far the workers are until all have ended, or the time is over; say where the log of one that died is."""
    request, warned = Request(Store(), worker.since, worker.force), set()
    remaining = [(entry.recipe, benchmark) for entry in worker.work for benchmark in entry.benchmarks]
    time_left = expected_time.TimeLeft(worker.work, request.store)

    def seconds() -> float | None:
        alone, workers = time_left.seconds(), sum(process.is_alive() for process in logs)
        return alone and alone / max(1, min(workers, len(time_left.recipes())))

    with track(None, "measuring", total=len(remaining), unit="cell", left=seconds) as bar:
        while True:
            running = [process for process in logs if process.is_alive()]
            before, cells, remaining = len(remaining), remaining, []
            for recipe, benchmark in cells:
                if (record := request.recorded(recipe, benchmark)) is None:
                    remaining.append((recipe, benchmark))
                else:
                    _note(time_left, recipe.hash, benchmark, record)
            if len(remaining) < before:
                bar.update(before - len(remaining))
            over = ends is not None and time.time() > ends  # who ends them then need not be this process
            for process in logs.keys() - warned if not over else ():
                if process.exitcode:
                    warned.add(process)
                    why, log_path = _why(process, logs[process]), logs[process]
                    print(
                        one_line(f"warning: process {process.pid} ended early ({why}); see {log_path}"), file=sys.stderr
                    )
            if not running or over:
                return
            wait([process.sentinel for process in running], timeout=LOOK)


def _note(time_left: expected_time.TimeLeft, recipe: str, benchmark: str, record: Record) -> None:
    """Note how long a worker's cell took, by its record."""
    ok = record.status == "ok"
    if ok and "preparing_seconds" in record.provenance:
        time_left.done(recipe, None, record.provenance["preparing_seconds"])
    time_left.done(recipe, benchmark, record.provenance.get("seconds") if ok else None)


def _why(process: BaseProcess, path: Path) -> str:
    """Return the signal that ended a process, or the last line of its log."""
    if process.exitcode < 0:
        return signal.Signals(-process.exitcode).name
    lines = path.read_text().strip().splitlines() if path.exists() else []
    return lines[-1] if lines else f"exit status {process.exitcode}"


def _end(processes: Sequence) -> None:
    """End processes, and those by force that go on for ten seconds."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(10)
        process.kill()
        process.join()


def _outcome(worker: Worker) -> int:
    """Say once why cells failed; return how many did, or have no record yet."""
    request, failed, reasons_logged = Request(Store(), worker.since, worker.force), 0, set()
    for entry in worker.work:
        for benchmark in entry.benchmarks:
            record = request.recorded(entry.recipe, benchmark)
            request.store.attempt_path(entry.recipe, benchmark).unlink(missing_ok=True)
            reason = "not measured: its process ended early, see the log" if record is None else record.reason
            failed += record is None or record.status == "failed"
            if reason is not None and reason not in reasons_logged:
                reasons_logged.add(reason)
                log.warning("%s, %s: %s", entry.title, benchmark, reason)
    return failed


def _gpus(device: str | None) -> list[str]:
    """Return the names of the GPUs that this process may use, or of the one that is asked for; none for the CPU."""
    import torch

    if device == "cpu":
        return []
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")][:count] if visible else list(map(str, range(count)))
    if device is None or not device.startswith("cuda:"):
        return names
    index = device.removeprefix("cuda:")  # of those that are visible, as torch counts them
    if not index.isdigit() or int(index) >= len(names):
        raise UserError(f"--device {device}: {plural(len(names), 'GPU')} can be used here, counted from cuda:0")
    return [names[int(index)]]


def _gpus_of(gpus: Sequence[str], number: int, count: int, several: bool) -> list[str]:
    """Return one worker's GPUs: one, or, to spread models over several, its part; more workers than GPUs share them."""
    if not gpus:
        return []
    return list(gpus[number::count] if several else ()) or [gpus[number % len(gpus)]]


def _cores(number: int, count: int) -> tuple[int, ...]:
    """Return one worker's cores; more workers than cores share them."""
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:  # a system that pins nothing
        cores = list(range(os.cpu_count() or 1))
    return tuple(cores[number % len(cores) :: count]) if count > 1 else tuple(cores)


@contextmanager
def _environment(cores: Sequence[int], gpus: Sequence[str]) -> Iterator[None]:
    """Let processes started inside compute with a thread a core, and see these GPUs alone."""
    before = dict(os.environ)
    os.environ["OMP_NUM_THREADS"] = threads.of_the_user() or str(max(1, len(cores)))
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)

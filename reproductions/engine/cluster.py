"""A run's cells over several processes of this machine, or over a SLURM cluster, by submitit.

    run TARGET... --workers 4                                  # processes of this machine, one a GPU or a set of cores
    run TARGET... --slurm partition=gpu,gpus=1,array=64        # an array task for every share
    (`reproductions.engine.work_shares`)

Records and locks are the only shared state: whatever is killed, what it had begun is free for the next process
(`common.utils.locks`), and the same command again measures what is left. Logs are in the work folder's ``jobs``.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from common.pruning.recipe import Recipe
from common.records.results import Store
from common.utils import locks, startup, threads
from common.utils.errors import UserError, one_line, plural, quiet_logging, unknown
from common.utils.progress import track
from reproductions.engine.runner import Work, measured
from reproductions.engine.work_shares import Share, shares

MEASURE = "reproductions.engine.execute"
# Our short names of sbatch's options; others are taken as submitit names them (account, qos, mem, cpus_per_task, ...).
SHORT = {"gpus": "gpus_per_node", "array": "array_parallelism", "minutes": "time"}
DEFAULTS = {"time": 24 * 60, "array_parallelism": 64, "gpus_per_node": 0}
# Of submitit's options those that no text can say, or that are set here.
_OURS = ("stderr_to_stdout", "additional_parameters", "setup", "teardown", "srun_args")
# Those that are numbers; what else looks like one, an account 00123, is a name.
_NUMBERS = {"time", "nodes", "array_parallelism", "signal_delay_s", "use_srun", "cpus_per_task", "cpus_per_gpu"}
_NUMBERS |= {"ntasks_per_node", "num_gpus", "gpus_per_node", "gpus_per_task"}
_LONG = 365 * 24 * 60  # minutes: submitit ends its local processes after some time, ours after a year
_LOOK = 2.0  # seconds between two looks at how far the processes are


@dataclass(frozen=True)
class Request:
    """What a command asked for, as far as a process needs to know it.

    device: None: a GPU where the process has one. lacking: why a cell has no data, looked up once for all. since: when it was
    asked for, in nanoseconds since the epoch. directories: of models that are named after theirs. minutes: until a process is
    killed, None for never. measure: the module that measures.
    """

    device: str | None = None
    dtype: str | None = None
    force: bool = False
    lacking: Callable[[Recipe, str], str | None] | None = None
    since: int = 0
    directories: tuple[str, ...] = ()
    minutes: int | None = None
    measure: str = MEASURE


@dataclass(frozen=True)
class WorkerTask:
    """What one process does: its shares in order; with `rest`, then whatever others leave. Returns how many cells failed."""

    request: Request
    shares: tuple[Share, ...]
    rest: bool = False
    cores: tuple[int, ...] = ()

    def __call__(self) -> int:
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)  # before torch counts them
        if self.request.minutes:
            ends = os.environ.get("SLURM_JOB_END_TIME") or time.time() + 60 * self.request.minutes
            os.environ[locks.ENDS] = str(ends)
        quiet_logging()
        store = Store()
        failed = sum(self._measured(share.work, store, wait=False) for share in self.shares)
        if self.rest:
            failed += self._measured([entry for share in self.shares for entry in share.work], store, wait=True)
        return failed

    def checkpoint(self):
        """What submitit queues again when the job is about to be preempted or to run out of time: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _measured(self, work: Sequence[Work], store: Store, wait: bool) -> int:
        request = self.request
        measure = importlib.import_module(request.measure)
        for path in request.directories:
            importlib.import_module("common.models").describe(path)  # from here on this process knows it by its name
        options = {"force": request.force, "since": request.since, "wait": wait}
        if request.lacking is not None:
            options["lacking"] = request.lacking
        device = measure.device_for(request.device, request.dtype, work)
        return measured(list(work), store, measure, device=device, **options)


def processes(
    work: Sequence[Work],
    request: Request,
    count: int,
    folder: Path,
    *,
    shares_in_order: Sequence[Share] = (),
    ends: float | None = None,
) -> None:
    """Measure with so many processes of this machine; returns when they have ended. Ctrl-C, SIGTERM and SIGHUP end them.

    A process that dies holds up nothing: the others take its cells over. shares_in_order: the work in parts that are begun in
    this order, in place of the longest first. ends: seconds since the epoch; what is not recorded then is given up.
    """
    submitit = _submitit()
    count = min(count, sum(len(entry.benchmarks) for entry in work))  # more would find nothing to do
    found = tuple(shares_in_order or shares(work, count))
    gpus = _gpus(request.device)
    if gpus and request.device not in (None, "auto"):
        request = replace(request, device="cuda")  # as the process that has this one alone calls it
    jobs = []
    with startup.ended_as_by_ctrl_c():
        try:
            for number in range(count):
                executor = submitit.LocalExecutor(folder)
                own = _own(gpus, number, count, several=request.device == "auto")
                executor.update_parameters(
                    timeout_min=_LONG, stderr_to_stdout=True, gpus_per_node=len(own), visible_gpus=own
                )
                cores = _cores(number, count)
                with _threads(len(cores)):
                    jobs.append(executor.submit(WorkerTask(request, found, rest=True, cores=() if gpus else cores)))
            _watch(work, request, jobs, ends)
        except BaseException:
            for job in jobs:
                _end(job)
            raise


def array(work: Sequence[Work], request: Request, options: dict, folder: Path) -> list:
    """Submit an array task for every share, the longest first; returns the jobs.

    Raises:
        UserError: there is no SLURM here, or it refuses.
    """
    submitit = _submitit()
    try:
        executor = submitit.SlurmExecutor(folder, max_num_timeout=100)
        options = {"job_name": "reproductions"} | options
        executor.update_parameters(stderr_to_stdout=True, additional_parameters={"requeue": True}, **options)
        with executor.batch():
            return [
                executor.submit(WorkerTask(request, (share,))) for share in shares(work, options["array_parallelism"])
            ]
    except (RuntimeError, OSError) as error:  # no srun; submitit's own errors of sbatch are RuntimeErrors
        raise UserError(
            f"cannot submit to SLURM: {one_line(error)}; on a machine without it use --workers N, or --list-work for "
            "another scheduler"
        ) from error


def slurm_options(text: str) -> dict:
    """submitit's options from ``partition=gpu,gpus=1,array=64``; a part without ``=`` goes on with the one before it.

    Raises:
        UserError: something that is no NAME=VALUE, or no option.
    """
    from submitit.slurm.slurm import _get_default_parameters

    known = (set(_get_default_parameters()) | set(SHORT)) - set(_OURS)
    found, name = dict(DEFAULTS), ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" not in part and isinstance(found.get(name), str) and part not in known:
            found[name] += f",{part}"
            continue
        name, _, value = part.partition("=")
        if not value:
            raise UserError(
                f"--slurm {part!r} is no NAME=VALUE; write for instance --slurm partition=gpu,gpus=1,array=64"
            )
        if name in _OURS:
            raise UserError(f"--slurm {name}: this option cannot be set here; leave it out")
        if name not in known:
            raise unknown("SLURM option", name, known)
        name = SHORT.get(name, name)
        found[name] = int(value) if name in _NUMBERS and value.isdigit() else value
    for name in ("time", "array_parallelism"):
        if not isinstance(found[name], int) or found[name] < 1:
            raise UserError(f"--slurm {name}={found[name]}: a whole number above 0 is needed (time is in minutes)")
    if not found["gpus_per_node"]:
        del found["gpus_per_node"]
    return found


def _watch(work: Sequence[Work], request: Request, jobs: Sequence, ends: float | None = None) -> None:
    """Show how far they are until all have ended, or end them in time; say where the log of one that died is."""
    store, told = Store(), set()
    left = [(entry.recipe, benchmark) for entry in work for benchmark in entry.benchmarks]
    with track(None, "measuring", total=len(left), unit="cell") as bar:
        while True:
            running = [job for job in jobs if job.state == "RUNNING"]
            if ends is not None and time.time() > ends:
                _end_all(running)
                return
            before = len(left)
            left = [
                cell
                for cell in left
                if (store.written(*cell) or 0) < request.since and store.attempted(*cell, request.since) is None
            ]
            if len(left) < before:
                bar.update(before - len(left))
            for job in jobs:
                if job not in running and job.job_id not in told and (why := _early(job)) is not None:
                    told.add(job.job_id)
                    said = one_line(f"warning: process {job.job_id} ended early{why}; see {job.paths.stdout}")
                    print(said, file=sys.stderr)
            if not running:
                return
            time.sleep(_LOOK if left else _LOOK / 4)


def _end(job) -> None:
    """End a process as Ctrl-C does; by force where that is ignored, which processes inherit (a script's background)."""
    job.cancel()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(int(job.job_id))
            for process in (first, *first.children(recursive=True)):
                process.kill()


def _end_all(jobs: Sequence) -> None:
    """End processes, and those by force that go on for ten seconds."""
    known = [psutil.Process(int(job.job_id)) for job in jobs if psutil.pid_exists(int(job.job_id))]
    for job in jobs:
        _end(job)
    for process in psutil.wait_procs(known, timeout=10)[1]:
        with suppress(psutil.NoSuchProcess):
            for one in (*process.children(recursive=True), process):
                one.kill()


def _early(job) -> str | None:
    """Why a process ended before its work, '' where it could not tell; None: it did not."""
    if not job.paths.result_pickle.exists():
        return ""
    outcome, found = pickle.loads(job.paths.result_pickle.read_bytes())
    return f" ({found.strip().splitlines()[-1]})" if outcome == "error" else None


def _gpus(device: str | None) -> list[int]:
    """The numbers of the GPUs that this process may use, of the one that is named; none for the CPU."""
    import torch

    if device == "cpu":
        return []
    found = list(range(torch.cuda.device_count()))
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        names = [name.strip() for name in visible.split(",")]
        if not all(name.isdigit() for name in names):
            raise UserError(
                f"CUDA_VISIBLE_DEVICES={visible} names GPUs by identifiers, which processes cannot be given apart; "
                "set it to their numbers (nvidia-smi -L lists both)"
            )
        found = [int(name) for name in names]
    if device is None or not device.startswith("cuda:"):
        return found
    index = device.removeprefix("cuda:")  # of those that are visible, as torch counts them
    if not index.isdigit() or int(index) >= len(found):
        raise UserError(f"--device {device}: {plural(len(found), 'GPU')} can be used here, counted from cuda:0")
    return [found[int(index)]]


def _own(gpus: Sequence[int], number: int, count: int, several: bool) -> tuple[int, ...]:
    """The GPUs of one of so many processes: one, or, to spread models over several, its part; more processes share them."""
    if not gpus:
        return ()
    return tuple(gpus[number::count] if several else ()) or (gpus[number % len(gpus)],)


def _cores(number: int, count: int) -> tuple[int, ...]:
    """The cores of one of so many processes; more processes than cores share them."""
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:  # a system that pins nothing
        cores = list(range(os.cpu_count() or 1))
    return tuple(cores[number % len(cores) :: count]) if count > 1 else tuple(cores)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Processes started inside compute with so many threads."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = threads.of_the_user() or str(max(1, count))
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def _submitit():
    try:
        import submitit
    except ImportError as error:
        raise UserError("--workers and --slurm need submitit; `make setup` installs it (submitit==1.5.4)") from error
    return submitit

"""`run` over several processes or a cluster, and `run --list-work`: between the command line and
`reproductions.engine.cluster`.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from common.models import registry
from common.records.results import Store
from common.utils.errors import UserError, unknown
from reproductions.engine import cluster
from reproductions.engine.runner import Work
from reproductions.engine.work_shares import shares

log = logging.getLogger(__name__)

PROCESSES = 64  # that `--list-work` makes commands for, unless --workers says


def add_options(run: argparse.ArgumentParser) -> None:
    """The options of `run` that spread its work."""
    run.add_argument(
        "--workers", type=int, metavar="N", help="measure with N processes of this machine, one a GPU or core set"
    )
    run.add_argument(
        "--slurm",
        metavar="NAME=VALUE,...",
        help="submit to SLURM, an array task a share: partition=gpu,gpus=1,array=64,minutes=1440 and what sbatch knows",
    )
    run.add_argument(
        "--list-work", action="store_true", help="print one command a line instead, for GNU parallel or any scheduler"
    )
    run.add_argument(
        "--recipe", action="append", default=[], metavar="HASH[:BENCHMARK,...]", help="only this recipe; repeatable"
    )


def check(options: argparse.Namespace) -> None:
    """Refuse what cannot be before anything is read."""
    if options.workers is not None and options.workers < 1:
        raise UserError(f"--workers {options.workers}: at least one process is needed")
    if options.slurm is not None and options.workers is not None:
        raise UserError("--workers and --slurm are two places for one run; choose one of them")
    if options.slurm is not None:
        cluster.slurm_options(options.slurm)


def chosen(work: Sequence[Work], recipes: Sequence[str], every: Sequence[Work]) -> list[Work]:
    """The work that ``--recipe`` names. every: with what is measured by now, which is no error.

    Raises:
        UserError: a name that is no recipe's hash, or none of its benchmarks'.
    """
    known: dict[str, set[str]] = {}
    for entry in every:
        known.setdefault(entry.recipe.hash, set()).update(entry.benchmarks)
    wanted: dict[str, set[str]] = {}
    for text in recipes:
        key, _, benchmarks = text.partition(":")
        if key not in known:
            raise unknown("recipe", key, known, "`run --list-work` prints them")
        names = set(filter(None, benchmarks.split(",")))
        for name in sorted(names - known[key]):
            raise unknown(f"benchmark of the recipe {key}", name, known[key])
        wanted.setdefault(key, set()).update(names or known[key])
    found = []
    for entry in work:
        names = wanted.get(entry.recipe.hash, set())
        found += entry.of(lambda name, names=names: name in names)
    return found


def list_work(options: argparse.Namespace, work: Sequence[Work]) -> str:
    """A command for every share, the longest first; what it prints is for a log, so tables are left out."""
    command = [sys.executable, "-m", "reproductions", "run", *options.targets, "--no-show"]
    for name in ("profile", "remove", "row", "limit", "dtype", "device"):
        value = getattr(options, name)
        command += [] if value is None else [f"--{name}", str(value)]
    command += [part for name in options.model for part in ("--model", name)]
    flags = ("full-test-sets", "paper-budget", "force")
    command += [f"--{name}" for name in flags if getattr(options, name.replace("-", "_"))]
    lines = []
    for share in shares(work, options.workers or PROCESSES):
        names = [f"{entry.recipe.hash}:{','.join(entry.benchmarks)}" for entry in share.work]
        lines.append(shlex.join([*command, *(part for name in names for part in ("--recipe", name))]))
    return "".join(f"{line}\n" for line in lines)


def measured(options: argparse.Namespace, store: Store, work: Sequence[Work], lacking: Callable) -> int:
    """Measure with several processes and wait for them, or submit; the number of cells that failed or were left."""
    store.check_writable()
    from common.pruning.pipeline import work_folder

    folder = work_folder() / "jobs"
    since = time.time_ns()
    directories = tuple(
        name for name in options.model if registry.find(name) is None and Path(name).expanduser().is_dir()
    )
    request = cluster.Request(options.device, options.dtype, options.force, lacking, since, directories)
    if options.slurm is not None:
        wanted = cluster.slurm_options(options.slurm)
        jobs = cluster.array(work, replace(request, minutes=wanted["time"]), wanted, folder)
        job = jobs[0].job_id.partition("_")[0]
        told = (
            f"submitted {len(jobs)} array tasks as job {job}; `python -m reproductions status` shows how far they are"
        )
        print(f"{told}, `scancel {job}` ends them", file=sys.stderr)
        return 0
    cluster.processes(work, request, options.workers, folder)
    return _outcome(store, work, since, options.force)


def _outcome(store: Store, work: Sequence[Work], since: int, force: bool) -> int:
    """Say once why cells failed; how many did, or have no record yet."""
    failed, told = 0, set()
    for entry in work:
        for benchmark in entry.benchmarks:
            record = store.get(entry.recipe, benchmark)
            earlier = (store.written(entry.recipe, benchmark) or 0) < since
            if earlier and (force or record is None or record.status != "ok"):
                record = store.attempted(entry.recipe, benchmark, since)
            store.attempt_path(entry.recipe, benchmark).unlink(missing_ok=True)
            reason = "not measured: its process ended early, see the log" if record is None else record.reason
            failed += record is None or record.status == "failed"
            if reason is not None and reason not in told:
                told.add(reason)
                log.warning("%s, %s: %s", entry.title, benchmark, reason)
    return failed

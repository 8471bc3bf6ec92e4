"""Locks on work that several processes, perhaps of several machines, could do: a file beside what the work is to leave.

    with locked(path) as waited:       # waits while another process has it
        ...

The file is made with O_CREAT | O_EXCL and says who has the work: host, process, time. It is stale once its process is gone
from its own host, or, seen from another host, once its time is up: a job's limit, else `LIMIT`. A batch job that is started
again (preempted, or its node lost) finds the locks of its earlier start and goes on with them; several processes of one start
keep each other's. Kills therefore hold up nobody for longer.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

log = logging.getLogger(__name__)

LIMIT = 24 * 3600.0  # seconds that a lock counts on other hosts, where no job's limit is known
ENDS = "LAYERLAB_JOB_ENDS"  # environment: when this job is killed at the latest, in seconds since the epoch
_SKEW = 60.0  # seconds that two hosts' clocks, or a file and its content, may be apart
_PAUSE = 0.5  # seconds between two looks at another's lock
_JOB = (("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"), ("SLURM_JOB_ID",))


@dataclass(frozen=True)
class Holder:
    """Who has a piece of work. started: of the process, in the kernel's ticks, since numbers of processes come again.
    ends: seconds since the epoch. job: of the batch system, '' for none; restart: how often it had been started again. boot:
    tells this run of the host from any other, and from another host of its name; '' where the system does not say."""

    host: str
    pid: int
    started: int
    time: float
    ends: float
    job: str = ""
    restart: int = 0
    boot: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f" (job {self.job})" if self.job else "")

    @property
    def stale(self) -> bool:
        """Whether nobody works on it any more."""
        if self.job and self.job == _job() and self.restart < _restart():
            return True  # an earlier start of this very job
        if self.host == socket.gethostname():
            if self.boot in ("", _boot()):
                return _started(self.pid) != self.started
            if self.time < _booted():
                return True  # this host has been started since
        return time.time() > self.ends + _SKEW


def take(path: Path) -> bool:
    """Take the work that the file `path` stands for; whether it is ours now. A stale lock is taken over.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if _made(path):
        return True
    if holder(path) is not None:
        return False
    # Of several that find a stale lock one at a time replaces it, and looks again first.
    with FileLock(path.parent / ".taking-over"):
        if path.exists() and holder(path) is None:
            log.info("%s: its process is gone; taking its work over", path)
            path.unlink(missing_ok=True)
        return _made(path)


def release(path: Path) -> None:
    """Give up a lock of our own; another's that has taken it over stays."""
    found = _read(path)
    if found is not None and (found.host, found.pid) == (socket.gethostname(), os.getpid()):
        path.unlink(missing_ok=True)


def holder(path: Path) -> Holder | None:
    """Who works on it; None: nobody, or nobody any more."""
    found = _read(path)
    if found is None or found.stale:
        return None
    return found


def abandoned(path: Path, after: float) -> bool:
    """Whether the lock is stale and, of another host's process, which cannot be asked, so many seconds old."""
    found = _read(path)
    return found is None or (found.stale and (found.host == socket.gethostname() or time.time() - found.time > after))


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Inside, the work is ours alone; waits for whoever has it.

    Yields whether another process had it before: what it has left is then to be looked for. Where no lock can be written
    the work goes on without.
    """
    waited = False
    try:
        while not take(path):
            if not waited:
                log.warning("waiting for %s, which is at it (%s)", holder(path) or "another process", path)
            waited = True
            time.sleep(_PAUSE)
    except OSError as error:
        log.debug("no lock in %s: %s", path, error.strerror)
        yield waited
        return
    try:
        yield waited
    finally:
        release(path)


def _made(path: Path) -> bool:
    now = time.time()
    ends = float(os.environ.get(ENDS) or now + LIMIT)
    own = Holder(socket.gethostname(), os.getpid(), _started(os.getpid()), now, ends, _job(), _restart(), _boot())
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(handle, "w") as out:
            out.write(json.dumps(asdict(own)) + "\n")
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _read(path: Path) -> Holder | None:
    """What the file says. One that is being written, or was never finished, counts from its own time for a while."""
    try:
        return Holder(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        pass
    except OSError:
        return None
    try:
        since = path.stat().st_mtime
    except OSError:
        return None
    return Holder("an unknown host", 0, 0, since, since)


def _job() -> str:
    """This batch job's number, the same when it is started again; '' outside one."""
    for names in _JOB:
        if all(name in os.environ for name in names):
            return "_".join(os.environ[name] for name in names)
    return ""


def _restart() -> int:
    """How often this batch job has been started again."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def _boot() -> str:
    """What the kernel calls its present run."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _booted() -> float:
    """When this host was started, in seconds since the epoch."""
    return time.time() - float(Path("/proc/uptime").read_text().split()[0])


def _started(pid: int) -> int:
    """When a process of this host began, in ticks since the host did; -1: it is gone, 0: this system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1 if Path("/proc/self/stat").exists() or _gone(pid) else 0
    return -1 if fields[0] in "ZX" else int(fields[19])  # a zombie works no more; starttime, counted from the state


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False

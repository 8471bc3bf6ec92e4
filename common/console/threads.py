"""Choose the number of threads that a process computes with: one for each free core. Call it before torch is imported.

OpenMP reads its settings once, when torch loads it. By default it starts a thread for each core, and each thread spins while
it waits for the others. Where another process holds a core, every small operation then waits for the slowest thread.

Cgroup quotas are read here: psutil does not know them, and joblib, which does, takes longer to import than all else at start.
"""

import os
from collections.abc import Collection
from pathlib import Path

import psutil

SAMPLED = 0.1  # seconds over which the load of the cores is measured
_CPU = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_settled = False


def settle() -> None:
    """Set OpenMP's variables for this process and its children; the user's values stay."""
    global _settled
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # wait asleep, not spinning
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # but some microseconds first: small operations follow at once
    os.environ.setdefault("KMP_BLOCKTIME", "0")  # the same, of Intel's and LLVM's libraries
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(free_cores())
        _settled = True


def of_the_user() -> str | None:
    """Return the user's OMP_NUM_THREADS; None if it is not set, or if `settle` set it."""
    return None if _settled else os.environ.get("OMP_NUM_THREADS")


def free_cores() -> int:
    """Return the number of threads to compute with: `idle`, rounded down, at least one."""
    return max(1, round(idle()))


def idle() -> float:
    """Return the number of cores that this process may use and no other process uses, within its cgroup's limit.

    It measures for `SAMPLED` seconds, in which this process should do nothing.
    """
    usage = psutil.cpu_percent(SAMPLED, percpu=True)
    try:
        own: Collection[int] = os.sched_getaffinity(0)
    except AttributeError:  # a system that pins nothing
        own = range(len(usage))
    busy: dict[str, float] = {}
    for cpu in own:
        core = _core_of(cpu)  # threads of one core share its arithmetic
        busy[core] = max(busy.get(core, 0.0), usage[cpu] if cpu < len(usage) else 0.0)
    free = sum(1 - min(share, 100.0) / 100 for share in busy.values())
    return min(free, _quota())


def _core_of(cpu: int) -> str:
    try:
        return (_CPU / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:  # not told: a core of its own
        return str(cpu)


def _quota() -> float:
    """Return the cores that the cgroups above this process allow it; infinite where none sets a limit."""
    limits = [float("inf")]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return limits[0]
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / "cpu" if controllers else _CGROUPS
        own = root / place.lstrip("/")
        for folder in (own, *own.parents):
            if folder == root.parent:
                break
            limits += _limit(folder)
    return min(limits)


def _limit(folder: Path) -> list[float]:
    """Return the limit that one cgroup sets, in cores, of either version's files; [] where it sets none."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return [int(quota) / int(period)] if quota not in ("max", "-1") else []
    except (OSError, ValueError):
        return []

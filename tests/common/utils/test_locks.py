"""Locks: one holder at a time, whatever is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from common.records.results import ROOT
from common.utils import locks

HOLD = """import sys, time
from pathlib import Path
from common.utils import locks
print(locks.take(Path(sys.argv[1])), flush=True)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cell.lock"


@pytest.fixture
def started():
    """started(path, then="...") -> a process that says whether it got the lock and then does something; ended afterwards."""
    running = []

    def start(path, then="time.sleep(600)"):
        command = [sys.executable, "-c", HOLD + then, str(path)]
        running.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def foreign(path, **fields):
    """As another host would have written it."""
    now = time.time()
    content = {"host": "elsewhere", "pid": 1, "started": 1, "time": now, "ends": now + 3600, "job": ""}
    path.write_text(json.dumps(content | fields))


def test_a_lock_is_had_once_until_it_is_released(path):
    assert locks.take(path) and not locks.take(path)
    assert locks.holder(path).pid == os.getpid() and locks.holder(path).host == socket.gethostname()
    locks.release(path)
    assert not path.exists() and locks.take(path)


def test_a_killed_processes_lock_is_taken_over_and_a_living_ones_not(path, started):
    process = started(path)
    assert process.stdout.readline() == "True\n"
    assert not locks.take(path)
    locks.release(path)  # it is not ours to release
    assert locks.holder(path).pid == process.pid
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert locks.take(path) and locks.holder(path).pid == os.getpid()


def test_of_several_that_find_a_stale_lock_one_gets_it(path, started):
    foreign(path, host=socket.gethostname(), pid=2**22 + 1)
    found = [started(path) for _ in range(4)]
    assert sorted(process.stdout.readline() for process in found) == ["False\n"] * 3 + ["True\n"]


def test_another_hosts_lock_counts_until_its_job_must_have_ended(path):
    foreign(path)
    assert not locks.take(path)
    foreign(path, ends=time.time() - 3600)
    assert locks.take(path)


def test_another_hosts_work_is_abandoned_later_than_its_lock_is_stale(path):
    """A lock of a day counts no more, but who took it may be at work still."""
    day = 24 * 3600
    for hours, here, expected in ((25, False, False), (25, True, True), (24 * 15, False, True), (1, False, False)):
        since = time.time() - hours * 3600
        gone = {"host": socket.gethostname(), "pid": 2**22 + 1} if here else {}
        foreign(path, time=since, ends=since + day, **gone)
        assert locks.abandoned(path, 14 * day) is expected
    path.unlink()
    assert locks.abandoned(path, day)


def test_a_job_that_is_started_again_goes_on_with_its_own(path, monkeypatch):
    foreign(path, job="17_3")
    assert not locks.take(path)
    monkeypatch.setenv("SLURM_JOB_ID", "20")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    assert not locks.take(path)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert not locks.take(path)  # another process of the same start
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert locks.take(path) and locks.holder(path).job == "17_3" and locks.holder(path).restart == 1
    assert not locks.take(path)


def test_processes_of_one_batch_job_keep_each_others_locks(path, started, monkeypatch):
    """As the workers of `run --workers` in one allocation are."""
    for count in (None, "1"):
        monkeypatch.setenv("SLURM_JOB_ID", "77")
        if count:
            monkeypatch.setenv("SLURM_RESTART_COUNT", count)
        process = started(path)
        assert process.stdout.readline() == "True\n" and not locks.take(path)
        process.kill()
        process.wait()
        assert locks.take(path)
        locks.release(path)


def test_a_host_of_the_same_name_is_another_host(path):
    """Two machines that share a disk and are both called "vm": process numbers of one say nothing on the other."""
    ours = {"host": socket.gethostname(), "pid": 2**22 + 1, "boot": "another"}
    foreign(path, **ours)
    assert not locks.take(path)
    foreign(path, **ours, time=1.0)  # from before this host was started: its own, as far as anyone can tell
    assert locks.take(path)


def test_a_number_of_a_process_that_came_again_is_another_process(path):
    assert locks.take(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"started": content["started"] - 1}))
    assert locks.holder(path) is None


def test_a_lock_that_is_being_written_counts_and_one_never_finished_does_not(path):
    path.write_text("")
    assert not locks.take(path)
    os.utime(path, (time.time() - 3600,) * 2)
    assert locks.take(path)


def test_the_jobs_limit_is_the_locks(path, monkeypatch):
    monkeypatch.setenv(locks.ENDS, "12345.5")
    locks.take(path)
    assert json.loads(path.read_text())["ends"] == 12345.5


def test_who_waits_learns_that_it_has_waited(path, monkeypatch):
    monkeypatch.setattr(locks, "_PAUSE", 0.01)
    order = []
    foreign(path)

    def finish():
        order.append("finished")
        path.unlink()

    timer = threading.Timer(0.2, finish)
    timer.start()
    with locks.locked(path) as waited:
        order.append(waited)
    timer.join()
    assert order == ["finished", True] and not path.exists()
    with locks.locked(path) as waited:
        assert not waited


def test_where_no_lock_can_be_written_work_goes_on(tmp_path):
    (tmp_path / "file").touch()
    with locks.locked(tmp_path / "file" / "cell.lock") as waited:
        assert not waited

"""Locks: one holder at a time, whatever is killed."""

import signal
import subprocess
import sys
import threading

import pytest

from common.utils import locks
from common.utils.paths import ROOT

HOLD = """import sys, time
from pathlib import Path
from common.utils import locks
lock = locks.take(Path(sys.argv[1]))
print(lock is not None, flush=True)
time.sleep(600)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "cell.lock"


@pytest.fixture
def holder(path):
    """A process that says whether it got the lock, and keeps it."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_a_lock_is_had_once_until_it_is_released(path):
    lock = locks.take(path)
    assert lock is not None and locks.take(path) is None
    lock.release()
    assert locks.take(path) is not None


def test_a_killed_processes_lock_is_free_and_a_living_ones_not(path, holder):
    assert holder.stdout.readline() == "True\n"
    assert locks.take(path) is None
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert locks.take(path) is not None


def test_a_lock_file_that_was_deleted_blocks_nobody(path, holder):
    """What to do where a file server keeps a lost node's lock."""
    assert holder.stdout.readline() == "True\n"
    path.unlink()
    assert locks.take(path) is not None


def test_who_waits_learns_that_it_has_waited(path, caplog):
    order, is_held, free = [], threading.Event(), threading.Event()

    def first():
        with locks.locked(path) as waited:
            order.append(waited)
            is_held.set()
            free.wait()
            order.append("finished")

    thread = threading.Thread(target=first)
    thread.start()
    is_held.wait()
    threading.Timer(0.2, free.set).start()
    with locks.locked(path) as waited:
        order.append(waited)
    thread.join()
    assert order == [False, "finished", True]
    assert f"another process does this work now; waiting for it (its lock: {path})" in caplog.text


def test_a_failure_frees_the_lock(path):
    with pytest.raises(KeyError), locks.locked(path):
        raise KeyError
    assert locks.take(path) is not None


def test_where_no_lock_can_be_written_work_continues(tmp_path):
    (tmp_path / "file").touch()
    with locks.locked(tmp_path / "file" / "cell.lock") as waited:
        assert not waited

"""Threads by free cores: what the user says wins, quota and busy cores count, and torch computes with what was chosen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.console import threads
from common.utils.paths import ROOT


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of four cores with two hardware threads each, in a cgroup of version 2: set its load and quota."""
    cpu, groups = tmp_path / "cpu", tmp_path / "cgroup"
    for number in range(8):
        (cpu / f"cpu{number}" / "topology").mkdir(parents=True)
        (cpu / f"cpu{number}" / "topology" / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    place = [
        line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0:")
    ]
    own = groups / (place[0].lstrip("/") if place else "")
    own.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(threads, "_CPU", cpu)
    monkeypatch.setattr(threads, "_CGROUPS", groups)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)

    def set_to(usage, quota="max"):
        monkeypatch.setattr(threads.psutil, "cpu_percent", lambda interval, percpu: usage)
        (groups / "cpu.max").write_text(f"{quota} 100000\n")

    return set_to


@pytest.mark.skipif(not os.path.exists("/proc/self/cgroup"), reason="cgroups are Linux's")
@pytest.mark.parametrize(
    ("usage", "quota", "free"),
    [
        ([0] * 8, "max", 4),  # two hardware threads are one core
        ([100, 0, 0, 0, 0, 0, 0, 0], "max", 3),
        ([0, 0, 0, 0, 0, 100, 100, 0], "max", 2),
        ([100, 0, 0, 0, 100, 0, 0, 0], "max", 3),  # both threads of one core
        ([100] * 8, "max", 1),
        ([0] * 8, "200000", 2),
        ([0] * 8, "50000", 1),
    ],
)
def test_free_cores_are_those_that_nobody_uses_and_the_quota_allows(machine, usage, quota, free):
    machine(usage, quota)
    assert threads.free_cores() == free


NAMES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.mark.parametrize("threads", ["3", None])
def test_a_tool_sets_them_before_torch_is_there_and_the_users_number_wins(threads, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import psutil; psutil.cpu_percent = lambda *_, percpu: [100.0] * 999")
    program = "import contextlib, os, sys; from common.cli import command\n"
    program += "command.startup.nothing_begun = sys.exit  # where torch and the tool would be imported\n"
    program += "with contextlib.suppress(SystemExit):\n"
    program += "    command.main('papers.laco', ['--model', 'toy', '--remove', '2', '--plan'])\n"
    program += f"print(*map(os.environ.get, {NAMES}), 'torch' in sys.modules)"
    (tmp_path / "started.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"} | ({"OMP_NUM_THREADS": threads} if threads else {})
    command = [sys.executable, str(tmp_path / "started.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [threads or "1", "PASSIVE", "10000", "0", "False"]

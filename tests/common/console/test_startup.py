"""Ctrl-C while a command line starts: the process interrupts itself at the import of a named module."""

import os
import signal
import subprocess
import sys
import time

import pytest

from common.console import startup
from common.utils.paths import ROOT

CUSTOMIZE = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["STOP_AT"]:
            os.kill(os.getpid(), int(os.environ.get("STOP_BY", signal.SIGINT)))
sys.meta_path.insert(0, Interrupts())
"""
TOOLS = ("linearpatch", "prunecomp", "laco", "reassessing")
PLAN = ["--model", "standin", "--remove", "4", "--plan"]


def start(tmp_path, module, *arguments, **options):
    (tmp_path / "sitecustomize.py").write_text(CUSTOMIZE)
    environment = os.environ | {
        "STOP_AT": module,
        "PYTHONPATH": str(tmp_path),
        "LAYERLAB_RESULTS": str(tmp_path / "mine"),
    }
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, **options)


def only_interrupted(text):
    """One line, besides that of a busy machine."""
    lines = [line for line in text.splitlines() if not line.startswith("still loading")]
    return len(lines) == 1 and lines[0].startswith("interrupted")


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        *(
            (name, ["reproductions", "list"])
            for name in ("common.utils.errors", "difflib", "reproductions.spec.registry")
        ),
        ("torch", ["reproductions", "run", "table1-linearpatch", "--limit", "3"]),
        *(("common.cli", [f"papers.{tool}", "--help"]) for tool in TOOLS),
        *(("torch", [f"papers.{tool}", *PLAN]) for tool in TOOLS),
        ("papers.laco.merge", ["papers.laco", *PLAN]),
    ],
)
def test_ctrl_c_in_an_import_is_one_line(tmp_path, module, arguments):
    # a suite that runs in the background inherits that Ctrl-C is ignored
    done = start(tmp_path, module, *arguments, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert done.returncode == 130 and only_interrupted(done.stderr)
    assert not done.stdout and not list(tmp_path.glob("mine/**/*.json"))


@pytest.mark.parametrize(("module", "tool"), [("torch", "linearpatch"), ("papers.laco.merge", "laco")])
def test_a_scheduler_that_ends_a_command_gets_the_same_line(tmp_path, monkeypatch, module, tool):
    monkeypatch.setenv("STOP_BY", str(int(signal.SIGTERM)))
    done = start(tmp_path, module, f"papers.{tool}", *PLAN)
    assert done.returncode == 130 and only_interrupted(done.stderr)


def test_where_it_is_ignored_it_stays_so(tmp_path):
    """As under nohup."""
    done = start(
        tmp_path, "difflib", "reproductions", "list", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    assert done.returncode == 0 and "table1-linearpatch" in done.stdout


def test_without_interruption_nothing_changes(tmp_path):
    done = start(tmp_path, "no.such.module", "reproductions", "list", "--json")
    assert done.returncode == 0 and done.stdout.startswith("[")
    done = start(tmp_path, "no.such.module", "reproductions", "show", "grid", "--limit", "x")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--limit" in done.stderr


def test_imports_that_take_long_say_so(monkeypatch, capfd):
    with startup.nothing_begun():
        pass
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(startup, "SLOW", 0.01)
    with startup.nothing_begun():
        time.sleep(0.5)
    captured = capfd.readouterr()
    assert captured.err.startswith("still loading PyTorch") and captured.err.count("\n") == 1 and not captured.out

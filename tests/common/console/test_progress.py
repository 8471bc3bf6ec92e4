"""Off a terminal long work says a line a step or a minute, on one it draws a bar, and short work is silent."""

import io
import sys

import pytest

from common.console import progress
from common.console.progress import clock, track


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    """A clock that the test moves."""
    fake_clock = Clock()
    monkeypatch.setattr(progress, "time", fake_clock)
    return fake_clock


def test_a_line_a_step_with_what_is_known_of_it(time, capsys):
    steps = track(range(3), "Prune&Comp", unit="layer", each=True)
    for step in steps:
        time.now += 40
        steps.note(f"layer {20 + step} goes")
    assert capsys.readouterr().err.splitlines() == [
        "Prune&Comp: layer 1 of 3, layer 20 goes, 0:40 elapsed, about 1:20 left",
        "Prune&Comp: layer 2 of 3, layer 21 goes, 1:20 elapsed, about 0:40 left",
        "Prune&Comp: layer 3 of 3, layer 22 goes, 2:00 elapsed",
    ]


def test_what_may_take_long_is_said_before_it_begins(time, capsys):
    """At once the first time, later unless a line was written just before."""
    bar = track(None, "measuring", total=2, unit="cell", each=True)
    bar.note("preparing one", say=True)
    time.now += 1
    bar.note("preparing two", say=True)
    time.now += 60
    bar.note("two, piqa")
    bar.update()
    assert capsys.readouterr().err.splitlines() == [
        "measuring: cell 0 of 2, preparing one, 0:00 elapsed",
        "measuring: cell 1 of 2, two, piqa, 1:01 elapsed, about 1:01 left",
    ]


def test_the_time_left_is_what_the_caller_knows_of_it(time, capsys):
    left = iter([None, 90.0])
    bar = track(None, "measuring", total=10, unit="cell", each=True, left=lambda: next(left))
    bar.note("preparing one", say=True)
    time.now += 20
    bar.update()
    assert capsys.readouterr().err.splitlines() == [
        "measuring: cell 0 of 10, preparing one, 0:00 elapsed",
        "measuring: cell 1 of 10, preparing one, 0:20 elapsed, about 1:30 left",
    ]


def test_a_line_a_minute_of_short_steps_and_none_of_short_work(time, capsys):
    for _ in track(range(200), "calibration", unit="batch"):
        time.now += 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"calibration: batch {n} of 200" for n in (60, 120, 180)]
    for _ in track(range(50), "calibration", unit="batch"):
        time.now += 1
    assert capsys.readouterr().err == ""


def test_the_estimate_leaves_out_what_an_earlier_run_did(time, capsys):
    bar = track(None, "training", total=100, initial=80)
    time.now += 100
    bar.update(10)
    assert "step 90 of 100, 1:40 elapsed, about 1:40 left" in capsys.readouterr().err


def test_nothing_is_said_unless_it_is_to_be_shown(time, capsys):
    for _ in track(range(3), "calibration", shown=False, each=True):
        time.now += 100
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_and_no_lines(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    steps = track(range(3), "SLEB", unit="layer", each=True)
    for step in steps:
        steps.note(f"layer {step} goes")
    shown = sys.stderr.getvalue()
    assert "SLEB" in shown and "3/3" in shown and "elapsed" not in shown


def test_a_bar_shows_the_time_left_that_the_caller_knows_and_no_other(monkeypatch):
    monkeypatch.setattr(sys, "stderr", type("Terminal", (io.StringIO,), {"isatty": lambda self: True})())
    bar = track(None, "measuring", total=2, unit="cell", left=lambda: 754.0)
    bar.update()
    bar.note("two, piqa")
    shown = sys.stderr.getvalue().rpartition("\r")[2]
    assert "1/2 [" in shown and "two, piqa, about 12:34 left]" in shown and "<" not in shown


@pytest.mark.parametrize("seconds, shown", [(0, "0:00"), (59.6, "1:00"), (3599.4, "59:59"), (90061, "25:01:01")])
def test_clock(seconds, shown):
    assert clock(seconds) == shown

"""Times of targets: what is run where, and what stands in the file afterwards. No target is made here."""

import csv

import pytest

from common.records.results import ROOT
from common.utils.errors import UserError
from reproductions.documents import timings

OLD = "target,seconds,cpus,commit,date\ntable1-laco,241,2,fa59271,2026-11-21\ngrid,526,2,08b200d,2026-11-21\n"


class Fake:
    """Notes the commands; clones make a folder, and a target takes as long as `seconds` says."""

    def __init__(self, seconds, clock, failing=()):
        self.seconds, self.clock, self.failing, self.commands = seconds, clock, failing, []

    def __call__(self, command, folder):
        self.commands.append(command)
        if command[:2] == ["git", "clone"]:
            (folder.__class__(command[-1])).mkdir()
        elif command[0] == "make":
            assert folder != ROOT and folder.is_dir()
            self.clock[0] += self.seconds[command[-1]]
        return int(command[-1] in self.failing), "abc1234\n" if "rev-parse" in command else ""


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(timings.time, "monotonic", lambda: now[0])
    return now


def lines(path):
    with path.open(newline="") as text:
        return list(csv.reader(text))


def test_targets_are_made_in_turn_in_a_clone_without_records(tmp_path, clock):
    path = tmp_path / "timings.csv"
    path.write_text(OLD)
    fake = Fake({"table8-laco": 27.6, "table1-laco": 0.2}, clock)
    timings.measure(["table8-laco", "table1-laco"], path, fake)
    cloned, removed, _, *made = fake.commands
    assert cloned[:4] == ["git", "clone", "-q", str(ROOT)] and "reproductions/results" in removed
    assert [command[-1] for command in made] == ["table8-laco", "table1-laco"]
    header, one, grid, eight = lines(path)
    assert header == list(timings.FIELDS)
    assert one[:2] == ["table1-laco", "1"] and one[3] == "abc1234"  # replaced where it stood
    assert grid == ["grid", "526", "2", "08b200d", "2026-11-21"]
    assert eight[:2] == ["table8-laco", "28"]
    assert [each.name for each in tmp_path.iterdir()] == ["timings.csv"]


def test_a_target_that_fails_is_not_recorded_and_those_before_it_are(tmp_path, clock):
    path = tmp_path / "timings.csv"
    fake = Fake({"table8-laco": 5, "table2-laco": 9}, clock, failing=("table2-laco",))
    with pytest.raises(UserError, match="make table2-laco failed with status 1; its time is not recorded"):
        timings.measure(["table8-laco", "table2-laco", "table1-laco"], path, fake)
    assert [line[0] for line in lines(path)] == ["target", "table8-laco"]
    assert fake.commands[-1][-1] == "table2-laco"


def test_an_unknown_target_is_refused_before_anything_is_run(tmp_path, clock):
    fake = Fake({}, clock)
    with pytest.raises(UserError, match="unknown target 'table1-lacoo'; did you mean 'table1-laco'"):
        timings.measure(["table8-laco", "table1-lacoo"], tmp_path / "timings.csv", fake)
    assert not fake.commands and not list(tmp_path.iterdir())


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_the_clone_has_the_last_commit_and_no_records():
    with timings.clone() as (folder, commit):
        assert (folder / "Makefile").is_file() and not (folder / "reproductions" / "results").exists()
        assert (
            timings.run(["git", "rev-parse", commit], folder)[1] == timings.run(["git", "rev-parse", "HEAD"], ROOT)[1]
        )
    assert not folder.exists()


def test_the_environment_in_use_is_taken_as_it_is(tmp_path):
    """make itself: the stamp is not remade though it is older than what it depends on, and no pip is called."""
    status, printed = timings.run([*timings.make("table1-laco"), "-n"], ROOT)
    assert status == 0 and "pip install" not in printed and "-m reproductions run 'table1-laco'" in printed

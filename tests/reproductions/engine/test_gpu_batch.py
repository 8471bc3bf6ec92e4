"""The order and the end of a batch: forecast, stages one after another, nothing measured twice, nothing left running."""

import collections
import dataclasses
import time

import psutil
import pytest
from tools import status_of

from common.records.results import Recipe, Store
from reproductions.engine import expected_time, fetch, gpu_batch, workers
from reproductions.engine.gpu_batch import Planned
from reproductions.engine.work import Work

SMALL, LARGE = gpu_batch.MODELS


def cells(work):
    return [(entry.recipe.hash, name) for entry in work for name in entry.benchmarks]


@pytest.fixture
def nothing_measured(tmp_path):
    return Store(tmp_path / "records", None)


def test_the_most_valuable_comes_first_and_nothing_is_planned_twice(nothing_measured):
    """Both tables' perplexities and tasks of one model, its long searches, then the next model; trainings last."""
    planned = gpu_batch.plan(gpu_batch.MODELS, nothing_measured)
    models = [{entry.recipe.model for entry in stage.work} for stage in planned]
    assert models[:7] == [{SMALL}] * 3 + [{LARGE}] * 3 + [{SMALL}]
    searched = [entry.recipe for entry in planned[2].work]
    assert {recipe.selection["method"] for recipe in searched} == {"sleb"}
    assert len(searched) == len({recipe.hash for recipe in searched}) == 2  # 5 and 7 of 24, for all tables of the group
    first = {name.partition("@")[0] for entry in planned[0].work for name in entry.benchmarks}
    assert first == {"perplexity", "parameters"}
    (timed,) = gpu_batch.timed(planned[:1], nothing_measured, 1.0, lambda recipe, benchmark: None)
    assert timed.unknown == timed.cells  # without published results nothing is known of their time
    missing = [cell for stage in planned for cell in cells(stage.work)]
    assert len(set(missing)) == len(missing) == sum(stage.cells for stage in planned)
    trained = [any(entry.recipe.training for entry in stage.work) for stage in planned]
    assert trained == sorted(trained) and trained[-2:] == [True, True]
    for names, stage in zip(models, planned, strict=True):
        assert LARGE not in names or not stage.title.startswith("league")
    removed = {(entry.recipe.selection or {}).get("count") for entry in planned[6].work}
    assert {5, 7} <= removed and not removed & {2, 3, 4}  # the papers' shares of 24 layers


def test_the_forecast_adds_up_and_says_what_comes_too_late():
    work = (Work(Recipe(model="m", profile="paper"), "row", ["piqa", "copa"]),)
    lines = gpu_batch.forecast([Planned("one", work, 480.0), Planned("two", work, 960.0)], 4, 5.0).splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["2", "2.0", "2.0"], ["2", "4.0", "6.0"]]
    assert [line.endswith("(not in time)") for line in lines[1:3]] == [False, True]


def test_cells_without_data_take_no_time_and_are_counted(tmp_path):
    work = (
        Work(Recipe(SMALL, "paper"), "row", ["piqa", "copa"]),
        Work(Recipe(SMALL, "paper", limit=9), "other", ["copa"]),
    )
    store, planned = Store(tmp_path), [Planned("one", work)]
    (whole,) = gpu_batch.timed(planned, store, 2.0, lambda recipe, benchmark: None)
    (part,) = gpu_batch.timed(planned, store, 2.0, lambda recipe, name: "none" if name == "copa" else None)
    (none,) = gpu_batch.timed(planned, store, 2.0, lambda recipe, benchmark: "none")
    assert [stage.lacking for stage in (whole, part, none)] == [0, 2, 3]
    assert whole.seconds > part.seconds > none.seconds == 0
    first = Work(work[0].recipe, "row", ["piqa"])
    assert part.seconds == expected_time.expected([first], store)[0] / 2
    assert "(2 cells without data here)" in gpu_batch.forecast([part], 1, 9.0)


def test_a_dry_run_measures_nothing_and_loads_no_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "records"))
    monkeypatch.setattr(workers, "local", lambda *_, **__: pytest.fail("something was measured"))
    for kind in fetch._DATA:
        monkeypatch.setitem(fetch._DATA, kind, lambda name: pytest.fail(f"the data of {name} were loaded"))
    assert gpu_batch.main(["--dry-run", "--device", "cuda", "--model", SMALL, "--limit", "2"]) == 0
    output = capsys.readouterr().out
    assert "perplexities of LinearPatch and Prune&Comp, Qwen2.5-Coder-0.5B-Instruct" in output and "8 workers" in output
    assert "looks for no data" in output and "without data here" not in output
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize("arguments", [["--minutes", "0"], ["--workers", "0"], ["--limit", "1"], ["--model", "qwen"]])
def test_what_cannot_be_is_refused_in_one_line(arguments, capsys):
    assert status_of(gpu_batch.main, ["--dry-run", "--device", "cpu", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def batch():
    """Two stages; the later one's recipes would be longer, so that the order is the batch's and not the longest first."""
    recipes = [Recipe("standin", "standin", fidelity=f"f{number}") for number in range(3)]
    short = (Work(recipes[0], "row 0", ["copa"]), Work(recipes[1], "row 1", ["copa", "wsc273"]))
    long = (dataclasses.replace(short[0], benchmarks=["hellaswag"]), Work(recipes[2], "row 2", ["boolq"]))
    return [Planned("short", short, 1.0), Planned("long", long, 1.0)]


def test_stages_are_measured_one_after_another(stub):
    planned = batch()
    assert gpu_batch.run(planned, device="cpu", workers=1, measure="stub_measure", ends=time.time() + 3600) == 5
    for stage in planned:
        for entry in stage.work:
            assert all(stub.store.get(entry.recipe, name).status == "ok" for name in entry.benchmarks)
    begun = [line.split()[2] for line in (stub.folder / "log").read_text().splitlines()]
    assert collections.Counter(begun[:3]) == {"copa": 2, "wsc273": 1} and sorted(begun[3:]) == ["boolq", "hellaswag"]


def test_when_the_time_is_over_no_process_is_left_and_the_next_batch_continues(stub, tmp_path, capsys):
    stub.set("STUB_SECONDS", "600")
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    assert gpu_batch.run(batch(), device="cpu", workers=2, measure="stub_measure", ends=time.time() + 5) == 0
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before and p.status() != "zombie"]
    assert not left
    assert "ended early" not in capsys.readouterr().err
    assert not list((tmp_path / "records").rglob("*.json"))
    stub.set("STUB_SECONDS", "0")
    assert gpu_batch.run(batch(), device="cpu", workers=1, measure="stub_measure", ends=time.time() + 3600) == 5

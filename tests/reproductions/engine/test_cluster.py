"""A grid over processes: whatever is killed and whoever submits, every record is there once."""

import collections
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
import stub_measure
import submitit

from common.pruning.recipe import Recipe
from common.records.results import ROOT, Store
from common.utils import locks
from common.utils.errors import UserError
from reproductions.command_line import parser
from reproductions.engine import cluster, costs, distributed, runner, status
from reproductions.engine.runner import Work
from reproductions.engine.work_shares import shares

BENCHMARKS = ("piqa", "copa", "boolq")
# What submitit asks of SLURM, but takes no text for, or is told by us.
OURS = ("stderr_to_stdout", "additional_parameters", "setup", "teardown", "srun_args")
# What a submitter of its own does; it prints its process's number first.
SUBMIT = """import os, pickle, sys
from pathlib import Path
from reproductions.engine import cluster
print(os.getpid(), flush=True)
cluster.processes(pickle.loads(Path(sys.argv[1]).read_bytes()), cluster.Request(measure="stub_measure"), 2, Path(sys.argv[2]))
"""


def recipe(model="llama-2-7b", count=0, **fields):
    calibration = {"corpus": "wikitext2-train", "count": count, "length": 2048} if count else None
    return Recipe(model, "paper", calibration=calibration, **fields)


def grid(recipes=6, benchmarks=BENCHMARKS):
    found = [recipe(fidelity=f"f{number}", count=128 * (number % 2)) for number in range(recipes)]
    return [Work(entry, f"row {number}", list(benchmarks)) for number, entry in enumerate(found)]


def cells(work):
    return sorted((entry.recipe.hash, benchmark) for entry in work for benchmark in entry.benchmarks)


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Where processes leave their records, and what they began: `begun()` -> {(recipe, benchmark): times}."""
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "records"))
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    monkeypatch.setattr(cluster, "_LOOK", 0.1)

    def begun():
        lines = (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
        return collections.Counter(tuple(line.split()[1:]) for line in lines)

    return SimpleNamespace(
        store=Store(tmp_path / "records", None), begun=begun, folder=tmp_path, set=monkeypatch.setenv
    )


def recorded(store, work):
    found = {(e.recipe.hash, b): store.get(e.recipe, b) for e in work for b in e.benchmarks}
    left = [path for path in store.user.rglob("*.lock") if locks.holder(path) is not None]
    assert not left, "somebody still measures"
    return sorted(key for key, record in found.items() if record is not None and record.status == "ok")


def test_two_at_once_measure_each_cell_once(stub, monkeypatch):
    work = grid()
    stub.set("STUB_SECONDS", "0.01")
    monkeypatch.setattr("reproductions.engine.cell_locks._PAUSES", (0.01,))
    both = [threading.Thread(target=runner.measured, args=(work, stub.store, stub_measure)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert recorded(stub.store, work) == cells(work)
    assert stub.begun() == dict.fromkeys(cells(work), 1)


def test_who_does_not_wait_leaves_what_another_measures(stub):
    (work,) = grid(1)
    path = stub.store.lock_path(work.recipe, "copa")
    path.parent.mkdir(parents=True)
    now = time.time()
    other = {"host": "elsewhere", "pid": 1, "started": 1, "time": now, "ends": now + 60, "job": ""}
    path.write_text(json.dumps(other))
    assert runner.measured([work], stub.store, stub_measure, wait=False) == 0
    assert stub.store.get(work.recipe, "copa") is None and stub.store.get(work.recipe, "boolq").status == "ok"
    counts, _ = status.count([work], stub.store)
    assert (counts["llama-2-7b"].done, counts["llama-2-7b"].running, counts["llama-2-7b"].left) == (2, 1, 0)
    path.write_text(json.dumps(other | {"ends": now - 3600}))  # its job has ended
    assert runner.measured([work], stub.store, stub_measure) == 0
    assert recorded(stub.store, [work]) == cells([work]) and set(stub.begun().values()) == {1}


def test_measuring_anew_is_done_once_for_each_request(stub):
    work = grid(2)
    asked = time.time_ns()
    for _ in range(2):
        runner.measured(work, stub.store, stub_measure, force=True, since=asked)
    assert set(stub.begun().values()) == {1}
    runner.measured(work, stub.store, stub_measure, force=True)
    assert set(stub.begun().values()) == {2}


def test_a_failure_is_not_tried_again_for_the_same_request(stub, monkeypatch):
    (work,) = grid(1, ["piqa"])
    failing = SimpleNamespace(**vars(stub_measure))
    failing.benchmark = lambda *_: stub.begun() or (_ for _ in ()).throw(MemoryError)
    asked = time.time_ns()
    assert runner.measured([work], stub.store, failing, since=asked) == 1
    assert runner.measured([work], stub.store, stub_measure, since=asked) == 1 and not stub.begun()
    assert runner.measured([work], stub.store, stub_measure) == 0 and stub.begun()


def broken(*_):
    raise MemoryError


def test_a_value_that_is_not_measured_anew_is_kept_and_counts_as_failed(stub):
    """Several processes try it once for a request; who asked for it is told, and nothing is left beside the record."""
    (work,) = grid(1, ["piqa", "copa"])
    runner.measured([work], stub.store, stub_measure)
    before = stub.store.get(work.recipe, "copa")
    tries = []
    stops = SimpleNamespace(**vars(stub_measure))
    stops.benchmark = lambda prepared, name: broken(tries.append(name))
    (work,) = work.of(lambda name: name == "copa")
    files = sorted(path.name for path in stub.store.path(work.recipe, "copa").parent.iterdir())
    asked = time.time_ns()
    for _ in range(2):
        assert runner.measured([work], stub.store, stops, force=True, since=asked) == 1
    assert tries == ["copa"] and stub.store.get(work.recipe, "copa") == before
    assert distributed._outcome(stub.store, [work], asked, force=True) == 1
    assert sorted(path.name for path in stub.store.path(work.recipe, "copa").parent.iterdir()) == files
    assert runner.measured([work], stub.store, stops, force=True) == 1  # a request of one process leaves no trace
    assert sorted(path.name for path in stub.store.path(work.recipe, "copa").parent.iterdir()) == files
    lacking = {"lacking": lambda recipe, benchmark: "no network"}
    asked = time.time_ns()
    assert runner.measured([work], stub.store, stops, force=True, since=asked, **lacking) == 0
    assert distributed._outcome(stub.store, [work], asked, force=True) == 0  # what has no data is no failure
    asked = time.time_ns()
    runner.measured([work], stub.store, stops, force=True, since=asked)
    runner.measured([work], stub.store, stub_measure, force=True)
    assert sorted(path.name for path in stub.store.path(work.recipe, "copa").parent.iterdir()) == files
    assert distributed._outcome(stub.store, [work], asked, force=True) == 0


def test_what_killed_processes_were_to_measure_anew_counts_as_failed(stub, monkeypatch, caplog):
    work = grid(2)
    runner.measured(work, stub.store, stub_measure)
    monkeypatch.setattr(cluster, "processes", lambda *_: None)  # as if all were killed at once
    options = parser().parse_args(["run", "table1-laco", "--workers", "2", "--force"])
    assert distributed.measured(options, stub.store, work, lambda *_: None) == len(cells(work))
    assert "its process ended early" in caplog.text
    options.force = False
    assert distributed.measured(options, stub.store, work, lambda *_: None) == 0


def test_the_bar_is_full_where_values_are_kept(stub, monkeypatch):
    (work,) = grid(1)
    runner.measured([work], stub.store, stub_measure)
    stops = SimpleNamespace(**vars(stub_measure) | {"benchmark": broken})
    asked = time.time_ns()
    runner.measured([work], stub.store, stops, force=True, since=asked)
    counted = []
    monkeypatch.setattr("common.utils.progress.track.update", lambda bar, count=1: counted.append(count))
    cluster._watch([work], cluster.Request(force=True, since=asked), [])
    assert sum(counted) == len(BENCHMARKS)


def test_the_debug_executor_runs_a_share(stub):
    work = grid(2)
    task = cluster.WorkerTask(cluster.Request(measure="stub_measure"), tuple(shares(work, 1)))
    again = pickle.loads(pickle.dumps(task.checkpoint().function))
    assert again == task
    before = sys.path[:]
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        assert submitit.DebugExecutor(stub.folder / "jobs").submit(again).result() == 0
    finally:
        sys.path[:] = before
    assert recorded(stub.store, work) == cells(work)


def test_a_killed_processes_cells_are_taken_over_by_the_others(stub, capsys):
    work = grid(4)
    victim = (work[1].recipe.hash, "copa")
    stub.set("STUB_KILLS", " ".join(victim))
    stub.set("STUB_SECONDS", "0.2")
    cluster.processes(work, cluster.Request(measure="stub_measure"), 2, stub.folder / "jobs")
    assert recorded(stub.store, work) == cells(work)
    assert stub.begun() == dict.fromkeys(cells(work), 1) | {victim: 2}
    assert "ended early; see" in capsys.readouterr().err


def test_a_process_that_ends_by_an_error_says_which_and_where_its_log_is(stub, capsys):
    stub.set("STUB_REFUSES", "no such device")
    cluster.processes(grid(1, ["piqa"]), cluster.Request(measure="stub_measure"), 1, stub.folder / "jobs")
    (log,) = (stub.folder / "jobs").glob("*_log.out")
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: "))
    assert said.endswith(f" ended early (common.utils.errors.UserError: no such device); see {log}")


@pytest.mark.slow
def test_a_killed_submitter_loses_nothing_and_a_second_one_repeats_nothing(stub):
    work = grid(8)
    stub.set("STUB_SECONDS", "0.5")
    (stub.folder / "work").write_bytes(pickle.dumps(work))
    command = [sys.executable, "-c", SUBMIT, str(stub.folder / "work"), str(stub.folder / "jobs")]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert int(first.stdout.readline()) == first.pid
    deadline = time.monotonic() + 300
    while not stub.begun() and time.monotonic() < deadline:
        time.sleep(0.05)
    first.kill()
    first.wait()
    first.stdout.close()
    assert 0 < len(stub.begun()) < len(cells(work))
    cluster.processes(work, cluster.Request(measure="stub_measure"), 1, stub.folder / "jobs")
    assert recorded(stub.store, work) == cells(work)
    assert stub.begun() == dict.fromkeys(cells(work), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "ctrl_c"), [(signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_IGN)], ids=["TERM", "HUP"]
)
def test_a_submitter_that_is_told_to_end_leaves_no_process_behind(stub, number, ctrl_c):
    """Where Ctrl-C is ignored, as in a script's background, too."""

    def answers():
        signal.signal(signal.SIGINT, ctrl_c)
        signal.signal(number, signal.SIG_DFL)

    work = grid(2)
    stub.set("STUB_SECONDS", "90")
    (stub.folder / "work").write_bytes(pickle.dumps(work))
    command = [sys.executable, "-c", SUBMIT, str(stub.folder / "work"), str(stub.folder / "jobs")]
    with (stub.folder / "errors").open("w") as errors:
        first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors, preexec_fn=answers)
    deadline = time.monotonic() + 120
    while len(stub.begun()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    measuring = {int(line.split()[0]) for line in (stub.folder / "log").read_text().splitlines()}
    assert len(measuring) == 2
    first.send_signal(number)
    assert first.wait(60) and "KeyboardInterrupt" in (stub.folder / "errors").read_text()
    _, alive = psutil.wait_procs([psutil.Process(each) for each in measuring if psutil.pid_exists(each)], timeout=30)
    assert not alive


def test_shares_hold_every_cell_once_the_longest_first():
    work = grid(40) + [Work(recipe("llama-3-70b"), "large", [*BENCHMARKS, "mmlu", "cmmlu", "hellaswag"])]
    for processes in (1, 8, 64):
        found = shares(work, processes)
        assert sorted((e.recipe.hash, b) for s in found for e in s.work for b in e.benchmarks) == cells(work)
        assert [share.cost for share in found] == sorted((share.cost for share in found), reverse=True)
        assert all(len({(e.recipe.model, str(e.recipe.calibration)) for e in share.work}) == 1 for share in found)
        assert all(len({e.recipe.hash for e in share.work}) == len(share.work) for share in found)
    assert len(shares(work, 1)) == 3
    one = shares(work, 64)[0]
    assert one.cost < costs.of([work[-1]]), "the longest recipe is cut into its benchmarks"


def test_what_trains_is_not_cut():
    trained = recipe(training={"method": "laco-posttrain"})
    found = shares([Work(trained, "long", list(BENCHMARKS)), *grid(6)], 64)
    assert [share.cells for share in found if share.work[0].recipe == trained] == [3]


def test_listed_commands_ask_for_each_cell_once(stub):
    work = grid(5)
    text = [
        "run",
        "table1-laco",
        "--model",
        "a b",
        "--workers",
        "3",
        "--list-work",
        "--profile",
        "paper",
        "--limit",
        "7",
        "--full-test-sets",
    ]
    lines = distributed.list_work(parser().parse_args(text), work).splitlines()
    assert len(lines) > 1
    asked = []
    for line in lines:
        words = subprocess.run(
            ["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True
        ).stdout.splitlines()
        options = parser().parse_args(words[3:])
        assert (options.model, options.limit, options.workers, options.no_show) == (["a b"], 7, None, True)
        assert options.full_test_sets and not options.paper_budget
        asked += cells(distributed.chosen(work, options.recipe, work))
    assert sorted(asked) == cells(work)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "at least one process is needed"),
        (["--workers", "2", "--slurm", "gpus=1"], "choose one of them"),
        *((["--slurm", f"{text}partition"], "'partition' is no NAME=VALUE") for text in ("", "array=2,", "mem=1G,")),
        (["--slurm", "array=2,3"], "'3' is no NAME=VALUE"),
        (["--slurm", "partiton=gpu"], "unknown SLURM option 'partiton'; did you mean 'partition'?"),
        (["--slurm", "array=0"], "a whole number above 0"),
        *((["--slurm", f"{name}=x"], f"{name}: this option cannot be set here") for name in OURS),
    ],
)
def test_what_cannot_be_spread_is_said(arguments, message):
    with pytest.raises(UserError, match=message):
        distributed.check(parser().parse_args(["run", "table1-laco", *arguments]))


def test_a_recipe_or_a_benchmark_that_no_table_has_is_said():
    every = grid()
    key = every[0].recipe.hash
    for asked, said in (
        ("nonsense", "recipe 'nonsense'"),
        ("0123456789abcdef", "recipe '0123456789abcdef'"),
        (f"{key}:piqa,copy", f"benchmark of the recipe {key} 'copy'; did you mean 'copa'"),
    ):
        with pytest.raises(UserError, match=f"unknown {said}"):
            distributed.chosen(every, [asked], every)
    left = [Work(every[0].recipe, "row 0", ["copa", "boolq"]), *every[2:]]
    assert distributed.chosen(left, [f"{key}:piqa", every[1].recipe.hash], every) == []  # measured by now
    assert cells(distributed.chosen(left, [f"{key}:piqa,copa"], every)) == [(key, "copa")]
    assert distributed.chosen(left, [f"{key}:copa", key], every) == left[:1]


def test_gpus_and_cores_are_shared_out(monkeypatch):
    assert [cluster._own([4, 5, 6], n, 2, several=False) for n in range(4)] == [(4,), (5,), (6,), (4,)]
    assert [cluster._own([4, 5, 6], n, 2, several=True) for n in range(2)] == [(4, 6), (5,)]
    assert cluster._own([], 0, 2, several=True) == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,7")
    assert cluster._gpus(None) == [2, 7] and cluster._gpus("cuda:1") == [7] and cluster._gpus("cpu") == []
    for wrong in ("cuda:2", "cuda:-1", "cuda:x"):
        with pytest.raises(UserError, match=f"--device {wrong}: 2 GPUs can be used here"):
            cluster._gpus(wrong)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937,GPU-46b2a5b7")
    with pytest.raises(UserError, match="GPU-8932f937,GPU-46b2a5b7 names GPUs by identifiers.*to their numbers"):
        cluster._gpus(None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 4}, raising=False)
    assert [cluster._cores(n, 2) for n in range(2)] == [(0, 2, 4), (1, 3)]
    assert cluster._cores(6, 7) == (1,) and cluster._cores(0, 1) == (0, 1, 2, 3, 4)


def test_what_there_is_is_divided_by_the_processes_that_are_started(stub, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 4, 5}, raising=False)
    begun = []

    class Executor:
        def __init__(self, folder):
            pass

        def update_parameters(self, **parameters):
            self.gpus = parameters["visible_gpus"]

        def submit(self, task):
            begun.append((task.cores, self.gpus, os.environ["OMP_NUM_THREADS"]))

    monkeypatch.setattr(submitit, "LocalExecutor", Executor)
    monkeypatch.setattr(cluster, "_watch", lambda *_: None)
    monkeypatch.delenv("OMP_NUM_THREADS")
    work = grid(1, ["piqa", "copa"])
    monkeypatch.setattr(cluster, "_gpus", lambda device: [])
    cluster.processes(work, cluster.Request(), 6, stub.folder)
    assert begun == [((0, 2, 4), (), "3"), ((1, 3, 5), (), "3")]
    begun.clear()
    monkeypatch.setattr(cluster, "_gpus", lambda device: [4, 5, 6])
    cluster.processes(work, cluster.Request(device="auto"), 6, stub.folder)
    assert [gpus for _, gpus, _ in begun] == [(4, 6), (5,)]


def test_slurm_options_have_short_names():
    assert cluster.slurm_options("partition=gpu,gpus=1,array=8,minutes=90,account=a") == {
        "partition": "gpu",
        "gpus_per_node": 1,
        "array_parallelism": 8,
        "time": 90,
        "account": "a",
    }


def test_slurm_options_are_numbers_where_slurm_has_numbers_and_may_be_lists():
    found = cluster.slurm_options("account=00123,nodelist=n1, n2,n[4,6],cpus_per_task=08,qos=7,mem=64,exclude=n3")
    assert found["account"] == "00123" and found["nodelist"] == "n1,n2,n[4,6]" and found["cpus_per_task"] == 8
    assert (found["qos"], found["mem"], found["exclude"]) == ("7", "64", "n3")


@pytest.mark.parametrize(("asked", "name"), [("", "reproductions"), ("job_name=mine", "mine")])
def test_an_array_has_the_name_that_is_asked_for(asked, name, stub, monkeypatch):
    """By the script that sbatch is given, which says that it has submitted job 7."""
    (stub.folder / "bin").mkdir()
    for program, does in (("srun", "exit 0"), ("sbatch", f"cp $1 {stub.folder}/script; echo Submitted batch job 7")):
        (stub.folder / "bin" / program).write_text(f"#!/bin/sh\n{does}\n")
        (stub.folder / "bin" / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.folder}/bin", prepend=os.pathsep)
    jobs = cluster.array(grid(1), cluster.Request(), cluster.slurm_options(asked), stub.folder / "jobs")
    assert jobs[0].job_id.startswith("7")
    assert f"#SBATCH --job-name={name}" in (stub.folder / "script").read_text().splitlines()


def test_where_there_is_no_slurm_that_is_said(stub, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="cannot submit to SLURM: .*use --workers N"):
        cluster.array(grid(1), cluster.Request(), cluster.slurm_options(""), stub.folder)


def test_status_tells_done_failed_and_left_with_rates(stub):
    work = grid(2)
    failing = SimpleNamespace(**vars(stub_measure))
    failing.prepare = stub_measure.prepare

    def benchmark(prepared, name):
        if name == "copa":
            raise MemoryError
        return stub_measure.benchmark(prepared, name)

    failing.benchmark = benchmark
    runner.measured(work[:1], stub.store, failing)
    counts, since = status.count(work, stub.store)
    total = counts["llama-2-7b"]
    assert (total.done, total.failed, total.left, total.running, total.hour) == (2, 1, 3, 0, 2)
    text = status.render(counts, since)
    heading, line, everything = text.splitlines()
    assert heading.split()[:4] == ["model", "done", "running", "failed"]
    assert line.split()[1:6] == everything.split()[1:6] == ["2", "0", "1", "0", "3"]
    later, _ = status.count(work, stub.store, time.time() + 2 * status.HOUR)
    assert later["llama-2-7b"].hour == 0 and later["llama-2-7b"].line("a", 1.0)[-2:] == ("-", "-")

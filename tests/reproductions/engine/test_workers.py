"""A grid over processes: whatever is killed and whoever submits, every record is there once."""

import multiprocessing
import os
import pickle
import shlex
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
from stored_records import put

from common.console import progress
from common.pruning.recipe import Recipe
from common.utils import locks
from common.utils.errors import UserError
from common.utils.paths import ROOT
from reproductions.command_line import main, parser
from reproductions.engine import runner, workers
from reproductions.engine.work import Work

BENCHMARKS = ("piqa", "copa", "boolq")
# What submitit asks of SLURM, but takes no text for, or is told by us.
OURS = ("stderr_to_stdout", "additional_parameters", "setup", "teardown", "srun_args", "folder")
# What a submitter of its own does; it prints its process's number first.
SUBMIT = """import os, pickle, sys
from pathlib import Path
from reproductions.engine import workers
print(os.getpid(), flush=True)
workers.local(pickle.loads(Path(sys.argv[1]).read_bytes()), 2, Path(sys.argv[2]))
"""


def grid(count=6, benchmarks=BENCHMARKS):
    recipes = [Recipe("llama-2-7b", "paper", fidelity=f"f{number}") for number in range(count)]
    return [Work(recipe, f"row {number}", list(benchmarks)) for number, recipe in enumerate(recipes)]


def worker(work, **options):
    return workers.Worker(tuple(work), time.time_ns(), measure="stub_measure", **options)


def cells(work):
    return sorted((entry.recipe.hash, benchmark) for entry in work for benchmark in entry.benchmarks)


def assert_recorded(stub, work, times=1):
    """Each cell has a result and was begun so many times (None: whatever number), and nobody measures any more."""
    for path in stub.store.user.rglob(".lock"):
        lock = locks.take(path)
        assert lock is not None, "somebody still measures"
        lock.release()
    for entry in work:
        for benchmark in entry.benchmarks:
            record = stub.store.get(entry.recipe, benchmark)
            assert record is not None and record.status == "ok"
    assert times is None or stub.begun() == dict.fromkeys(cells(work), times)


def test_who_has_no_patience_leaves_what_another_measures(stub):
    work = grid(2)
    lock = locks.take(stub.store.lock_path(work[0].recipe))
    assert runner.measured(work, stub.store, stub_measure, patience=0) == 0
    assert set(stub.begun()) == set(cells(work[1:]))
    lock.release()
    assert runner.measured(work, stub.store, stub_measure) == 0
    assert_recorded(stub, work)


def test_what_another_measures_is_waited_for_and_taken_over_if_it_gives_up(stub, caplog):
    (work,) = grid(1)
    lock = locks.take(stub.store.lock_path(work.recipe))
    waiting = threading.Thread(target=runner.measured, args=([work], stub.store, stub_measure))
    waiting.start()
    while "waiting for other processes, which measure row 0" not in caplog.text:
        time.sleep(0.01)
    assert not stub.begun()
    lock.release()
    waiting.join()
    assert_recorded(stub, [work])


def test_measuring_anew_is_done_once_for_each_request(stub):
    work = grid(2)
    request_time = time.time_ns()
    for _ in range(2):
        runner.measured(work, stub.store, stub_measure, force=True, since=request_time)
    assert_recorded(stub, work, times=1)
    runner.measured(work, stub.store, stub_measure, force=True)
    assert_recorded(stub, work, times=2)


@pytest.fixture
def failing():
    """Stands for a measuring that fails in each benchmark; its `tries` are noted."""
    tries = []

    def benchmark(prepared, name):
        tries.append(name)
        raise MemoryError

    return SimpleNamespace(**vars(stub_measure) | {"benchmark": benchmark}, tries=tries)


def test_a_failure_is_not_tried_again_for_the_same_request(stub, failing):
    (work,) = grid(1, ["piqa"])
    request_time = time.time_ns()
    assert runner.measured([work], stub.store, failing, since=request_time) == 1
    assert runner.measured([work], stub.store, stub_measure, since=request_time) == 1 and not stub.begun()
    assert runner.measured([work], stub.store, stub_measure) == 0 and stub.begun()


def outcome(work, since):
    return workers._outcome(workers.Worker(tuple(work), since, force=True))


def test_a_value_that_is_not_measured_anew_is_kept_and_counts_as_failed(stub, failing):
    """Several processes try it once for a request; who asked for it is told, and nothing is left beside the record."""
    (work,) = grid(1, ["piqa", "copa"])
    runner.measured([work], stub.store, stub_measure)
    before = stub.store.get(work.recipe, "copa")
    (work,) = work.without(["piqa"])

    def measured(measure, **options):
        return runner.measured([work], stub.store, measure, force=True, **options)

    def files():
        return sorted(path.name for path in stub.store.path(work.recipe, "copa").parent.iterdir())

    files_before, request_time = files(), time.time_ns()
    for _ in range(2):
        assert measured(failing, since=request_time) == 1
    assert failing.tries == ["copa"] and stub.store.get(work.recipe, "copa") == before
    assert outcome([work], request_time) == 1 and files() == files_before
    assert measured(failing) == 1  # a request of one process leaves no trace
    assert files() == files_before
    request_time = time.time_ns()
    assert measured(failing, since=request_time, lacking=lambda recipe, benchmark: "no network") == 0
    assert outcome([work], request_time) == 0  # what has no data is no failure
    assert stub.store.get(work.recipe, "copa") == before
    request_time = time.time_ns()
    measured(failing, since=request_time)
    measured(stub_measure)
    assert files() == files_before and outcome([work], request_time) == 0


def test_what_killed_processes_were_to_measure_anew_counts_as_failed(stub, monkeypatch, caplog):
    work = grid(2)
    runner.measured(work, stub.store, stub_measure)
    monkeypatch.setattr(workers, "local", lambda *_: None)  # as if all were killed at once
    options = parser().parse_args(["run", "table1-laco", "--workers", "2", "--force"])
    assert workers.spread(options, stub.store, work, lambda *_: None) == len(cells(work))
    assert "its process ended early" in caplog.text
    options.force = False
    assert workers.spread(options, stub.store, work, lambda *_: None) == 0


def test_the_bar_is_full_where_values_are_kept(stub, failing, monkeypatch):
    (work,) = grid(1)
    runner.measured([work], stub.store, stub_measure)
    request_time = time.time_ns()
    runner.measured([work], stub.store, failing, force=True, since=request_time)
    counted = []
    monkeypatch.setattr("common.console.progress.track.update", lambda bar, count=1: counted.append(count))
    workers._watch(workers.Worker((work,), request_time, force=True), {}, None)
    assert sum(counted) == len(BENCHMARKS)


def test_the_time_left_is_divided_among_the_processes_that_work(stub, monkeypatch):
    """Of three recipes of two cells, of which nothing is known, one cell is measured, in 30 seconds."""

    class Process:
        exitcode = None

        def is_alive(self):
            return True

    tracked = {}

    def track(*arguments, left, **options):
        tracked["left"] = left
        return progress.track(*arguments, left=left, **options)

    monkeypatch.setattr(workers, "track", track)
    work = grid(3, ("first", "second"))
    provenance = {"seconds": 30.0, "preparing_seconds": 8.0}
    put(stub.store, work[0].recipe, "first", {"acc": 0.5}, provenance=provenance)
    workers._watch(worker(work), {Process(): stub.folder / str(number) for number in range(2)}, ends=0)
    assert tracked["left"]() == 5 * 30 / 2


def test_a_task_does_all_of_it_and_is_queued_again_as_it_was(stub):
    work = grid(2)
    task = worker(work)
    again = pickle.loads(pickle.dumps(task.checkpoint().function))
    assert again == task
    before = sys.path[:]
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        assert submitit.DebugExecutor(stub.folder / "jobs").submit(again).result() == 0
    finally:
        sys.path[:] = before
    assert_recorded(stub, work)


def test_a_killed_processes_cells_are_taken_over_by_the_others(stub, capsys):
    work = grid(4)
    victim = (work[1].recipe.hash, "copa")
    stub.set("STUB_KILLS", " ".join(victim))
    stub.set("STUB_SECONDS", "0.2")
    workers.local(worker(work), 2, stub.folder / "jobs")
    assert_recorded(stub, work, times=None)
    assert stub.begun() == dict.fromkeys(cells(work), 1) | {victim: 2}
    assert "ended early (SIGKILL); see" in capsys.readouterr().err


def test_who_is_ended_after_the_time_is_over_did_not_end_early(stub, capsys):
    class Ended:
        pid, exitcode = 7, -signal.SIGTERM

        def is_alive(self):
            return False

    logs = {Ended(): stub.folder / "log"}
    workers._watch(worker(grid(1)), logs, ends=time.time() - 1)
    assert "ended early" not in capsys.readouterr().err
    workers._watch(worker(grid(1)), logs, ends=time.time() + 60)
    assert "process 7 ended early (SIGTERM)" in capsys.readouterr().err


def test_a_process_that_ends_by_an_error_says_which_and_where_its_log_is(stub, capsys):
    stub.set("STUB_REFUSES", "no such device")
    workers.local(worker(grid(1, ["piqa"])), 1, stub.folder / "jobs")
    (log,) = (stub.folder / "jobs").glob("*.log")
    (warning,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: "))
    assert warning.endswith(f" ended early (common.utils.errors.UserError: no such device); see {log}")


def submitter(stub, work, **options):
    """A process that submits the work to two processes of its own."""
    (stub.folder / "work").write_bytes(pickle.dumps(worker(work)))
    command = [sys.executable, "-c", SUBMIT, str(stub.folder / "work"), str(stub.folder / "jobs")]
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_submitter_loses_nothing_and_a_second_one_repeats_nothing(stub):
    work = grid(8)
    stub.set("STUB_SECONDS", "0.5")
    first = submitter(stub, work, stdout=subprocess.PIPE)
    assert int(first.stdout.readline()) == first.pid
    wait_until(stub.begun, 300)
    first.kill()
    first.wait()
    first.stdout.close()
    assert 0 < len(stub.begun()) < len(cells(work))
    workers.local(worker(work), 1, stub.folder / "jobs")
    assert_recorded(stub, work)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "ctrl_c"), [(signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_IGN)], ids=["TERM", "HUP"]
)
def test_a_submitter_that_is_told_to_end_leaves_no_process_behind(stub, number, ctrl_c):
    """Where Ctrl-C is ignored, as in a script's background, too."""

    def answers():
        signal.signal(signal.SIGINT, ctrl_c)
        signal.signal(number, signal.SIG_DFL)

    stub.set("STUB_SECONDS", "90")
    with (stub.folder / "errors").open("w") as errors:
        first = submitter(stub, grid(2), stdout=subprocess.DEVNULL, stderr=errors, preexec_fn=answers)
    wait_until(lambda: len(stub.begun()) >= 2, 120)
    measuring = {int(line.split()[0]) for line in (stub.folder / "log").read_text().splitlines()}
    assert len(measuring) == 2
    first.send_signal(number)
    assert first.wait(60) and "KeyboardInterrupt" in (stub.folder / "errors").read_text()
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in measuring if psutil.pid_exists(pid)], timeout=30)
    assert not alive


@pytest.mark.slow
def test_ctrl_c_of_the_terminal_is_the_submitters_business(stub):
    """It reaches workers that still load their libraries, too: no traceback of theirs beside the submitter's answer."""
    work = grid(1)
    first = submitter(stub, work, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    workers_of_first = []
    wait_until(lambda: workers_of_first.extend(_spawned(first.pid)) or workers_of_first, 60)
    for process in workers_of_first:
        process.send_signal(signal.SIGINT)
    assert not any(line.startswith("Traceback") for line in first.communicate()[1].splitlines())
    assert_recorded(stub, work)


def _spawned(submitter_id):
    """The workers of a submitter, beside the process that cleans up behind them."""
    children = psutil.Process(submitter_id).children()
    return [child for child in children if any("spawn_main" in part for part in child.cmdline())]


def test_listed_commands_ask_for_each_cell_once(stub):
    work = grid(5)
    text = ["run", "table1-laco", "--model", "a b", "--list-work"]
    text += ["--profile", "paper", "--limit", "7", "--full-test-sets"]
    lines = workers.list_work(parser().parse_args(text), work).splitlines()
    assert len(lines) == len(work)
    requested = []
    for line in lines:
        shell = ["sh", "-c", f"printf '%s\\n' {line}"]
        words = subprocess.run(shell, capture_output=True, text=True).stdout.splitlines()
        options = parser().parse_args(words[3:])
        assert (options.model, options.limit, options.workers, options.no_show) == (["a b"], 7, None, True)
        assert options.full_test_sets and not options.paper_budget
        requested += cells(workers.named_work(work, options.recipe, work))
    assert sorted(requested) == cells(work)


def test_a_listed_command_asks_for_one_of_the_recipes_that_were_asked(stub, capsys):
    """With options that change or narrow rows: the command, asked to list its work, prints itself."""
    command = ["run", "table1-prunecomp", "--row", "CosSim(BI) +*", "--seed", "77", "--columns", "Numeric"]
    assert main([*command, "--list-work"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert main([*shlex.split(line)[3:], "--list-work"]) == 0
        assert capsys.readouterr().out.splitlines() == [line]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2", "--slurm", "gpus=1"], "choose one of them"),
        (["--workers", "2", "--list-work"], "measures nothing. Leave --workers and --slurm out"),
        *((["--slurm", f"{text}partition"], "'partition' is no NAME=VALUE") for text in ("", "array=2,", "mem=1G,")),
        (["--slurm", "array=2,3"], "'3' is no NAME=VALUE"),
        (["--slurm", "partiton=gpu"], "unknown SLURM option 'partiton'; did you mean 'partition'?"),
        (["--slurm", "array=0"], "a whole number above 0"),
        *((["--slurm", f"{name}=x"], f"unknown SLURM option '{name}'") for name in OURS),
    ],
)
def test_what_cannot_be_spread_is_said(arguments, message):
    with pytest.raises(UserError, match=message):
        workers.check(parser().parse_args(["run", "table1-laco", *arguments]))


def test_a_recipe_that_no_table_has_is_said():
    every = grid()
    for name in ("nonsense", "0123456789abcdef"):
        with pytest.raises(UserError, match=f"unknown recipe '{name}'"):
            workers.named_work(every, [name], every)
    left = [Work(every[0].recipe, "row 0", ["copa", "boolq"]), *every[2:]]
    assert workers.named_work(left, [every[1].recipe.hash], every) == []  # measured by now
    assert workers.named_work(left, [every[3].recipe.hash, every[0].recipe.hash], every) == [left[0], left[2]]


def test_gpus_and_cores_are_shared_out(monkeypatch):
    assert [workers._gpus_of("456", n, 2, several=False) for n in range(4)] == [["4"], ["5"], ["6"], ["4"]]
    assert [workers._gpus_of("456", n, 2, several=True) for n in range(2)] == [["4", "6"], ["5"]]
    assert workers._gpus_of([], 0, 2, several=True) == []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert workers._gpus(None) == ["0", "1"]
    for names in (["2", "7"], ["GPU-8932f937", "GPU-46b2a5b7"]):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
        assert workers._gpus(None) == names and workers._gpus("cuda:1") == names[1:] and workers._gpus("cpu") == []
        for wrong in ("cuda:2", "cuda:-1", "cuda:x"):
            with pytest.raises(UserError, match=f"--device {wrong}: 2 GPUs can be used here"):
                workers._gpus(wrong)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 4}, raising=False)
    assert [workers._cores(n, 2) for n in range(2)] == [(0, 2, 4), (1, 3)]
    assert workers._cores(6, 7) == (1,) and workers._cores(0, 1) == (0, 1, 2, 3, 4)


def test_what_there_is_is_divided_by_the_workers_that_are_started(stub, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 4, 5}, raising=False)
    begun = []

    class Process:
        def __init__(self, target, args):
            self.cores = args[1]

        def start(self):
            begun.append((self.cores, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["OMP_NUM_THREADS"]))

    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: SimpleNamespace(Process=Process))
    monkeypatch.setattr(workers, "_watch", lambda *_: None)
    monkeypatch.setattr(workers, "_end", lambda *_: None)
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(workers, "_gpus", lambda device: [])
    workers.local(worker(grid(2)), 6, stub.folder)
    assert begun == [((0, 2, 4), None, "3"), ((1, 3, 5), None, "3")]
    begun.clear()
    monkeypatch.setattr(workers, "_gpus", lambda device: ["4", "5", "6"])
    workers.local(worker(grid(2), device="auto"), 6, stub.folder)
    assert [gpus for _, gpus, _ in begun] == ["4,6", "5"]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("partition=gpu,account=a", {"partition": "gpu", "account": "a"}),
        ("gpus=1", {"gpus_per_node": 1}),
        ("account=00123,cpus_per_task=08", {"account": "00123", "cpus_per_task": 8}),  # numbers where SLURM has numbers
        ("qos=7,mem=64", {"qos": "7", "mem": "64"}),
        ("nodelist=n1, n2,n[4,6],exclude=n3", {"nodelist": "n1,n2,n[4,6]", "exclude": "n3"}),
    ],
)
def test_slurm_options(text, options):
    short = {"array_parallelism": 8, "time": 90}
    assert workers.slurm_options(f"array=8,minutes=90,{text}") == short | options


@pytest.mark.parametrize(("asked", "name"), [("", "reproductions"), ("job_name=mine", "mine")])
def test_an_array_has_the_name_that_is_asked_for(asked, name, stub, monkeypatch):
    """By the script that sbatch is given, which says that it has submitted job 7."""
    (stub.folder / "bin").mkdir()
    for program, does in (("srun", "exit 0"), ("sbatch", f"cp $1 {stub.folder}/script; echo Submitted batch job 7")):
        (stub.folder / "bin" / program).write_text(f"#!/bin/sh\n{does}\n")
        (stub.folder / "bin" / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.folder}/bin", prepend=os.pathsep)
    jobs = workers.slurm(worker(grid(1)), workers.slurm_options(asked), stub.folder / "jobs")
    assert jobs[0].job_id.startswith("7")
    assert f"#SBATCH --job-name={name}" in (stub.folder / "script").read_text().splitlines()


def test_where_there_is_no_slurm_that_is_said(stub, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="cannot submit to SLURM: .*use --workers N"):
        workers.slurm(worker(grid(1)), workers.slurm_options(""), stub.folder)

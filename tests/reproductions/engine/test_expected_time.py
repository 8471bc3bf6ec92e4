"""The time that cells are said to take is that of the published results that they are like."""

from dataclasses import replace
from statistics import median
from types import SimpleNamespace

import pytest

from common.console import progress
from common.pruning.recipe import Recipe
from common.records.results import NOWHERE, Store
from reproductions.engine import expected_time, runner
from reproductions.spec import registry, subjects
from reproductions.spec.changes import Changes


def test_a_published_cell_takes_what_it_took_and_another_seed_the_median():
    store, table = Store(NOWHERE), registry.get("table1-linearpatch")
    [entry] = runner.missing([table], store, subjects.TOY, pattern="LinearPatch[S]", force=True)[:1]
    entry = runner.Work(entry.recipe, entry.title, entry.benchmarks[:1])
    record = store.get(entry.recipe, entry.benchmarks[0])
    took = record.provenance["seconds"] + record.provenance.get("preparing_seconds", 0)
    assert expected_time.expected([entry], store) == (took, 0)
    changed = replace(entry, recipe=Changes(seed=77).of(entry.recipe))
    seconds, unknown = expected_time.expected([changed], store)
    times = [result["provenance"]["seconds"] for result in store.published.of_benchmark("standin", entry.benchmarks[0])]
    assert unknown == 0 and median(times) <= seconds <= sum(times)


def test_a_gpus_seconds_count_only_where_no_cpu_has_measured(monkeypatch):
    def rows(*times):
        return [({}, {"seconds": seconds, "device": device}) for device, seconds in times]

    both = {"smollm2-135m-instruct": rows(("cuda", 1.0), ("cpu", 60.0), ("cuda", 1.0))}
    monkeypatch.setattr(expected_time, "_of_benchmark", lambda store, model, name: both.get(model, []))
    assert expected_time._published(None, "smollm2-135m-instruct", "piqa")[0] == 60.0
    both["qwen2.5-coder-0.5b-instruct"] = rows(("cuda", 2.0))
    of_smollm2 = 60.0 * 494_032_768 / 134_515_008  # in proportion to the parameters
    assert expected_time._published(None, "qwen2.5-coder-0.5b-instruct", "piqa")[0] == pytest.approx(of_smollm2)
    both["smollm2-135m-instruct"] = rows(("cuda", 1.0))
    assert expected_time._published(None, "smollm2-135m-instruct", "piqa")[0] == 1.0


def test_what_was_never_measured_is_said_to_be_unknown_and_nothing_of_no_cell():
    work = [runner.Work(Recipe("standin", "standin"), "", ["no-such-benchmark"])]
    assert expected_time.expected(work, Store(NOWHERE)) == (0.0, 1)
    assert expected_time.summary(work, Store(NOWHERE)) == "1 cell to measure; nothing is known of their time"
    assert expected_time.summary([], Store(NOWHERE)) == "nothing is left to measure"


# Benchmark -> the seconds that a published result of another seed took; preparing took 50.
PUBLISHED = {"piqa": 10.0, "copa": 10.0, "hellaswag": 1000.0}


class Published:
    """Stands for the published results: one of every benchmark above."""

    def get(self, model, recipe_hash, benchmark):
        return None

    def benchmarks(self, model):
        return []

    def of_benchmark(self, model, benchmark):
        if benchmark in PUBLISHED:
            provenance = {"seconds": PUBLISHED[benchmark], "preparing_seconds": 50.0}
            yield {"recipe": {"repair": {"method": "shift"}}, "provenance": provenance, "status": "ok"}


class Clock:
    """A clock that only the measuring moves, twice as slow as published."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic

    def time_ns(self):
        return int(self.now * 1e9)

    def held_together(self, recipe):
        return 1

    def prepare(self, recipe, **options):
        self.now += 2 * 50
        return SimpleNamespace(recipe=recipe, details={}, provenance={})

    def benchmark(self, prepared, name):
        self.now += 2 * PUBLISHED[name]
        return {"acc": 0.5}, {}, {}


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path, None)
    store.published = Published()
    return store


def work_of(count, benchmarks):
    recipes = [Recipe("llama-2-7b", "paper", repair={"method": "shift"}, fidelity=f"f{n}") for n in range(count)]
    return [runner.Work(recipe, f"row {n}", list(benchmarks)) for n, recipe in enumerate(recipes)]


def time_left(work, store, prepared=None, **measured):
    """The time left of this work once its first model is prepared, and some of its cells are measured, in these seconds."""
    left = expected_time.TimeLeft(work, store)
    for benchmark, seconds in {None: prepared, **measured}.items() if prepared else measured.items():
        left.done(work[0].recipe.hash, benchmark, seconds)
    return left


def test_the_time_left_weighs_cells_by_what_they_are_expected_to_take(store, monkeypatch, capsys):
    """Two models with a cell of 10, one of 10 and one of 1000 seconds: after the first cell most is left, not two thirds."""
    clock = Clock()
    for module in (runner, progress):
        monkeypatch.setattr(module, "time", clock)
    assert runner.measured(work_of(2, PUBLISHED), store, clock) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("measuring: cell")]
    left = {line.split(",")[0]: line.rpartition("about ")[2] for line in lines if line.endswith("left")}
    second = 2 * (50 + 10 + 10 + 1000)  # the other model's
    assert left == {
        "measuring: cell 1 of 6": f"{progress.clock(2 * (10 + 1000) + second)} left",
        "measuring: cell 2 of 6": f"{progress.clock(2 * 1000 + second)} left",
        "measuring: cell 3 of 6": f"{progress.clock(second)} left",
        "measuring: cell 4 of 6": f"{progress.clock(2 * (10 + 1000))} left",
        "measuring: cell 5 of 6": f"{progress.clock(2 * 1000)} left",
    }


def test_before_anything_is_done_the_time_left_is_unknown(store):
    work = work_of(1, PUBLISHED)
    assert time_left(work, store).seconds() is None
    assert time_left(work, store, piqa=None).seconds() is None  # failed, or measured by another process
    assert time_left(work, store, 50.0, piqa=None).seconds() == 10 + 1000
    assert time_left(work, store, piqa=None, copa=5.0).seconds() == 0.5 * (50 + 1000)


def test_a_cell_of_no_time_says_nothing_of_the_others(store, monkeypatch):
    """Counting parameters is expected to take 0.1 ms; the first time it takes a thousand times as long."""
    monkeypatch.setitem(PUBLISHED, "parameters", 1e-4)
    work = work_of(1, PUBLISHED)
    assert time_left(work, store, parameters=0.1).seconds() is None
    left = time_left(work, store, parameters=0.1, piqa=20.0)
    assert left.seconds() == pytest.approx(2 * (50 + 10 + 1000), rel=0.01)


def test_a_recipe_that_others_have_measured_is_not_prepared(store):
    first, second = work_of(2, ["piqa", "copa"])
    left = time_left([first, second], store, 50.0, piqa=10.0)
    assert left.seconds() == 10 + 50 + 10 + 10
    for benchmark in second.benchmarks:
        left.done(second.recipe.hash, benchmark)
    assert left.seconds() == 10 and left.recipes() == {first.recipe.hash}


def test_a_cell_of_which_nothing_is_known_counts_as_the_mean_of_the_others(store):
    left = time_left(work_of(1, [*PUBLISHED, "new"]), store, 50.0, piqa=10.0)
    assert left.seconds() == 10 + 1000 + (10 + 10 + 1000) / 3
    assert time_left(work_of(1, ["a", "b", "c"]), store, 7.0, a=30.0).seconds() == 60


def test_each_calibration_text_is_read_once(store, monkeypatch):
    monkeypatch.setitem(PUBLISHED, expected_time._RUNNING, 100.0)
    text = {"corpus": "wikitext2-train", "count": 48, "length": 2048}  # twice as many tokens as the benchmark reads
    recipes = [
        Recipe("llama-2-7b", "paper", calibration={**text, "seed": seed}, repair={"method": "shift"}, fidelity=f"f{n}")
        for n, seed in enumerate([0, 0, 1])
    ]
    work = [runner.Work(recipe, "", ["piqa"]) for recipe in recipes]
    cells_and_preparing = 3 * (10 + 50)
    assert expected_time.expected(work, store) == (cells_and_preparing + 2 * 200, 0)
    left = time_left(work, store, 250.0, piqa=10.0)
    assert left.seconds() == 2 * 10 + 50 + 250  # the second reads nothing, the third another draw

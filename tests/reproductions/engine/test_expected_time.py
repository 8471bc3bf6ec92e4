"""The time that cells are said to take is that of the published results that they are like."""

from dataclasses import replace
from statistics import median

from common.pruning.recipe import Recipe
from common.records.results import NOWHERE, Store
from reproductions.engine import expected_time, runner
from reproductions.spec import registry, subjects
from reproductions.spec.changes import Changes


def test_a_published_cell_takes_what_it_took_and_another_seed_the_median():
    store, table = Store(NOWHERE), registry.get("table1-linearpatch")
    [entry] = runner.missing([table], store, subjects.STANDIN, pattern="LinearPatch[S]", force=True)[:1]
    entry = runner.Work(entry.recipe, entry.title, entry.benchmarks[:1])
    record = store.get(entry.recipe, entry.benchmarks[0])
    took = record.provenance["seconds"] + record.provenance.get("preparing_seconds", 0)
    assert expected_time.expected([entry], store) == (took, 0)
    changed = replace(entry, recipe=Changes(seed=77).of(entry.recipe))
    seconds, unknown = expected_time.expected([changed], store)
    times = [one["provenance"]["seconds"] for one in store.published.of_benchmark("standin", entry.benchmarks[0])]
    assert unknown == 0 and median(times) <= seconds <= sum(times)


def test_what_was_never_measured_is_said_to_be_unknown():
    work = [runner.Work(Recipe("standin", "standin"), "", ["no-such-benchmark"])]
    assert expected_time.expected(work, Store(NOWHERE)) == (0.0, 1)
    assert expected_time.said(work, Store(NOWHERE)) == "1 cell to measure; nothing is known of their time"

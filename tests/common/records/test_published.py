"""The published results: what is folded in comes back, however the process ends."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from killed import killed_at

from common.pruning.recipe import Recipe
from common.records import published, results
from common.records.outcomes import Outcomes
from common.records.published import Published
from common.records.results import NOWHERE, PUBLISHED, Record, Store, publish

RECIPE = Recipe("somebody/small", "paper", selection={"method": "bi", "count": 4, "cosine": "token"})
OTHER = dataclasses.replace(RECIPE, limit=3)
LM_EVAL = {
    "configs": {"piqa": {"process_docs": "<function f at 0x7f01>", "metadata": {"config_source": "/x/lm_eval/p.yaml"}}},
    "results": {"piqa": {"acc,none": 0.5}},
}
WHERE = {"packages": {"torch": "2"}, "python": "3.11", "cpus": 2}


def record(recipe=RECIPE, **fields) -> Record:
    base = {"recipe": dataclasses.asdict(recipe), "recipe_hash": recipe.hash, "benchmark": "piqa@first-500"}
    return Record(**{**base, "status": "ok", "values": {"acc": 0.5}, **fields})


def test_what_is_folded_in_comes_back(tmp_path):
    """Long values, task configurations and environments are stored apart and come back; so do numbers JSON lacks."""
    details = {"training": {"losses": [0.1] * 40}, "removed": [3, 4], "lm_eval": LM_EVAL}
    first = record(
        values={"acc": 0.5, "nll": math.inf}, stderr={"acc": 0.1}, details=details, provenance=WHERE | {"commit": "c"}
    )
    second = record(OTHER, status="failed", values={}, reason="why", details={"training": details["training"]})
    publish(tmp_path, [(first, {"acc": np.arange(8) % 2 == 0}), (second, {})])
    store = Store(NOWHERE, tmp_path)
    stored = store.get(RECIPE, first.benchmark)
    plain = json.loads(json.dumps(LM_EVAL).replace(" at 0x7f01", "").replace("/x/", ""))
    assert stored == dataclasses.replace(first, details=details | {"lm_eval": plain}) and stored.origin == "published"
    assert store.get(OTHER, second.benchmark) == second and store.get(OTHER, "other") is None
    assert np.array_equal(store.items(RECIPE, first.benchmark)["acc"], np.arange(8) % 2 == 0)
    assert store.items(OTHER, second.benchmark) == {} and len(list(store.published)) == 2
    shared = (tmp_path / "somebody--small" / "shared.jsonl").read_text()
    assert shared.count("losses") == 1


def test_outcomes_of_other_lengths_and_names_lie_beside_the_others(tmp_path):
    recipes = [dataclasses.replace(RECIPE, limit=number) for number in range(5)]
    outcomes = [{"acc": np.arange(8) % (n + 2) == 0, "acc_norm": np.arange(8) % 2 == 0} for n in range(3)]
    outcomes += [{"acc": np.ones(5, bool)}, {"nll": np.linspace(0, 1, 7, dtype=np.float32)}]
    publish(tmp_path, [(record(recipe), items) for recipe, items in zip(recipes, outcomes)])
    for recipe, items in zip(recipes, outcomes):
        stored = Store(NOWHERE, tmp_path).items(recipe, record().benchmark)
        assert stored.keys() == items.keys()
        for name, array in items.items():
            assert np.array_equal(stored[name], array) and stored[name].dtype == array.dtype
    with np.load(next(tmp_path.rglob("*.npz"))) as archive:
        assert archive["acc"].shape == (3, 8) and archive["recipe"].tolist() == sorted(r.hash for r in recipes[:3])


def test_results_of_lm_eval_that_repeat_the_values_are_left_out(tmp_path):
    stderr = {"acc": 0.1}
    scores = {"piqa": {"acc,none": 0.5, "acc_stderr,none": 0.1, "alias": "piqa", "sample_len": 8}}
    publish(tmp_path, [(record(stderr=stderr, details={"lm_eval": LM_EVAL | {"results": scores}}), {})])
    assert "results" not in Store(NOWHERE, tmp_path).get(RECIPE, record().benchmark).details["lm_eval"]
    scores["piqa"]["acc,none"] = 0.25
    publish(tmp_path, [(record(stderr=stderr, details={"lm_eval": LM_EVAL | {"results": scores}}), {})])
    assert Store(NOWHERE, tmp_path).get(RECIPE, record().benchmark).details["lm_eval"]["results"] == scores


def test_folding_the_same_again_changes_no_byte(tmp_path):
    entry = record(provenance=WHERE), {"acc": np.ones(4, bool)}
    publish(tmp_path, [entry])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    publish(tmp_path, [entry])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_outcomes_of_a_replaced_record_go(tmp_path):
    ones, zeros = ({"acc": array} for array in (np.ones(4, bool), np.zeros(4, bool)))
    for values, items in (({"acc": 1.0}, ones), ({"acc": 0.0}, zeros), ({}, {})):
        publish(tmp_path, [(record(values=values), items)])
        assert Store(NOWHERE, tmp_path).items(RECIPE, record().benchmark).keys() == items.keys()
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.parametrize("values", [{"acc": 0.0}, {"acc": 1.0}, {}], ids=["other", "the same, later", "none"])
def test_a_kill_at_any_moment_leaves_each_record_with_its_own_outcomes(tmp_path, values):
    by_time = {
        "1": (record(values={"acc": 1.0}, provenance=WHERE | {"measured_at": "1"}), {"acc": np.ones(8, bool)}),
        "2": (record(values=values, provenance={"measured_at": "2"}), {"acc": np.zeros(8, bool)} if values else {}),
    }
    bystander = record(OTHER, details={"patches": ["long enough"] * 9}), {"acc": np.ones(3, bool)}
    states, dead = set(), True
    for moment in range(1, 200):
        folder = tmp_path / str(moment)
        publish(folder, [by_time["1"], bystander])
        dead = killed_at(moment, lambda folder=folder: publish(folder, [by_time["2"]]))
        store = Store(NOWHERE, folder)
        assert store.get(OTHER, bystander[0].benchmark) == bystander[0]
        assert np.array_equal(store.items(OTHER, bystander[0].benchmark)["acc"], bystander[1]["acc"])
        stored, items = store.get(RECIPE, record().benchmark), store.items(RECIPE, record().benchmark)
        time = stored.provenance["measured_at"]
        assert stored == by_time[time][0] and items.keys() == by_time[time][1].keys()
        assert all(np.array_equal(items[name], array) for name, array in by_time[time][1].items())
        states.add(time)
        if not dead:
            break
    assert not dead and states == {"1", "2"}


@pytest.mark.parametrize(
    "name", ["records/piqa@first-500.jsonl", "recipes.jsonl", "shared.jsonl", "items/piqa@first-500.npz"]
)
def test_a_damaged_file_is_left_and_named_once(tmp_path, caplog, name):
    publish(tmp_path, [(record(details={"training": ["long enough"] * 9}), {"acc": np.ones(4, bool)})])
    path = tmp_path / "somebody--small" / name
    path.write_text("<<<<<<< HEAD\n")
    store = Store(NOWHERE, tmp_path)
    ask = store.items if name.endswith("npz") else store.get
    assert not any(ask(RECIPE, record().benchmark) for _ in range(3))
    assert path.read_text() == "<<<<<<< HEAD\n" and len(caplog.records) == 1
    assert str(path) in caplog.text or path.name in caplog.text


def test_of_a_result_that_stands_twice_the_newer_counts(tmp_path):
    """As after a merge by union of two clones that both measured it."""
    publish(tmp_path, [(record(values={"acc": 0.25}, provenance={"measured_at": "2026-01-02"}), {})])
    path = tmp_path / "somebody--small" / "records" / f"{record().benchmark}.jsonl"
    [newer] = lines(path)
    path.write_text(newer + "\n" + newer.replace("0.25", "0.75").replace("2026-01-02", "2026-01-01") + "\n")
    assert Store(NOWHERE, tmp_path).get(RECIPE, record().benchmark).values == {"acc": 0.25}


def test_a_full_disk_leaves_what_was_published(tmp_path, monkeypatch):
    publish(tmp_path, [(record(values={"acc": 0.25}), {})])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.os, "fsync", full)
    with pytest.raises(OSError):
        publish(tmp_path, [(record(values={"acc": 0.75}), {})])
    assert Store(NOWHERE, tmp_path).get(RECIPE, record().benchmark).values == {"acc": 0.25}
    assert not list(tmp_path.rglob("*.tmp"))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_the_published_lines_are_sorted_unique_and_as_they_would_be_written():
    """A merge by union may leave a line twice or out of order: publishing a result of the file writes it anew."""
    files = sorted(PUBLISHED.rglob("*.jsonl"))
    assert len(files) > 100
    for path in files:
        rows = [json.loads(line) for line in lines(path)]
        key = {"recipes.jsonl": "hash"}.get(path.name, "recipe" if path.parent.name == "records" else "id")
        assert [row[key] for row in rows] == sorted({row[key] for row in rows}), path
        assert [published.compact(row) for row in rows] == lines(path), path


def test_every_published_record_can_be_read_and_names_its_file():
    records = list(Published(PUBLISHED))
    assert len(records) == sum(len(lines(path)) for path in PUBLISHED.glob("*/records/*.jsonl"))
    on_disk = {path.relative_to(PUBLISHED) for path in PUBLISHED.glob("*/*/*.jsonl")}
    named = {(fields["recipe"]["model"].replace("/", "--"), fields["benchmark"]) for fields in records}
    assert {Path(model, "records", f"{benchmark}.jsonl") for model, benchmark in named} == on_disk


def test_a_published_outcome_belongs_to_a_published_record():
    store, marks = Store(NOWHERE), {}
    for fields in store.published:
        where = (fields["recipe"]["model"], fields["benchmark"])
        published = Record(**fields, origin="published")
        marks.setdefault(where, set()).add((fields["recipe_hash"], results.mark(published)))
    for (model, benchmark), expected in marks.items():
        assert Outcomes(store.published.items_file(model, benchmark)).records() <= expected, (model, benchmark)


@pytest.mark.parametrize("model", Published(PUBLISHED).models())
def test_published_records_written_again_are_the_same_bytes(tmp_path, model):
    published = Published(PUBLISHED)
    records = [
        Record(**fields) for name in published.benchmarks(model) for fields in published.of_benchmark(model, name)
    ]
    publish(tmp_path, ((entry, {}) for entry in records))
    folder = model.replace("/", "--")
    written = sorted((tmp_path / folder / "records").glob("*.jsonl"))
    assert len(written) == len(published.benchmarks(model)) > 0
    for path in (*written, tmp_path / folder / "recipes.jsonl"):
        assert path.read_bytes() == (PUBLISHED / path.relative_to(tmp_path)).read_bytes(), path.name

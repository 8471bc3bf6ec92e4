"""A part's record taken from its whole's: equal to the part measured by itself."""

import dataclasses

import numpy as np
import pytest
import torch
from hub_mirror import write_task
from stored_records import put

from common.calibration import corpora
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.pruning.pipeline import Context
from common.records.results import Recipe, Record, Store, publish
from reproductions.engine import execute, runner
from reproductions.engine.work import Work
from reproductions.measurements import partial_records
from reproductions.spec import subjects, subsets
from reproductions.spec.registry import Column, Row, Table

RECIPE = Recipe(model="small", profile="paper", dtype="float32")
TEXT = "perplexity@reassessing-ptb"


@pytest.fixture
def measuring(tiny_llama, tiny_tokenizer, mirror, tmp_path, monkeypatch):
    """Measures on the tiny model, six items standing for the 500 and three windows for the tokens; notes what it did."""
    monkeypatch.setattr(subsets, "FIRST", 6)
    monkeypatch.setattr(subsets, "TOKENS", 3 * 128)
    monkeypatch.setattr(subsets, "TOKENS_MARK", "@384-tokens")
    write_task(tmp_path / "hub", "piqa", 13)
    tokens = torch.randint(3, 300, (1, 11 * 128), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(corpora, "joined_ids", lambda tokenizer, source: tokens)
    monkeypatch.setattr(corpora, "digest", lambda source: "0")

    class Measuring:
        done = []

        def held_together(self, recipe):
            return 1

        def prepare(self, recipe, **options):
            context = Context(tiny_llama, tiny_tokenizer, recipe, 1)
            context.provenance = {"model": {"name": "small"}}
            return context

        def benchmark(self, context, name):
            self.done.append(name)
            return execute.benchmark(context, name)

    return Measuring()


def run(store, measuring, *names, recipe=RECIPE):
    measuring.done.clear()
    assert runner.measured([Work(recipe, "small", list(names))], store, measuring) == 0
    return measuring.done


@pytest.mark.parametrize(("whole", "places"), [("piqa", range(6)), (TEXT, (0, 3, 7))])
def test_a_part_of_what_is_known_is_not_measured_and_is_what_it_would_be(whole, places, measuring, tmp_path):
    """The first six items, or three of eleven windows from the first on, evenly spread."""
    name = subsets.smaller(whole)
    assert name != whole and TEXT.partition("@")[2] in PROTOCOLS
    alone, both = Store(tmp_path / "alone", None), Store(tmp_path / "both", None)
    assert run(alone, measuring, name) == [name]
    assert run(both, measuring, whole) == [whole]
    assert run(both, measuring, name) == []
    expected, derived = (store.get(RECIPE, name) for store in (alone, both))
    assert derived.values == pytest.approx(expected.values, rel=1e-5)
    assert derived.stderr == pytest.approx(expected.stderr, rel=1e-5)
    assert derived.values != pytest.approx(both.get(RECIPE, whole).values)
    of_whole = both.items(RECIPE, whole)
    for outcomes in (both.items(RECIPE, name), alone.items(RECIPE, name)):
        assert outcomes.keys() == of_whole.keys()
        for key in outcomes:
            np.testing.assert_allclose(outcomes[key], of_whole[key][list(places)], rtol=1e-5)
    for key in ("items", "windows", "tokens", "predictions", "protocol", "corpus", "layers", "layer_executions"):
        assert derived.details.get(key) == expected.details.get(key)
    assert derived.provenance["part_of"] == whole and "seconds" not in derived.provenance
    assert derived.provenance["measured_at"] == both.get(RECIPE, whole).provenance["measured_at"]


def test_a_part_is_measured_where_its_whole_is_not_known_with_its_outcomes(measuring, tmp_path):
    store, limited = Store(tmp_path / "records", None), Recipe(**{**vars(RECIPE), "limit": 2})
    run(store, measuring, "piqa")
    run(store, measuring, "piqa", recipe=limited)
    assert partial_records.part(store, RECIPE, "piqa") is None  # no part
    assert partial_records.part(store, limited, "piqa@first-500") is None  # of whose items a quick look leaves others
    store.path(RECIPE, "piqa").with_suffix(".npz").unlink()
    assert run(store, measuring, "piqa@first-500") == ["piqa@first-500"]


def test_an_older_record_that_lacks_what_a_part_needs_tells_nothing_of_it(tmp_path):
    store, provenance = Store(tmp_path, None), {"device": "cpu"}
    report = {"trainable": 1, "seconds": 1.0, "peak_memory_bytes": 1, "epochs": []}
    details = {"removed": [1], "window": 128, "training": report}

    def known(details, provenance):
        values = {"nll": 2.0, "perplexity": 7.4}
        outcomes = {"nll": np.full(600, 2.0)}
        put(store, RECIPE, TEXT, values, outcomes=outcomes, details=details, provenance=provenance)
        parts = (subsets.smaller(TEXT), "training-cost")
        return [partial_records.part(store, RECIPE, name) is not None for name in parts]

    assert known(details, provenance) == [True, True]
    assert known({key: details[key] for key in ("removed", "training")}, provenance) == [False, True]
    assert known(details, {}) == [True, False]


def asking(benchmark):
    """A table of one row that asks one benchmark."""
    row, column = Row("small", "small", "0/6", "Dense", RECIPE, dense=True), Column("PIQA", benchmark, "acc")
    return Table("t", "linearpatch", "none", "", lambda *_: [row], lambda _: [column], full=True)


def test_a_part_is_taken_anew_where_the_user_has_measured_its_whole_anew(measuring, tmp_path):
    store = Store(tmp_path / "mine", tmp_path / "published")
    small = dataclasses.replace(subjects.of_model("smollm2-135m-instruct"), dtype=RECIPE.dtype)

    def record_of(right, time):
        record = Record(vars(RECIPE), RECIPE.hash, "piqa", "ok", {"acc": float(right)}, {}, {}, {"measured_at": time})
        return record, {"acc": np.full(13, right)}

    def taken():
        work = runner.missing([asking("piqa@first-500")], store, small)
        assert runner.measured(work, store, measuring) == 0 and not measuring.done
        return len(work), store.get(RECIPE, "piqa@first-500").values["acc"]

    measuring.done.clear()
    publish(tmp_path / "published", [record_of(True, "1")])
    assert taken() == (1, 1.0)
    publish(tmp_path / "published", [record_of(False, "2")])  # what is published is left as it is
    assert taken() == (0, 1.0)
    record, items = record_of(False, "3")
    store.put(record, RECIPE, items)
    assert taken() == (1, 0.0) and taken() == (0, 0.0)


def test_measuring_anew_measures_a_part_too(measuring, tmp_path):
    store = Store(tmp_path / "records", None)
    run(store, measuring, "piqa")
    measuring.done.clear()
    runner.measured([Work(RECIPE, "small", ["piqa@first-500"])], store, measuring, force=True)
    assert measuring.done == ["piqa@first-500"]


def test_which_layers_went_is_known_from_whatever_was_measured(tmp_path, tiny_llama, tiny_tokenizer):
    class Pruned:
        prepared = []

        def held_together(self, recipe):
            return 1

        def prepare(self, recipe, **options):
            self.prepared.append(recipe.hash)
            return Context(tiny_llama, tiny_tokenizer, recipe, 1, details={"removed": [3, 1], "layers": 6, "laco": []})

        benchmark = staticmethod(execute.benchmark)

    known, alone, measuring = Store(tmp_path / "known", None), Store(tmp_path / "alone", None), Pruned()
    for store, name in ((known, "parameters"), (alone, "removed")):
        assert runner.measured([Work(RECIPE, "small", [name])], store, measuring) == 0
    assert runner.measured([Work(RECIPE, "small", ["removed"])], known, measuring) == 0 and len(measuring.prepared) == 2
    derived, expected = known.get(RECIPE, "removed"), alone.get(RECIPE, "removed")
    assert derived.values == expected.values == {"count": 2} and derived.provenance["part_of"] == "parameters"
    assert derived.details == {"removed": [3, 1], "layers": 6} and derived.details.items() <= expected.details.items()


@pytest.fixture
def derived_and_measured(measuring, tmp_path):
    """`derived_and_measured(name, training)` -> a benchmark of a model taken from PIQA's record, and measured."""

    def both(name, training):
        prepare = measuring.prepare

        def prepared(recipe, **options):
            context = prepare(recipe, **options)
            context.details |= {"removed": [2]} | ({} if training is None else {"training": training})
            return context

        measuring.prepare = prepared
        alone, whole = Store(tmp_path / "alone", None), Store(tmp_path / "whole", None)
        assert run(alone, measuring, name) == [name]
        assert run(whole, measuring, "piqa") == ["piqa"] and run(whole, measuring, name) == []
        derived, measured = (store.get(RECIPE, name) for store in (whole, alone))
        assert derived.values == measured.values and derived.provenance["part_of"] == "piqa"
        return derived, measured

    return both


def test_what_training_took_is_taken_from_any_record_and_is_what_it_would_be_by_itself(derived_and_measured):
    took = {"trainable": 12, "seconds": 3.5}
    epochs = [{"layer_executions": count} for count in (5, 7)]
    training = took | {"peak_memory_bytes": 2**30, "epochs": epochs}
    derived, measured = derived_and_measured("training-cost", training)
    assert derived.values == took | {"peak_gib": 1.0, "layer_executions": 12}
    for name in ("training", "device"):
        assert derived.details[name] == measured.details[name]


HELD_OUT = {"validation": [[2, 3.5], [4, 2.5], [6, 2.75]], "kept_step": 4, "validation_rows": 8}


@pytest.mark.parametrize(
    ("training", "values", "reason"),
    [
        (HELD_OUT, {"loss": 2.5}, None),
        (HELD_OUT | {"kept_step": 6}, {"loss": 2.75}, None),
        ({"validation": []}, {}, "not validated"),
        (None, {}, "none"),
    ],
)
def test_where_training_ended_is_taken_from_any_record(training, values, reason, derived_and_measured):
    """Of the state that was kept; a model that was not trained says so."""
    derived, measured = derived_and_measured("held-out-loss", training)
    assert derived.values == values
    assert reason is None or derived.details["status"] == measured.details["status"] == reason


def test_a_record_without_training_tells_nothing_of_its_cost(tmp_path, measuring):
    store = Store(tmp_path, None)
    run(store, measuring, "piqa")
    assert partial_records.part(store, RECIPE, "training-cost") is None

"""What there is no data for is known before anything is measured, said once, and recorded without loading a model."""

import json
import logging
from dataclasses import replace

import pytest
from fake_measure import FakeMeasure

from common.models.files import pickled_weights
from common.records.results import Store
from common.utils.errors import NoData, UserError
from reproductions.__main__ import main
from reproductions.command_line import parser
from reproductions.engine import execute, fetch, runner
from reproductions.spec import registry, subjects

MODEL = "smollm2-360m"  # none of whose records is published
COMMAND = ["run", "table1-linearpatch", "--model", MODEL, "--full-test-sets"]
SUBJECT = replace(subjects.of_model(MODEL), full_test_sets=True)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """In place of models: what was prepared and measured."""
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "mine"))
    fake = FakeMeasure()
    for name in ("prepare", "benchmark"):
        monkeypatch.setattr(execute, name, getattr(fake, name))
    return fake


@pytest.fixture
def data(monkeypatch):
    """Everything is there but what is added to this set; the list holds what was looked for."""
    absent, requested = set(), []

    def look(name):
        requested.append(name)
        if name in absent:
            raise NoData(f"could not fetch {name}: no network; fetch it elsewhere")

    for kind in fetch._DATA:
        monkeypatch.setitem(fetch._DATA, kind, look)
    return absent, requested


def records(tmp_path):
    return [json.loads(path.read_text()) for path in (tmp_path / "mine").rglob("*.json")]


def measurable_rows(target="table1-linearpatch"):
    return [row for row in registry.get(target).rows(SUBJECT) if row.recipe]


def texts_of(rows):
    return {name for row in rows for _, name in fetch._texts(row.recipe)}


def dense_hash(rows):
    (recipe_hash,) = {row.recipe.hash for row in rows if row.dense}
    return recipe_hash


def test_a_benchmark_without_data_is_recorded_at_once(measured, data, tmp_path, capsys):
    absent, requested = data
    (race,) = {c.benchmark for c in registry.get("table1-linearpatch").columns("paper") if c.label == "Race-h"}
    absent.update({race, "perplexity@linearpatch-wikitext2"})
    assert main(COMMAND) == 0
    assert len(requested) == len(set(requested)) and {*absent, "piqa"} < set(requested)
    error = capsys.readouterr().err
    assert error.count("could not fetch") == 1
    reason = f"could not fetch {race}: no network; fetch"
    assert error.startswith(f"warning: no data for Race-h, WIKI-2 (extension): {reason}")
    statuses = {(r["recipe_hash"], r["benchmark"]): r["status"] for r in records(tmp_path)}
    assert {key[1] for key, status in statuses.items() if status == "no data"} == absent
    assert {key for key, status in statuses.items() if status == "ok"} == set(measured.measured)
    assert not {name for _, name in measured.measured} & absent


def test_rows_without_calibration_text_are_recorded_without_a_model(measured, data, tmp_path, capsys):
    (absent, _), rows = data, measurable_rows()
    absent.add("c4-train")
    assert main(COMMAND) == 0
    free = {row.recipe.hash for row in rows if ("corpus", "c4-train") not in fetch._texts(row.recipe)}
    assert set(measured.prepared) == free and 1 < len(free) < len(rows)
    assert capsys.readouterr().err.startswith("warning: no data for the rows that read c4-train:")
    statuses = {(r["recipe_hash"] in free): {r["status"]} for r in records(tmp_path)}
    assert statuses == {True: {"ok"}, False: {"no data"}}


@pytest.mark.parametrize(("target", "dense_row"), [("table1-linearpatch", "Dense"), ("table1-laco", "Dense*")])
def test_where_no_other_row_can_be_measured_the_original_model_is_not_either(
    target, dense_row, measured, data, tmp_path, capsys
):
    """Its tasks would take most of an hour, and nothing would be compared with them."""
    (absent, _), rows, command = data, measurable_rows(target), ["run", target, *COMMAND[2:]]
    absent.update(texts_of(rows))
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: nothing can be measured: no data for the rows that read ")
    assert error.rstrip().endswith(f"--row '{dense_row}' measures the original model alone")
    assert not measured.prepared and not records(tmp_path)
    assert main([*command, "--row", dense_row, "--columns", "PIQA"]) == 0
    assert set(measured.prepared) == {dense_hash(rows)} and len(measured.measured) == 1
    capsys.readouterr()
    assert main(command) == 0  # nor where some of it was measured alone
    assert len(measured.measured) == 1
    assert f"the original model is left out. --row '{dense_row}' measures it alone" in capsys.readouterr().err


def test_the_original_model_is_measured_where_another_row_has_a_value(measured, data, tmp_path):
    (absent, _), rows = data, measurable_rows()
    assert main([*COMMAND, "--row", "SLEB", "--columns", "PIQA"]) == 0
    absent.update(texts_of(rows))
    measured.prepared.clear()
    assert main(COMMAND) == 0
    assert dense_hash(rows) in measured.prepared


def test_where_nothing_can_be_measured_one_line_says_why(measured, tmp_path, capsys):
    """The tests have neither hub nor mirror."""
    assert main(COMMAND) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: nothing can be measured: no data for ARC-c, ARC-e, BoolQ")
    assert error.count("\n") == 1
    assert "could not fetch dataset" in error and "LAYERLAB_HUB" in error and len(error) <= 600
    assert "measures the original model alone" not in error  # which lacks its data, too
    assert not measured.prepared and not records(tmp_path)


def test_the_toy_model_looks_for_nothing(measured, data):
    _, requested = data
    assert main(["run", "table1-linearpatch", "--limit", "2"]) == 0
    assert measured.measured and not requested


@pytest.mark.parametrize("error", [UserError("the data has no column"), KeyError("text")], ids=["refused", "broken"])
def test_what_is_no_lack_of_data_is_left_to_its_cell(error, measured, data, monkeypatch):
    def refuses(name):
        raise error

    monkeypatch.setitem(fetch._DATA, "benchmark", refuses)
    assert main(COMMAND) == 0
    assert "piqa" in {name for _, name in measured.measured}


def test_an_interrupted_look_leaves_the_librarys_log_as_it_was(data, monkeypatch, tmp_path):
    def interrupted(name):
        raise KeyboardInterrupt

    before = logging.getLogger("datasets").level
    monkeypatch.setitem(fetch._DATA, "benchmark", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch.lacking(runner.missing([registry.get("table1-linearpatch")], Store(tmp_path, None), SUBJECT))
    assert logging.getLogger("datasets").level == before


def test_weights_are_converted_when_asked_for(data, monkeypatch, capsys):
    requested = []
    monkeypatch.setattr(fetch.loading, "resolve", lambda name, **options: requested.append((name, options)))
    monkeypatch.setattr(fetch.checkpoint, "load_tokenizer", lambda path: None)
    for more in ([], [pickled_weights.FLAG]):
        assert parser().parse_args(["fetch", "grid", *more]).convert_weights == bool(more)
        assert main(["fetch", "table1-linearpatch", "--model", "llama-2-7b", *more]) == 0
    assert requested == [("llama-2-7b", {"convert_weights": False}), ("llama-2-7b", {"convert_weights": True})]
    assert "model llama-2-7b: here" in capsys.readouterr().out

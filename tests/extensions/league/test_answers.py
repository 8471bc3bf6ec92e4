"""Why answers do not follow perplexity: the rows are the league's, and what the picture shows follows from the outcomes."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from stored_records import put_outcomes

from common.calibration import corpora
from common.evaluation import harness, logit_scale
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.pruning.pipeline import Context
from common.records.results import Recipe, Record, Store
from common.utils.errors import UserError
from extensions.league import rows
from figures import answers as picture
from reproductions import measurements
from reproductions.engine import execute
from reproductions.measurements import partial_records
from reproductions.render import show
from reproductions.spec import registry, subjects, subsets

TARGET = "league-answers"
SMOLLM = subjects.of_model("smollm2-135m-instruct")


def test_no_row_is_asked_items_that_another_is_calibrated_on():
    """HellaSwag's items after the first 500 are the text of some rows, whatever else is read whole."""
    table = registry.get(TARGET)
    assert any(("corpus", "hellaswag-after-500") in row.recipe.reads() for row in table.rows(SMOLLM))
    for subject in (SMOLLM, dataclasses.replace(SMOLLM, full_test_sets=True)):
        asked = {column.benchmark for column in table.columns_for(subject) if "hellaswag" in str(column.benchmark)}
        assert asked == {"hellaswag@first-500", "endings@hellaswag@first-500"}


def test_a_part_of_the_endings_is_a_measurement_of_its_own():
    columns = [column.benchmark for column in registry.get(TARGET).columns_for(SMOLLM)]
    assert "endings@hellaswag@first-500" in columns and "scaled@league-wikitext2" in columns
    name = "endings@hellaswag@first-500"
    assert subsets.of_each(name) == 500
    whole = Record({}, "x", "endings@hellaswag", "ok", {"right": 1.0}, {})
    assert partial_records._items(whole, {"right": np.ones(900, np.float32)}, name) is None


@pytest.mark.parametrize("limit", [None, 2])
def test_endings_are_the_harness_losses(limit, tiny_llama, tiny_tokenizer, mirror):
    context = Context(tiny_llama, tiny_tokenizer, Recipe(model="small", profile="paper", limit=limit), 1)
    values, errors, details, outcomes = execute.benchmark(context, "endings@piqa")
    losses = harness.evaluate(tiny_llama, tiny_tokenizer, ["piqa"], limit=limit)["endings"]["piqa"]
    assert details["items"] == len(losses["right"]) == (limit or details["items"])
    assert np.allclose(outcomes["gap"], losses["wrong"] - losses["right"], rtol=1e-4)
    assert values["gap"] == pytest.approx(values["wrong"] - values["right"], abs=1e-6)
    assert errors["right"] == pytest.approx(np.std(losses["right"], ddof=1) / math.sqrt(len(losses["right"])), rel=1e-3)
    with pytest.raises(UserError, match="one context several endings"):
        execute.benchmark(context, "endings@winogrande")


def test_scaled_perplexity_is_of_the_factor_that_the_other_half_likes(tiny_llama, tiny_tokenizer, monkeypatch):
    measurements.benchmarks()
    monkeypatch.setattr(corpora, "_toy_texts", lambda corpus: ("one window of text after another " * 4000,))
    protocol = PROTOCOLS["standin-learning-thin"]
    context = Context(tiny_llama, tiny_tokenizer, Recipe(model="small", profile="paper", limit=6), 1)
    values, errors, details, outcomes = execute.benchmark(context, f"scaled@{protocol.name}")
    losses = logit_scale.sequence_nlls(tiny_llama, protocol.sequences(protocol, tiny_tokenizer)[:6])
    nll, factor = logit_scale.fitted(losses)
    assert np.allclose(outcomes["nll"], nll) and values["factor"] == factor and details["windows"] == 6
    assert values["perplexity"] == pytest.approx(math.exp(float(nll.mean())))
    with pytest.raises(UserError, match="perplexity protocol"):
        execute.benchmark(context, "scaled@no-such")


@pytest.fixture
def store(tmp_path):
    """After the refit all endings are .1 likelier, wrong ones by a hundredth of that more, and the text by .3 nats."""
    store, noise = Store(tmp_path, None), np.random.default_rng(0)
    outcomes = {
        "perplexity": {"nll": noise.normal(4, 1, 48)},
        "scaled": {"nll": noise.normal(3.9, 1, 48)},
        "endings": {"right": noise.normal(0.7, 0.2, 500), "wrong": noise.normal(0.8, 0.2, 500)},
    }
    gains = {
        rows.name(rows.BLOCK, rows.NONE): {"nll": 0, "right": 0, "wrong": 0},
        rows.name(rows.BLOCK, rows.REFIT): {"nll": 0.3, "right": 0.1, "wrong": 0.101},
    }
    benchmarks = {column.benchmark for column in registry.get(TARGET).columns_for(SMOLLM) if column.benchmark}
    for row, benchmark in itertools.product(registry.get(TARGET).rows(SMOLLM), benchmarks):
        kind = benchmark.partition("@")[0]
        if row.method in gains and kind in outcomes:
            by_item = {key: each - gains[row.method][key] for key, each in outcomes[kind].items()}
            if kind == "endings":
                by_item["gap"] = by_item["wrong"] - by_item["right"]
            put_outcomes(store, row.recipe, benchmark, by_item)
    return store


def test_endings_that_all_become_likelier_do_not_widen_the_gap(store):
    table = registry.get(TARGET)
    claims = show.build(table, store, SMOLLM)["claims"]
    judged = {claim["id"].rpartition("/")[2]: claim["judged"][SMOLLM.name]["verdict"] for claim in claims}
    assert judged["repairs-lower-perplexity"] == judged["right-endings-likelier"] == "supported"
    assert judged["repairs-lower-scaled-perplexity"] == "supported"
    assert judged["gap-widens"] == "contradicted"


def test_the_picture_shows_paired_differences(store):
    table = registry.get(TARGET)
    entries = show.entries(table, store, SMOLLM, table.rows(SMOLLM))
    refit = next(e for e in entries if e["extension"] and e["scores"])
    none = picture.alone(refit, entries)
    assert none["method"] == rows.name(rows.BLOCK, rows.NONE) and picture.alone(none, entries) is None
    changes = picture.against_none(entries)
    assert set(changes) == {("7/30", refit["method"]), ("9/30", refit["method"])}
    expected = {"HeSw/right": -100, "HeSw/wrong": -101, "HeSw/gap": -1}
    for column, change in expected.items():
        assert changes["7/30", refit["method"]][column] == pytest.approx((change,) * 3, abs=0.01)
    assert changes["7/30", refit["method"]]["WIKI-2"] == pytest.approx((100 * math.expm1(-0.3),) * 3, abs=1e-3)
    figure = picture.draw(entries, "paper")
    assert len(figure.axes) == 8
    title = " ".join(figure.get_suptitle().split())
    assert title.startswith(f"{SMOLLM.label}, 7/30 and 9/30 layers removed; change of each repair against no repair")
    legends = [axes.get_legend() and [text.get_text() for text in axes.get_legend().texts] for axes in figure.axes[4:]]
    tasks = ["HellaSwag", "ARC-Easy", "PIQA"]
    assert "unscaled logits" in legends[0]
    assert legends[1:] == [[*tasks, "right answers", "wrong answers"], tasks, None]
    for axes in figure.axes:
        places = [container[0].get_ydata()[0] for container in axes.containers]
        assert len(set(places)) == len(places)  # no mark can cover another
        if figure.axes.index(axes) % 4 != 1:
            assert "white" not in {container[0].get_mfc() for container in axes.containers}
    assert picture.draw([none], "paper") is None

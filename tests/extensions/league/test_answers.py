"""Why answers do not follow perplexity: the rows are the league's, and what the picture shows follows from the outcomes."""

import math

import numpy as np
import pytest

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


def test_rows_are_the_leagues_own():
    league = {row.recipe.hash: (row.sparsity, row.method) for row in registry.get("league").rows(SMOLLM)}
    every = registry.get(TARGET).rows(SMOLLM)
    league_rows = [row for row in every if not (row.spec and row.spec.text)]
    assert {row.recipe.hash: (row.sparsity, row.method) for row in league_rows}.items() <= league.items()
    assert len(league_rows) == 1 + 2 * 2 * 5 and {row.sparsity for row in league_rows} == {"0/30", "7/30", "9/30"}
    assert registry.get(TARGET).rows(subjects.PAPER) == []
    again = [row.recipe for row in every if row not in league_rows]
    assert len(again) == 4 and {recipe.calibration["corpus"] for recipe in again} == {"hellaswag-after-500"}
    for recipe in again:  # the same layers go, whatever the repair reads
        assert recipe.selection["calibration"]["corpus"] == SMOLLM.text
    assert not any(row.spec and row.spec.text for row in registry.get(TARGET).rows(subjects.TOY))


def test_a_part_of_the_endings_is_a_measurement_of_its_own():
    columns = [column.benchmark for column in registry.get(TARGET).columns_for(SMOLLM)]
    assert "endings@hellaswag@first-500" in columns and "scaled@league-wikitext2" in columns
    name = "endings@hellaswag@first-500"
    assert subsets.of_each(name) == 500 and subsets.share(name) == pytest.approx(500 / 10042)
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
    losses = logit_scale.window_nlls(tiny_llama, protocol.windows(protocol, tiny_tokenizer)[:6])
    nll, factor = logit_scale.fitted(losses)
    assert np.allclose(outcomes["nll"], nll) and values["factor"] == factor and details["windows"] == 6
    assert values["perplexity"] == pytest.approx(math.exp(float(nll.mean())))
    with pytest.raises(UserError, match="perplexity protocol"):
        execute.benchmark(context, "scaled@no-such")


@pytest.fixture
def store(tmp_path):
    """Made-up losses: the refit's endings are all .1 likelier than without a repair, wrong ones by a hundredth of that more,
    and its text by .3 nats."""
    store, noise = Store(tmp_path, None), np.random.default_rng(0)
    outcomes = {
        "perplexity": {"nll": noise.normal(4, 1, 48)},
        "scaled": {"nll": noise.normal(3.9, 1, 48)},
        "endings": {"right": noise.normal(0.7, 0.2, 500), "wrong": noise.normal(0.8, 0.2, 500)},
    }
    for row in registry.get(TARGET).rows(SMOLLM):
        if row.method not in (rows.name(rows.BLOCK, rows.NONE), rows.name(rows.BLOCK, rows.REFIT)):
            continue
        lower = {"nll": 0.3, "right": 0.1, "wrong": 0.101} if row.extension else {}
        for benchmark in {c.benchmark for c in registry.get(TARGET).columns_for(SMOLLM) if c.benchmark}:
            kept = {
                key: each - lower.get(key, 0) for key, each in outcomes.get(benchmark.partition("@")[0], {}).items()
            }
            if not kept:
                continue
            if "right" in kept:
                kept["gap"] = kept["wrong"] - kept["right"]
            kept = {key: each.astype(np.float32) for key, each in kept.items()}
            values = {key: float(np.mean(each, dtype=np.float64)) for key, each in kept.items()}
            if "nll" in values:
                values |= {"perplexity": math.exp(values["nll"]), "factor": 1.0}
            record = Record(dict(vars(row.recipe)), row.recipe.hash, benchmark, "ok", values, dict(values))
            store.put(record, row.recipe, kept)
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
    assert len(figure.axes) == 8 and figure.get_suptitle() == f"{SMOLLM.label}, 7/30 and 9/30 layers removed"
    legends = [axes.get_legend() and [text.get_text() for text in axes.get_legend().texts] for axes in figure.axes[4:]]
    tasks = ["HeSw", "ARC-e", "PIQA"]
    assert "as it is" in legends[0] and legends[1:] == [[*tasks, "right endings", "wrong endings"], tasks, None]
    for axes in figure.axes:
        places = [(container[0].get_ydata()[0]) for container in axes.containers]
        assert len(set(places)) == len(places)  # no mark can cover another
        assert (
            not axes.containers
            or figure.axes.index(axes) % 4 == 1
            or "white" not in {c[0].get_mfc() for c in axes.containers}
        )
    assert picture.draw([none], "paper") is None

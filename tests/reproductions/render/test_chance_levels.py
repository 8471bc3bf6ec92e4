"""What stays above chance level: against the numbers as printed, read and summed up anew, and against guessers themselves."""

import csv
from pathlib import Path

import numpy as np
import pytest

from common.records.results import NOWHERE, Store
from reproductions.render import chance_levels
from reproductions.spec import reported, subjects
from reproductions.spec.columns import QUESTIONS, chance

# Of four endings a quarter, of two a half.
NINE = {"ARC-c": 25, "ARC-e": 25, "BoolQ": 50, "HeSw": 25, "PIQA": 50, "WG": 50, "WSC": 50, "Race-h": 25, "CoPa": 50}
LACO = {"HeSw": 25, "PIQA": 50, "CHID": 10, "WSC_G": 0, "CSQA": 20, "BoolQ": 50, "MMLU": 25, "CMMLU": 25, "RaceH": 25}
LACO |= {"RaceM": 25, "XSum": 0, "C3": 25}  # of Baichuan2's; on CMNLI and WSC_P they guess


def read(paper, table):
    rows = {}
    with Path(reported.PAPERS_FOLDER / paper / "reported" / f"table{table}.csv").open() as lines:
        for line in csv.DictReader(lines):
            key = (line["model"], line["sparsity"], line["method"], line["variant"])
            rows.setdefault(key, {})[line["column"]] = float(line["value"])
    return rows


def share_above(own, dense, chance):
    """Per cent of what the original model scores above chance level."""
    return 100 * sum(own[t] - chance[t] for t in chance) / sum(dense[t] - chance[t] for t in chance)


def source_of(paper):
    return next(source for source in chance_levels.SOURCES if source.paper == paper)


def test_linearpatchs_row_is_the_sum_of_what_its_scores_are_above_chance_level():
    rows = read("linearpatch", "1")
    own, dense = rows["LLaMA-3-8B", "5/32", "LinearPatch", "L"], rows["LLaMA-3-8B", "0/32", "Dense", ""]
    keys = {(row.model, row.sparsity, row.id): row for row in chance_levels.printed(chance_levels.SOURCES[0])}
    llama_row = keys["LLaMA-3-8B", "5/32", "LinearPatch[L]"]
    assert llama_row.above == pytest.approx(share_above(own, dense, NINE)) and llama_row.retained == own["RP"]
    assert llama_row.chance_level == pytest.approx(np.mean([100 * NINE[t] / dense[t] for t in NINE]))


def test_of_laco_tasks_that_the_dense_model_guesses_are_left_out_and_its_own_dense_row_is_compared_with():
    rows = read("laco", "1")
    scores = {key[2]: row for key, row in rows.items() if key[0] == "Baichuan2-7B"}
    expected = share_above(scores["SliceGPT"], scores["Dense*"], LACO)
    printed = {(row.model, row.method): row for row in chance_levels.printed(source_of("laco"))}
    row = printed["Baichuan2-7B", "SliceGPT"]
    assert row.above == pytest.approx(expected) and expected < 0 < 40 < row.retained


def test_a_guesser_keeps_nothing_the_dense_model_all_and_half_way_is_half():
    guess, dense = {"a": 25.0, "b": 50.0}, {"a": 65.0, "b": 60.0}
    assert chance_levels.above(guess, dense, guess) == 0 and chance_levels.above(dense, dense, guess) == 100
    assert chance_levels.above({"a": 45.0, "b": 55.0}, dense, guess) == 50
    draws = {"a": np.array([25.0, 45.0]), "b": np.array([50.0, 55.0])}
    assert chance_levels.above(draws, dense, guess).tolist() == [0, 50]


def test_a_task_counts_where_the_dense_model_is_two_standard_errors_above_chance_level():
    guess, dense = {"a": 25.0, "b": 50.0, "c": 50.0}, {"a": 35.0, "b": 54.0, "c": 48.0}
    assert chance_levels.above_chance(dense, guess, {"a": 4.9, "b": 2.1, "c": 0.0}.__getitem__) == {"a": 25.0}


def test_every_task_of_the_tables_has_a_guess_and_written_answers_have_none():
    for source in chance_levels.SOURCES:
        assert chance(source.tasks.values()).keys() == set(source.tasks.values())
    levels = chance(name for name, _ in QUESTIONS.values()).values()
    assert {task: 100 * level for task, level in zip(QUESTIONS, levels, strict=True)} == NINE
    assert chance(["laco_xsum"]) == {"laco_xsum": 0.0}


def test_pairs_are_of_one_model_and_size_and_change_their_order_where_the_two_measures_disagree():
    def row(model, sparsity, retained, above):
        return chance_levels.Retained(model, sparsity, "", retained, 50, above)

    rows = [row("m", "7/32", 80, 60), row("m", "7/32", 81, 59), row("m", "7/32", 70, 40), row("m", "9/32", 60, 99)]
    assert chance_levels.turned(rows) == (1, 3)
    # LaCo's rows: one share each
    assert chance_levels.turned([row("m", "27%", 80, 60), row("m", "24%", 81, 59)]) == (1, 1)
    assert chance_levels.turned([row("m", "7/32", 80, 60), row("m", "7/32", 80, 59)]) == (0, 0)  # no order to be turned


def test_a_measured_row_is_its_published_records_and_its_interval_holds_it():
    store = Store(NOWHERE)
    subject = subjects.of_model(subjects.PUBLISHED_MODELS[0])
    rows = chance_levels.measured(source_of("laco"), store, subject)
    assert rows and len({row.chance_level for row in rows}) == 1
    for row in rows:
        assert row.interval[0] < row.above < row.interval[1] and row.retained > row.above


def test_the_picture_has_every_printed_row_where_its_numbers_are(monkeypatch):
    from figures import style

    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, name, folder: drawn.append((figure, name)) or [])
    chance_levels.drawn(Store(NOWHERE))
    [(figure, name)] = drawn
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    for paper, label in (("linearpatch", "LinearPatch, printed"), ("laco", "LaCo, printed")):
        rows = chance_levels.of_paper(paper)
        points = list(zip(*lines[label].get_data(), strict=True))
        assert points == [(row.retained, row.above) for row in rows] and name == "chance-level"
    style.plt.close(figure)


def test_where_a_paper_prints_scores_alone_their_mean_share_is_what_is_retained():
    rows = read("reassessing", "4")
    guess = dict.fromkeys(("PIQA", "WinoGrande"), 0.5)
    guess |= dict.fromkeys(("HellaSwag", "OpenbookQA", "ARC-e", "ARC-c", "MMLU", "CMMLU"), 0.25)
    printed = chance_levels.printed(source_of("reassessing"))
    assert printed
    for row in printed:
        own = next(v for k, v in rows.items() if k[0] == row.model and reported.row_name(*k[2:]) == row.method)
        dense = next(v for k, v in rows.items() if k[0] == row.model and k[2] == "Dense")
        assert row.retained == pytest.approx(np.mean([100 * own[t] / dense[t] for t in guess]))
        assert row.above == pytest.approx(share_above(own, dense, guess))


def test_a_guesser_retains_by_each_papers_own_measure():
    dense = read("prunecomp", "2")["LLaMA-3-8B", "0/32", "Dense", ""]
    row = next(row for row in chance_levels.printed(source_of("prunecomp")) if row.model == "LLaMA-3-8B")
    of_means = 100 * sum(NINE.values()) / sum(dense[t] for t in NINE)
    assert row.chance_level == pytest.approx(of_means)
    assert row.chance_level != pytest.approx(np.mean([100 * NINE[t] / dense[t] for t in NINE]), abs=0.05)

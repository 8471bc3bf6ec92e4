"""What a repair is calibrated on: the same layers go, and rows differ in what the repair reads alone."""

import numpy as np
import pytest

from extensions.league import rows, texts
from figures import texts as picture
from reproductions.spec import registry, subjects

SMOLLM = subjects.of_model("smollm2-135m-instruct")


def test_rows_differ_in_what_the_repair_reads():
    league = {row.recipe.hash: (row.sparsity, row.method) for row in registry.get("league").rows(SMOLLM)}
    every = registry.get("league-texts").rows(SMOLLM)
    own = {
        row.recipe.hash: (row.sparsity, row.method)
        for row in every
        if texts.TASK_TEXT not in str(row.recipe.calibration)
    }
    assert own.items() <= league.items() and len(own) == 7
    for sparsity in ("7/30", "9/30"):
        plain, *others = (
            next(row.recipe for row in every if (row.sparsity, row.method) == (sparsity, method))
            for method in (texts.PLAIN, texts.FROM_ITEMS, texts.BOTH)
        )
        read = (texts.TASK_TEXT, f"{SMOLLM.text}+{texts.TASK_TEXT}")
        for other, corpus in zip(others, read, strict=True):
            assert other.repair == plain.repair and other.calibration == plain.calibration | {"corpus": corpus}
            assert other.selection == plain.selection | {"calibration": plain.calibration}
    largest = {row.method: row for row in every if row.sparsity == "9/30"}
    none, left, both = (largest[name] for name in (texts.RESIDUAL_NONE, texts.RESIDUAL_BOTH, texts.BOTH))
    assert none.recipe.selection == left.recipe.selection and left.recipe.selection["shape"] == "set"
    assert (left.recipe.repair, left.recipe.calibration) == (both.recipe.repair, both.recipe.calibration)
    carried, tools = largest[rows.name(rows.LEAST_RESIDUAL_GRAFTED, rows.GRAFT)], largest[texts.TOOL_DEFAULT]
    assert carried.recipe.selection == tools.recipe.selection == left.recipe.selection | {"carried": True}
    assert tools.recipe.repair == left.recipe.repair | {"graft": True}
    assert tools.recipe.calibration == left.recipe.calibration and carried.recipe.calibration == none.recipe.calibration
    assert len(largest) == len({row.recipe.hash for row in largest.values()}) == 8
    assert registry.get("league-texts").rows(subjects.PAPER) == []


def test_no_task_of_the_average_is_read_and_each_is_asked_whole():
    columns = {column.id: column for column in registry.get("league-texts").columns_for(SMOLLM)}
    assert columns[texts.AVERAGE].of == texts.TEST_TASKS and "HeSw" not in columns
    assert not any("@" in columns[task].benchmark for task in texts.TEST_TASKS)
    toy = registry.get("league-texts")
    assert {row.method for row in toy.rows(subjects.TOY)} == {"Dense", texts.NONE, texts.PLAIN}
    assert rows.name(rows.BLOCK, rows.NONE) == texts.NONE


def test_the_picture_shows_changes_against_no_repair():
    draws = np.random.default_rng(0).normal(0, 0.1, 200)

    def entry(spec, perplexity, average):
        scores = {picture.PERPLEXITY: perplexity, picture.AVERAGE: average}
        shown = {"scores": scores, "replicates": lambda column: scores[column] + draws, "method": spec.method}
        shown |= {"group": "m", "spec": spec, "dense": False}
        return shown | {"model": "m", "label": "m", "sparsity": "7/30", "origin": "published"}

    none = entry(rows.LeagueSpec(rows.BLOCK, rows.NONE), 80.0, 40.0)
    read = (("", 40.0, 39.0), (rows.BOTH, 44.0, 43.0), (rows.ITEMS, 60.0, 44.0))
    refitted = [entry(rows.LeagueSpec(rows.BLOCK, rows.REFIT, text), *numbers) for text, *numbers in read]
    figure = picture.draw([none, *refitted], "paper")
    expected = {"plain text": (-50, -1), "both, in turn": (-45, 3), "questions": (-25, 4)}
    assert {bars.get_label() for bars in figure.axes[0].containers} == expected.keys()
    for bars in figure.axes[0].containers:
        assert [float(part[0]) for part in bars.lines[0].get_data()] == pytest.approx(expected[bars.get_label()])
    assert picture.draw([none], "paper") is None

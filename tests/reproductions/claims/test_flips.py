"""Flips and equivalence against counting and against intervals built by hand."""

import numpy as np
import pytest
from scipy.stats import norm
from stored_records import put, put_outcomes

from common.evaluation import significance
from common.pruning.recipe import Recipe
from common.records.results import Store
from reproductions.claims import flips
from reproductions.claims.bootstrap import Resampled
from reproductions.claims.derived_columns import Score
from reproductions.spec import statuses, subjects
from reproductions.spec.registry import Column, Row

TASKS = ("one", "two")
COLUMNS = [Column(name, name, "acc", scale=100) for name in TASKS]
COLUMNS += [Column("flips", derived="flips", of=TASKS), Column("AVG", derived="average", of=TASKS)]


def rows(store, outcomes):
    """Rows of a store with these outcomes by method and task; None: a record without outcomes."""
    shown = []
    for place, (method, by_task) in enumerate(outcomes.items()):
        recipe = Recipe("standin", "standin", selection={"method": "given", "layers": [place]} if place else None)
        scores = {}
        for task, right in by_task.items():
            if right is None:
                put(store, recipe, task, {"acc": 0.5}, {"acc": 0.01})
            else:
                put_outcomes(store, recipe, task, {"acc": np.array(right, bool)})
            scores[task] = Score(100 * float(np.mean(right or 0.5)), 1.0)
        row = Row("standin", "standin", "1/9", method, recipe, dense=method == "Dense")
        shown.append((row, subjects.TOY, scores))
    return shown


def test_flips_are_answers_that_one_model_alone_has_right(tmp_path):
    store = Store(tmp_path)
    dense = {"one": [1, 1, 0, 0, 1], "two": [1, 0, 0, 0]}
    pruned = {"one": [1, 0, 1, 0, 1], "two": [1, 0, 0, 1]}  # two of five, and one of four: no score changes by as much
    rows_by_name = rows(store, {"Dense": dense, "pruned": pruned})
    flips.fill(rows_by_name, COLUMNS, store)
    assert rows_by_name[0][2]["flips"] is statuses.NONE
    assert rows_by_name[1][2]["flips"].value == pytest.approx(100 * (2 / 5 + 1 / 4) / 2)
    replicates = Resampled(store, rows_by_name, COLUMNS)("standin", "1/9", "pruned", "flips")
    assert replicates.mean() == pytest.approx(100 * (2 / 5 + 1 / 4) / 2, abs=0.5)
    errors = [np.sqrt(share * (1 - share) / n) * significance.spread(n) for share, n in ((0.4, 5), (0.25, 4))]
    assert replicates.std() == pytest.approx(100 * np.hypot(*errors) / 2, rel=0.03)


def test_no_outcomes_are_no_value(tmp_path):
    store = Store(tmp_path)
    whole = {"one": [1, 0], "two": [1, 0]}
    lacking = {"pruned": {"one": [1, 1], "two": None}, "a": whole, "b": whole}
    rows_by_name = rows(store, {"Dense": whole} | lacking)
    flips.fill(rows_by_name, COLUMNS, store)
    assert rows_by_name[1][2]["flips"] is statuses.NO_VALUE and rows_by_name[2][2]["flips"].value == 0
    rows_by_name[1][2]["two"] = statuses.NOT_RUN
    flips.fill(rows_by_name, COLUMNS, store)
    assert rows_by_name[1][2]["flips"] is statuses.NOT_RUN


@pytest.mark.parametrize(
    ("mean", "error"), [(0.0, 0.3), (0.0, 0.7), (0.6, 0.2), (0.6, 0.3), (-0.9, 0.01), (-1.2, 0.01)]
)
def test_equivalence_is_two_one_sided_tests(mean, error):
    replicates = mean + error * norm.ppf((np.arange(20000) + 0.5) / 20000)
    below, above = ((mean + 1) / error, (1 - mean) / error)  # z of the two tests against a margin of 1
    assert significance.equivalent(replicates, 1.0) == (min(below, above) > norm.ppf(0.95))

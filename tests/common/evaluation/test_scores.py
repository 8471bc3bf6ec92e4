"""Averages, retained performance and MMLU against the papers' own printed arithmetic, and errors against simulation."""

import itertools
import math
import random
import statistics

import pytest

from common.evaluation.scores import (
    MMLU,
    MMLU_QUESTIONS,
    accuracy_stderr,
    average,
    average_stderr,
    retained_performance,
    retained_performance_stderr,
    weighted_mean,
    weighted_stderr,
)
from common.utils.errors import UserError
from reproductions.spec import columns


def row(*values: float | None) -> dict[str, float | None]:
    return {f"column {index}": value for index, value in enumerate(values)}


# LinearPatch, Table 1: the nine tasks, then AVG and RP as printed.
DENSE = {
    "LLaMA-2-7B": row(46.25, 74.58, 77.74, 75.97, 79.11, 68.98, 80.59, 39.62, 87.00),
    "LLaMA-2-13B": row(49.06, 77.40, 80.61, 79.35, 80.52, 72.38, 86.81, 40.48, 91.00),
    "LLaMA-3-8B": row(53.41, 77.78, 81.28, 79.16, 80.85, 72.85, 86.45, 40.19, 89.00),
}
LINEARPATCH = [
    ("LLaMA-2-7B", (46.25, 74.58, 77.74, 75.97, 79.11, 68.98, 80.59, 39.62, 87.00), 69.98, 100.00),
    ("LLaMA-2-7B", (31.91, 52.90, 62.42, 54.41, 71.33, 53.20, 65.57, 28.52, 79.00), 55.47, 78.14),
    ("LLaMA-2-7B", (32.76, 48.61, 62.17, 56.17, 64.36, 64.33, 71.06, 32.25, 77.00), 56.52, 80.29),
    ("LLaMA-2-7B", (33.45, 55.22, 62.14, 57.67, 67.46, 65.11, 77.29, 34.93, 79.00), 59.14, 84.08),
    ("LLaMA-2-7B", (37.63, 61.24, 62.14, 63.49, 70.46, 65.90, 79.49, 36.46, 85.00), 62.42, 88.88),
    ("LLaMA-2-13B", (44.20, 65.53, 62.39, 70.15, 73.83, 69.61, 81.68, 38.09, 89.00), 66.05, 90.49),
    ("LLaMA-3-8B", (47.35, 66.20, 73.52, 71.10, 74.27, 71.03, 76.56, 36.65, 84.00), 66.74, 90.84),
    ("LLaMA-3-8B", (48.55, 70.71, 74.25, 72.52, 76.71, 73.95, 81.32, 38.37, 86.00), 69.15, 94.15),
]
# Prune&Comp, Table 2 (columns ARC-c ARC-e BoolQ CoPa HeSw PIQA Race-h WG WSC), then Average and RP as printed.
PRUNECOMP_DENSE = row(53.41, 77.78, 81.28, 89.00, 79.16, 80.85, 40.19, 72.85, 86.45)
PRUNECOMP = [
    ((47.35, 66.20, 73.52, 84.00, 71.10, 74.27, 36.65, 71.03, 76.56), 66.74, 90.88),
    ((46.16, 70.24, 69.36, 81.00, 69.67, 73.83, 37.99, 70.56, 79.85), 66.52, 90.57),
    ((41.55, 62.37, 72.78, 80.00, 65.44, 71.38, 36.65, 71.11, 78.02), 64.37, 87.64),
    ((28.92, 39.56, 38.07, 60.00, 33.26, 59.47, 24.02, 55.56, 59.71), 44.29, 60.30),
]
# LinearPatch, Table 12: STEM, Humanities, Social Sciences, Others, Weighted AVG as printed.
WEIGHTED = [
    (36.98, 43.25, 51.77, 52.47, 45.90),
    (34.76, 40.38, 49.89, 50.00, 43.48),
    (44.14, 54.35, 63.44, 60.80, 55.63),
    (55.20, 59.00, 75.95, 71.56, 64.80),
    (54.24, 57.15, 75.40, 71.50, 63.84),
]


@pytest.mark.parametrize(
    ("dense", "kind", "cells", "printed_average", "printed_retained"),
    [*((DENSE[model], "mean-of-ratios", *printed) for model, *printed in LINEARPATCH)]
    + [(PRUNECOMP_DENSE, "ratio-of-means", *printed) for printed in PRUNECOMP],
)
def test_linearpatch_and_prunecomp_print_these_averages(dense, kind, cells, printed_average, printed_retained):
    assert average(row(*cells)) == pytest.approx(printed_average, abs=0.0051)
    assert retained_performance(row(*cells), dense, kind=kind) == pytest.approx(printed_retained, abs=0.0101)


@pytest.mark.parametrize("printed", WEIGHTED)
def test_linearpatch_weights_mmlu_by_questions(printed):
    categories = dict(zip(MMLU, printed[:4], strict=True))
    assert weighted_mean(categories, MMLU_QUESTIONS) == pytest.approx(printed[4], abs=0.0101)


def test_mmlu_has_the_published_sizes():
    sizes = {"STEM": 18, "Humanities": 13, "Social Sciences": 12, "Others": 14}
    assert {category: len(subjects) for category, subjects in MMLU.items()} == sizes
    assert list(MMLU_QUESTIONS.values()) == [3018, 4705, 3077, 3242]
    assert sum(MMLU_QUESTIONS.values()) == 14042
    assert "anatomy" in MMLU["Others"]  # lm-eval has it in STEM


def test_mmlu_error_is_that_of_one_large_sample():
    errors = {s: accuracy_stderr(0.4, n) for subjects in MMLU.values() for s, n in subjects.items()}
    categories = {category: weighted_stderr(errors, subjects) for category, subjects in MMLU.items()}
    assert categories["STEM"] == pytest.approx(accuracy_stderr(0.4, 3018), rel=0.01)
    assert weighted_stderr(categories, MMLU_QUESTIONS) == pytest.approx(accuracy_stderr(0.4, 14042), rel=0.01)


def test_an_averages_error_is_the_spread_of_simulated_measurements():
    rng, true, errors = random.Random(1), row(40.0, 60.0, 70.0), row(0.8, 1.5, 2.0)
    averages = [average({name: rng.gauss(true[name], errors[name]) for name in true}) for _ in range(2000)]
    assert average_stderr(errors) == pytest.approx(statistics.stdev(averages), rel=0.1)


@pytest.mark.parametrize("kind", ["mean-of-ratios", "ratio-of-means"])
def test_errors_of_what_is_retained_are_those_of_finite_differences_in_every_score(kind):
    """Far below the dense model, where its errors weigh by what is retained."""
    scores = [row(10.0, 60.0, 20.0), row(50.0, 75.0, 80.0)]
    errors = [row(0.5, 1.5, 1.0), row(3.0, 2.0, 4.0)]
    terms, step = [], 1e-5
    for side, task in itertools.product((0, 1), scores[0]):
        moved = [[dict(cells) for cells in scores] for _ in range(2)]
        for sign, both in zip((1, -1), moved):
            both[side][task] += sign * step
        up, down = (retained_performance(*both, kind) for both in moved)
        terms.append(errors[side][task] * (up - down) / (2 * step))
    assert retained_performance_stderr(*scores, *errors, kind) == pytest.approx(math.hypot(*terms), rel=1e-6)


def test_an_unknown_error_stays_unknown():
    errors = row(1.0, None)
    assert average_stderr(errors) is None
    assert retained_performance_stderr(row(40, 60), row(50, 70), errors, row(1.0, 1.0)) is None
    assert retained_performance_stderr(row(40, 60), row(50, 70), row(1.0, 1.0), {}) is None


def test_cells_are_matched_by_name():
    assert retained_performance({"a": 10.0, "b": 30.0}, {"b": 60.0, "a": 10.0}) == pytest.approx(75)


def test_meaningless_requests_are_refused():
    with pytest.raises(UserError, match="dense score of 0"):
        retained_performance(row(1), row(0))


def test_accuracy_error_is_that_of_a_sample_mean():
    answers = [1] * 30 + [0] * 70
    assert accuracy_stderr(0.3, 100) == pytest.approx(statistics.stdev(answers) / math.sqrt(100))
    assert accuracy_stderr(1.0, 1) is None


def test_questions_have_the_papers_columns():
    tasks = columns.tasks("paper")
    assert [c.label for c in tasks] == ["ARC-c", "ARC-e", "BoolQ", "HeSw", "PIQA", "WG", "WSC", "Race-h", "CoPa"]
    assert [column.label for column in tasks if column.key == "acc_norm"] == ["ARC-c", "ARC-e", "HeSw", "PIQA"]
    assert len(columns.tasks("standin")) == 9 and len(columns.tasks("standin", few=True)) == len(columns.FEW)

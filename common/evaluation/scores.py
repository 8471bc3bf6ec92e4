"""Compute the papers' scores from accuracies: averages, retained performance, MMLU by category; with standard errors.

Cells are `{column: value}`, in one unit throughout (fractions or percent), errors `{column: standard error or None}`. A
value may be an array of replicates; averages and retained performances are arrays then. Errors are propagated to first
order, **taking tasks as independent**, because each task has different items. A pruned model and its original answer
the same items, which in practice correlates them positively. That is ignored, so the error of a retained performance is
conservative. If one error is unknown, so is that of the result.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from common.calibration.mmlu_questions import MMLU
from common.utils.errors import UserError

Cells = Mapping[str, float]
Errors = Mapping[str, float | None]

MMLU_QUESTIONS = {category: sum(subjects.values()) for category, subjects in MMLU.items()}


def average(cells: Cells) -> float:
    """Return the plain mean over tasks, as in the papers' AVG columns: tasks of different size count alike."""
    return sum(cells.values()) / len(cells)


def average_stderr(errors: Errors) -> float | None:
    """Return the standard error of `average`; None if one of ``errors`` is unknown."""
    return _quadrature((1 / len(errors), error) for error in errors.values())


def retained_performance(cells: Cells, dense: Cells, kind: str = "mean-of-ratios") -> float:
    """Return the retained performance in percent, of a pruned and an original model's scores by task.

    ``mean-of-ratios`` is the mean over tasks of cells[t] / dense[t] (LinearPatch's RP; every printed row fits),
    ``ratio-of-means`` is mean(cells) / mean(dense) (Prune&Comp's RP; every printed row fits).

    Raises:
        UserError: a score of the original model is 0.
    """
    return sum(scale * cells[task] for task, scale in _scales(cells, dense, kind).items())


def retained_performance_stderr(
    cells: Cells, dense: Cells, errors: Errors, dense_errors: Errors, kind: str = "mean-of-ratios"
) -> float | None:
    """Return the standard error of `retained_performance`, in percent, from the errors of both models.

    It does not apply to the original model against itself, which retains 100 % by definition.
    """
    scales = _scales(cells, dense, kind)
    if kind == "mean-of-ratios":
        ratios = {task: cells[task] / dense[task] for task in cells}
    else:
        ratios = dict.fromkeys(cells, average(cells) / average(dense))
    terms = [(scale, errors.get(task)) for task, scale in scales.items()]
    terms += [(scale * ratios[task], dense_errors.get(task)) for task, scale in scales.items()]
    return _quadrature(terms)


def _scales(cells: Cells, dense: Cells, kind: str) -> dict[str, float]:
    """Return what each task's score is multiplied by in the retained performance."""
    if not all(np.all(value) for value in dense.values()):
        raise UserError("a dense score of 0 leaves nothing to retain")
    if kind == "mean-of-ratios":
        return {task: 100 / (len(cells) * dense[task]) for task in cells}
    return dict.fromkeys(cells, 100 / sum(dense.values()))


def accuracy_stderr(accuracy: float, questions: int) -> float | None:
    """Return the standard error of an accuracy as lm-eval computes it (sample deviation); None for one question."""
    return math.sqrt(accuracy * (1 - accuracy) / (questions - 1)) if questions > 1 else None


def weighted_stderr(errors: Errors, questions: Mapping[str, int]) -> float | None:
    """Return the standard error of a question-weighted mean, over a category (`MMLU[category]`) or all (`MMLU_QUESTIONS`)."""
    total = sum(questions.values())
    return _quadrature((count / total, errors.get(name)) for name, count in questions.items())


def weighted_mean(values: Cells, questions: Mapping[str, int]) -> float:
    """Return the mean of values with their numbers of items as weights."""
    return sum(values[name] * count for name, count in questions.items()) / sum(questions.values())


def _quadrature(terms: Iterable[tuple[float, float | None]]) -> float | None:
    """Return sqrt(sum of (weight * error)^2), or None if an error is missing."""
    terms = list(terms)
    if any(error is None for _, error in terms):
        return None
    return math.hypot(*(weight * error for weight, error in terms))

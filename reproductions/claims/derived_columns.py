"""Columns that follow from others: averages, and what is retained of the dense row; of numbers or of their replicates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.evaluation import scores as scoring
from reproductions.spec.columns import chance
from reproductions.spec.registry import Column, Row
from reproductions.spec.statuses import DENSE_ZERO, DIVERGED, GUESSES, NOT_RUN, Status
from reproductions.spec.subjects import Subject


@dataclass(frozen=True)
class Score:
    """A reproduced number as the table shows it, with its standard error if it has one."""

    value: float
    stderr: float | None


@dataclass(frozen=True)
class TextCell:
    """A reproduced cell that is no number, such as a list of layers."""

    text: str


Scores = dict[str, Score | TextCell | Status]  # column -> score, or why there is none
Scored = list[tuple[Row, Subject, Scores]]
FLIPS = "flips"  # filled in from outcomes per item, see `reproductions.claims.flips`
_KINDS = {"retained": "mean-of-ratios", "retained-average": "ratio-of-means"}


def score(value: float, error: float | None) -> Score | Status:
    """Return a number to show, or the status that it has diverged."""
    if not math.isfinite(value):
        return DIVERGED
    return Score(value, error if error is not None and math.isfinite(error) else None)


def fill(rows: Scored, columns: Sequence[Column]) -> dict[str, list[str]]:
    """Fill in the columns that follow from others.

    A column that lacks data, or was not run, in most rows of a model is left out of them. Return, for each column that
    some are left out of, the remaining ones.
    """
    dense = {row.model: scores for row, _, scores in rows if row.dense}
    following = [column for column in columns if column.derived not in (None, FLIPS)]
    names_of = {
        (column.id, model): parts(column, columns, model, rows)
        for column in following
        for model in {row.model for row, _, _ in rows}
    }
    over = {}
    for row, _, scores in rows:
        for column in following:
            reference = scores if column.derived == "average" else dense.get(row.model, {})
            names, everything = names_of[column.id, row.model]
            if 0 < len(names) < everything:
                over[column.id] = names
            inputs = names or _run(column, columns, row.model, rows)[0]
            cells = [side.get(name, row.status) for side in (scores, reference) for name in inputs]
            if reasons := [cell for cell in cells if isinstance(cell, Status)]:
                scores[column.id] = reasons[0]
            elif not names:
                scores[column.id] = GUESSES
            elif column.derived != "average" and not all(reference[name].value for name in names):
                scores[column.id] = DENSE_ZERO
            else:
                values, errors = _split(scores, names)
                wholes, whole_errors = _split(reference, names)
                value = combine(column, values, wholes)
                scores[column.id] = score(value, _error(column, row, values, wholes, errors, whole_errors))
    return over


def parts(column: Column, columns: Sequence[Column], model: str | None, rows: Scored) -> tuple[list[str], int]:
    """Return the columns that one follows from in a model's rows, and their number if all were measured.

    Columns that fewer than two thirds of the model's rows have run are left out, so that a task that is being measured
    does not remove the average of many rows. The original model's row belongs to many tables, so columns that only it
    has run are left out, too. So are tasks on which the original model is at chance (`at_chance_level`), for retained
    accuracy and for averages that say so (`Column.exclude_chance_tasks`). Exceptions are the papers' models, whose
    tables count every task, and a column of one task. If it is at chance on all tasks, none is left.
    """
    names, everything = _run(column, columns, model, rows)
    if everything > 1 and (column.exclude_chance_tasks or column.derived not in ("average", FLIPS)):
        unknown = at_chance_level(columns, model, rows)
        names = [name for name in names if name not in unknown]
    return names, everything


def _run(column: Column, columns: Sequence[Column], model: str | None, rows: Scored) -> tuple[list[str], int]:
    """Return `parts`, whatever the dense model knows."""
    everything = column.members(columns)
    own_rows = [(row, scores) for row, _, scores in rows if row.model == model and row.recipe is not None]
    tried = [(row, scores) for row, scores in own_rows if any(isinstance(scores.get(n), Score) for n in everything)]
    siblings = [scores for row, scores in tried if not row.dense] or [scores for _, scores in tried or own_rows]
    rows_with = {name: sum(not _nowhere(scores.get(name)) for scores in siblings) for name in everything}
    names = [name for name in everything if rows_with[name] and 3 * rows_with[name] >= 2 * len(siblings)] or everything
    return names, len(everything)


def at_chance_level(columns: Sequence[Column], model: str | None, rows: Scored) -> list[str]:
    """Return the tasks on which the original model is at most two standard errors above chance level.

    Retained accuracy means nothing there. A pruned model that guesses otherwise "retains" more than 100 %: SmolLM2
    answers 39 % of BoolQ correctly, and saying yes always gives 62 %.
    """
    dense = next(
        (scores for row, subject, scores in rows if row.dense and row.model == model and not subject.printed), {}
    )
    guesses = chance_scores(columns)
    dense_scores = {label: dense[label] for label in guesses if isinstance(dense.get(label), Score)}
    return [
        label
        for label, score in dense_scores.items()
        if score.stderr is not None and score.value <= guesses[label] + 2 * score.stderr
    ]


def chance_scores(columns: Sequence[Column]) -> dict[str, float]:
    """Return the score of random answers by column, where it is known."""
    shares = chance(c.benchmark for c in columns if c.benchmark)
    return {c.id: c.scale * shares[c.benchmark] for c in columns if c.benchmark in shares}


def levels(columns: Sequence[Column], model: str | None, rows: Scored) -> dict[str, float]:
    """Return chance level in each average of a model's rows, if it is known for every task of the average."""
    guesses = chance_scores(columns)
    levels_by_column = {}
    for column in columns:
        names = parts(column, columns, model, rows)[0] if column.derived == "average" else []
        if names and guesses.keys() >= set(names):
            levels_by_column[column.id] = scoring.average({name: guesses[name] for name in names})
    return levels_by_column


def combine(column: Column, cells: Mapping, dense: Mapping):
    """Compute a derived column from other columns' values and the original model's; arrays of replicates give an array.

    Raises:
        UserError: the original model scores 0.
    """
    if column.derived == "average":
        return scoring.average(cells)
    return scoring.retained_performance(cells, dense, _KINDS[column.derived])


def _error(column: Column, row: Row, cells: dict, dense: dict, errors: dict, dense_errors: dict) -> float | None:
    if column.derived == "average":
        return scoring.average_stderr(errors)
    if row.dense:  # its ratio to itself is 1 by definition
        return None
    return scoring.retained_performance_stderr(cells, dense, errors, dense_errors, _KINDS[column.derived])


def _nowhere(cell: Score | TextCell | Status | None) -> bool:
    return isinstance(cell, Status) and cell.id in ("no-data", NOT_RUN.id)


def _split(scores: Scores, names: list[str]) -> tuple[dict, dict]:
    return {name: scores[name].value for name in names}, {name: scores[name].stderr for name in names}

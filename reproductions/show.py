"""A table in its JSON form, from records and reported numbers alone: nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.evaluation import scores as scoring
from common.results import Store
from reproductions.registry import Column, Row, Table, reported_numbers
from reproductions.runner import choose_rows

# Acceptance: counts to the printed digit, accuracies within two standard errors.
EXACT = 0.01


@dataclass(frozen=True)
class Score:
    """A reproduced number as it is shown, with its standard error if it has one."""

    value: float
    stderr: float | None


def build(
    table: Table,
    store: Store,
    profile: str,
    *,
    models: Sequence[str] = (),
    pattern: str | None = None,
    limit: int | None = None,
) -> dict:
    """The JSON form of a table (README: how reported and reproduced are compared)."""
    reported = reported_numbers(table.paper, table.number)
    rows, origins = [], set()
    for row in choose_rows(table, profile, models=models, pattern=pattern, limit=limit):
        rows.append((row, profile, _measured(row, table.columns(profile), store, origins)))
    _derive(rows, table.columns(profile))
    if profile != "paper":
        rows += [(row, "paper", {}) for row in table.rows("paper", None)]
    lines = []
    for row, of_profile, scores in rows:
        columns = table.columns(of_profile)
        cells = {c.label: _cell(row, c, scores, reported if of_profile == "paper" else {}) for c in columns}
        statuses = {cell["status"] for cell in cells.values() if cell["reproduced"] is None} - {"none"}
        status = "measured" if not statuses else min(statuses, key=len)
        line = {"model": row.label, "sparsity": row.sparsity, "method": row.method}
        lines.append(line | {"profile": of_profile, "status": status, "cells": cells})
    return {
        "target": table.target,
        "profile": profile,
        "title": table.title + (f" (only {limit} items of each task)" if limit else ""),
        "origin": " and ".join(sorted(origins)) or "no",
        "columns": [column.label for column in table.columns(profile)],
        "note": table.note,
        "rows": lines,
        "claims": _claims(table, lines, reported, profile),
    }


def _measured(row: Row, columns: list[Column], store: Store, origins: set[str]) -> dict[str, Score | str]:
    """Column -> score from a record, or the reason why there is none."""
    found: dict[str, Score | str] = {}
    for column in columns:
        if column.benchmark is None:
            continue
        record = store.get(row.recipe, column.benchmark) if row.recipe else None
        if record is None:
            found[column.label] = row.status
        elif record.status != "ok":
            found[column.label] = f"failed: {record.reason}"
        else:
            origins.add(record.origin)
            error = record.stderr.get(column.key)
            value = record.values[column.key] * column.scale
            found[column.label] = Score(value, None if error is None else error * column.scale)
    return found


def _derive(rows: list[tuple[Row, str, dict]], columns: list[Column]) -> None:
    """Fill in the columns that follow from others: averages, and what is retained of the dense row."""
    accuracies = [c.label for c in columns if c.benchmark and c.compare == "accuracy"]
    dense = {row.model: scores for row, _, scores in rows if row.dense}
    for row, _, scores in rows:
        for column in columns:
            if column.derived is None:
                continue
            reference = dense.get(row.model, {}) if column.derived == "retained" else scores
            needed = [side.get(name, row.status) for side in (scores, reference) for name in accuracies]
            if reasons := [score for score in needed if isinstance(score, str)]:
                scores[column.label] = reasons[0]
            elif column.derived == "average":
                scores[column.label] = _average(scores, accuracies)
            else:
                scores[column.label] = _retained(scores, reference, accuracies, row.dense)


def _split(scores: dict[str, Score], names: list[str]) -> tuple[dict, dict]:
    return {name: scores[name].value for name in names}, {name: scores[name].stderr for name in names}


def _average(scores: dict[str, Score], names: list[str]) -> Score:
    cells, errors = _split(scores, names)
    return Score(scoring.average(cells), scoring.average_stderr(errors))


def _retained(scores: dict[str, Score], dense: dict[str, Score], names: list[str], is_dense: bool) -> Score:
    cells, errors = _split(scores, names)
    reference, reference_errors = _split(dense, names)
    value = scoring.retained_performance(cells, reference)
    # The dense model's ratio to itself is 1 by definition.
    error = None if is_dense else scoring.retained_performance_stderr(cells, reference, errors, reference_errors)
    return Score(value, error)


def _cell(row: Row, column: Column, scores: dict, reported: dict) -> dict:
    printed = reported.get((row.label, row.sparsity, row.method, column.label))
    score = scores.get(column.label, row.status)
    cell = {"reported": printed.value if printed else None, "reproduced": None, "stderr": None, "status": score}
    if row.dense and column.label == "Ratio":
        return cell | {"status": "none"}
    if isinstance(score, Score):
        cell |= {"reproduced": score.value, "stderr": score.stderr, "status": "measured"}
        if printed:
            allowed = EXACT if column.compare == "exact" or not score.stderr else 2 * score.stderr
            cell["status"] = "match" if abs(score.value - printed.value) <= allowed else "differs"
    if printed and printed.flag:
        cell["flag"] = printed.flag
    return cell


def _claims(table: Table, lines: list[dict], reported: dict, profile: str) -> list[dict]:
    here = {(r["model"], r["sparsity"], r["method"]): r["cells"] for r in lines if r["profile"] == profile}

    def printed(model: str, sparsity: str, method: str, column: str) -> float | None:
        number = reported.get((model, sparsity, method, column))
        return number.value if number else None

    def measured(model: str, sparsity: str, method: str, column: str) -> float | None:
        return here.get((model, sparsity, method), {}).get(column, {}).get("reproduced")

    def settings(keys) -> list[tuple[str, str]]:
        return list(dict.fromkeys((k[0], k[1]) for k in keys if not k[1].startswith("0/")))

    found = []
    for claim in table.claims:
        skipped = claim.only_reported and profile != "paper"
        result = {"text": claim.text, "reported": claim.check(printed, settings(reported))}
        result["reproduced"] = None if skipped else claim.check(measured, settings(here))
        found.append(result)
    return found

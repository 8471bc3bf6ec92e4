"""A table in its JSON form, from records and reported numbers alone: nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence

from common.evaluation.scores import Score, average, retained_performance
from common.results import Store
from reproductions.registry import Column, Row, Table, reported_numbers
from reproductions.runner import choose_rows

# Acceptance: counts to the printed digit, accuracies within two standard errors.
EXACT = 0.01


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
        own = [scores.get(name) for name in accuracies]
        reference = [dense.get(row.model, {}).get(name) for name in accuracies]
        for column in columns:
            needed = own + reference if column.derived == "retained" else own
            if column.derived is None:
                continue
            if not all(isinstance(score, Score) for score in needed):
                scores[column.label] = next((s for s in needed if isinstance(s, str)), "not run")
            elif column.derived == "average":
                scores[column.label] = average(own)
            else:
                scores[column.label] = retained_performance(own, reference, same=row.dense)


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

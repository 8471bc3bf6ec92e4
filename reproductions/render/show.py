"""A table in its JSON form, from records and reported numbers alone: nothing is measured here."""

import importlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

from common.evaluation import significance
from common.records.results import Record, Store
from common.utils.errors import UserError
from reproductions import audit
from reproductions.claims import derived_columns, flips, verdicts
from reproductions.claims.bootstrap import Resampled
from reproductions.claims.derived_columns import Score, Scored, TextCell, score
from reproductions.spec import coverage, reported, statuses, subsets
from reproductions.spec import subjects as settings
from reproductions.spec.changes import Changes
from reproductions.spec.columns import RATIO, chance
from reproductions.spec.narrowing import choose_rows, fits
from reproductions.spec.registry import Column, Row, Table
from reproductions.spec.statuses import Status
from reproductions.spec.subjects import PAPER, TEXT_LABEL, TOY, Subject

TOLERANCE = (
    "A reproduced number matches a reported one when they differ by at most two standard errors (accuracies), 1 % "
    "(perplexities), or nothing in the printed digits (counts and ratios)."
)
PERPLEXITY = 0.01
GATE = (
    "The dense model is the gate: where it does not match, no row below it can be compared yet. Usual causes: perplexity "
    "per word instead of per token, another sequence length or BOS, acc for acc_norm, another checkpoint or revision."
)


_OF_TRAINING = ("laco-training",)  # benchmarks that hold a training's losses


class NotWritten(UserError):
    """A picture that cannot be written."""


def build(
    table: Table,
    store: Store,
    subjects: Subject | Sequence[Subject],
    *,
    models: Sequence[str] = (),
    pattern: str | None = None,
    limit: int | None = None,
    claims: bool = True,
) -> dict:
    """Build the JSON form of a table (docs/comparing.md: how reported and reproduced are compared).

    Each subject has separate rows. models (of the paper's own), pattern, limit: see
    `reproductions.spec.narrowing.choose_rows`. claims: whether claims are judged, which takes a fraction of a second.
    """
    subjects = [subjects] if isinstance(subjects, Subject) else subjects
    printed = reported.cells(table.paper, table.number)
    rows, facts, readings = [], [], {}
    for subject in subjects:
        origins: set[str] = set()
        chosen = choose_rows(table, subject, models if subject.printed else (), pattern=None, limit=limit)
        columns = coverage.columns(table, store, subject, limit)
        scored_rows, over = _scored_rows(columns, subject, store, chosen, origins)
        rows += scored_rows
        facts.append(_facts(subject, columns, scored_rows, over, origins))
        readings[subject.name] = [Resampled(store, scored_rows, columns)]
        for wholes, answering in coverage.more_items(columns, chosen, store) if claims else ():
            closer = [wholes.get(column.id, column) for column in columns]
            more_scored, _ = _scored_rows(closer, subject, store, answering, set())
            readings[subject.name].append(Resampled(store, more_scored, closer, whole=wholes))
    if not any(subject.printed for subject in subjects):
        # Of the paper's models only what needs no weights belongs beside another model's numbers.
        paper_columns = table.columns_for(PAPER)
        weight_free = [column for column in paper_columns if column.weight_free]
        for row in table.rows(PAPER, None):
            rows.append((row, PAPER, _scores(row, paper_columns if _of_shape(row) else weight_free, store, set())))
    shown = {subject: [c for c in table.columns_for(subject) if not c.hidden] for _, subject, _ in rows}
    ids = {column.label: column.id for columns in shown.values() for column in columns}
    lines = [_line(row, subject, shown[subject], scores, printed) for row, subject, scores in rows]
    _mark(table, lines, ids)
    _gate(lines, {column.label for column in table.columns_for(PAPER) if not column.weight_free})
    judged = verdicts.claims(table, lines, printed, subjects, readings) if claims else {"claims": [], "chance": {}}
    # What follows from other rows than the named ones stays what it is; the original model is there to compare with.
    named = [
        pattern is None or fits(row, (), pattern) or (row.dense and subject in subjects) for row, subject, _ in rows
    ]
    first = subjects[0]
    return {
        "target": table.target,
        "profile": first.profile,
        "title": table.title + (f" (only {limit} items of each task and sequences of each text)" if limit else ""),
        "own_models": own_models(table, store),
        "origin": facts[0]["origin"],
        "subjects": facts,
        "columns": [column.label for column in table.columns_for(first) if not column.hidden],
        "column_ids": ids,
        "better": {column.label: column.better for columns in shown.values() for column in columns if column.better},
        "note": table.note,
        "tolerance": TOLERANCE,
        "gate": GATE,
        "rows": [line for line, is_named in zip(lines, named, strict=True) if is_named],
    } | judged


def _facts(
    subject: Subject, columns: list[Column], rows: Scored, over: Mapping[str, Sequence[str]], origins: Collection[str]
) -> dict:
    """Return what the JSON form says of a subject."""
    labels = {column.id: column.label for column in columns}
    model = next((row.model for row, _, _ in rows), None)
    unknown = [labels[name] for name in derived_columns.at_chance_level(columns, model, rows)]
    retained = [c for c in columns if str(c.derived).startswith("retained") and len(c.of) != 1]
    excluding = [c.label for c in columns if c.exclude_chance_tasks or c in retained]
    scored = {name for _, _, scores in rows for name, score in scores.items() if isinstance(score, Score)}
    corpora = {(row.recipe.calibration or {}).get("corpus") for row, _, _ in rows if row.recipe} - {None}
    others = ", or on the text that a row names" if len(corpora) > 1 else ""
    return {
        "name": subject.name,
        "label": subject.label,
        "profile": subject.profile,
        "dtype": subject.dtype,
        "origin": " and ".join(sorted(origins)) or "no",
        "over": {labels[name]: len(parts) for name, parts in over.items()},
        "over_tasks": {labels[name]: [labels[part] for part in parts] for name, parts in over.items()},
        "guessing": {labels[name]: level for name, level in derived_columns.levels(columns, model, rows).items()},
        "guessed": dict.fromkeys(excluding, unknown) if unknown else {},
        "size": subsets.described([column for column in columns if column.id in scored] or columns),
        "text": TEXT_LABEL + others if subject.text in corpora else "",
    }


def _line(row: Row, subject: Subject, columns: list[Column], scores: dict, printed: Mapping) -> dict:
    """Return a row of the JSON form."""
    cells = {c.label: _cell(row, c, scores, printed if subject.printed else {}) for c in columns}
    cells = {label: cell for label, cell in cells.items() if cell["status_id"] != statuses.ABSENT.id}
    line = {"id": row.id, "model": row.label, "sparsity": row.sparsity, "method": row.name, "dense": row.dense}
    line |= {"model_id": row.group, "method_id": row.method, "extension": row.extension, "shape": _of_shape(row)}
    line |= {"profile": subject.profile, "subject": subject.name, "cells": cells}
    return line | _as_json(_of_cells(cells))


def _of_cells(cells: Mapping[str, dict]) -> Status:
    """Return the status of a row from those of its cells without a number."""
    lacking = [cell for cell in cells.values() if cell["reproduced"] is None and "text" not in cell]
    return statuses.of_row([status for status in map(_status, lacking) if status != statuses.NONE])


def of_columns(content: dict, labels: Collection[str]) -> dict:
    """Return a table with only these columns, and with only the rows that have a number or a reason in one of them."""
    rows = []
    for row in content["rows"]:
        cells = {name: cell for name, cell in row["cells"].items() if name in labels}
        if any(c["status_id"] != statuses.NONE.id or c["reported"] is not None for c in cells.values()):
            fields = {key: value for key, value in row.items() if key != "reason"}
            rows.append(fields | {"cells": cells} | _as_json(_of_cells(cells)))
    return content | {"columns": [name for name in content["columns"] if name in labels], "rows": rows}


def own_models(table: Table, store: Store) -> dict[str, int]:
    """Count a table's cells on the paper's models, and those with a value, without cells that follow from shapes alone."""
    names = [c.benchmark for c in table.columns_for(PAPER) if c.benchmark and not c.weight_free and not c.shape_only]
    recipes = [row.recipe for row in table.rows(PAPER) if row.recipe is not None and not _of_shape(row)]
    records = [store.get(recipe, name) for recipe in recipes for name in names]
    return {"measured": sum(record is not None and record.status == "ok" for record in records), "cells": len(records)}


def _of_shape(row: Row) -> bool:
    """Return whether a row needs no weights, whatever is measured."""
    return row.recipe is not None and row.recipe == row.shapes


def published(table: Table, store: Store, limit: int | None = None) -> list[Subject]:
    """Return a table's default subjects: the real models with results of it, then the toy model.

    The original model's results belong to many tables: alone they do not count, if the table has other rows.
    """
    subjects = []
    for name in settings.PUBLISHED_MODELS:
        subject = settings.of_model(name)
        benchmarks = {column.benchmark for column in table.columns_for(subject) if column.benchmark}
        rows = table.rows(subject, limit)
        rows = [row for row in rows if not row.dense] or rows
        if any(row.recipe and store.get(row.recipe, name) for row in rows for name in benchmarks):
            subjects.append(subject)
    return [*subjects, TOY]


def _mark(table: Table, lines: list[dict], ids: dict[str, str]) -> None:
    """Name the audit's findings at the printed numbers they are about."""
    findings_by_cell = audit.by_cell()
    for line in lines:
        for column, cell in line["cells"].items() if line["subject"] == PAPER.name else ():
            key = (table.paper, table.number, line["model_id"], line["sparsity"], line["method_id"], ids[column])
            if key in findings_by_cell:
                cell["audit"] = list(findings_by_cell[key])


def _gate(lines: list[dict], labels: set[str]) -> None:
    """Mark the rows of the paper's models whose dense row does not match the reported one."""
    for dense in lines:
        if dense["subject"] != PAPER.name or not dense["dense"]:
            continue
        differing = [
            k for k, cell in dense["cells"].items() if k in labels and cell["status_id"] == statuses.DIFFERS.id
        ]
        if not differing:
            continue
        for line in lines:
            compared = line["subject"] == PAPER.name and line["model_id"] == dense["model_id"] and not line["dense"]
            if compared and any(c["reproduced"] is not None for k, c in line["cells"].items() if k in labels):
                line["gate"] = f"not comparable yet: the dense model differs in {', '.join(differing)}"


def _scored_rows(
    columns: list[Column], subject: Subject, store: Store, rows: Sequence[Row], origins: set[str]
) -> tuple[Scored, dict[str, list[str]]]:
    """Return a subject's rows with the scores of their columns, derived ones too.

    Column -> those it is over, where not all.
    """
    scored_rows = [(row, subject, _scores(row, columns, store, origins)) for row in rows]
    over = derived_columns.fill(scored_rows, columns)
    flips.fill(scored_rows, columns, store)
    return scored_rows, over


def _scores(row: Row, columns: list[Column], store: Store, origins: set[str]) -> dict[str, Score | TextCell | Status]:
    """Return column -> score from a record, or the reason why there is none."""
    scores: dict[str, Score | TextCell | Status] = {}
    for column in columns:
        if column.benchmark is None:
            continue
        record = store.get(row.recipe, column.benchmark) if row.recipe else None
        if column.weight_free and row.shapes and (record is None or column.key not in record.values):
            record = store.get(row.shapes, column.benchmark) or record
        if record is None:
            scores[column.id] = statuses.UNRECORDED if _trained(row, column, store) else row.status
        elif record.status != "ok":
            scores[column.id] = statuses.of_record(record.status, record.reason)
        else:
            origins.add(record.origin)
            scores[column.id] = _read(record, column)
    return scores


def _trained(row: Row, column: Column, store: Store) -> bool:
    """Return whether a column tells of a training that was carried out, as other records of its recipe show."""
    return column.benchmark in _OF_TRAINING and row.recipe is not None and store.pruned(row.recipe) is not None


def _read(record: Record, column: Column) -> Score | TextCell | Status:
    """Return what a record says of a column; a value it does not hold is explained by its details' status.

    Of a model whose training diverged the scores are those of the last good state: the cell says that, as the paper's NaN. So
    does one whose value is not finite.
    """
    if column.text:
        content = record.details.get(column.key)  # None: nothing was removed from a dense model
        words = map(str, content) if isinstance(content, list) else str("" if content is None else content).split()
        return TextCell(" ".join(words))  # a cell is one line
    training = record.details.get("training")
    if isinstance(training, dict) and training.get("status") == "diverged" and not column.weight_free:
        return replace(statuses.DIVERGED, reason=str(training.get("reason", "no reason recorded")))
    if column.key not in record.values:
        return statuses.of_details(record.details.get("status"))
    error = record.stderr.get(column.key)
    value = record.values[column.key]
    scaled = value if column.scale == 1 else value * column.scale  # a count stays one
    return score(scaled, None if error is None else error * column.scale)


def entries(table: Table, store: Store, subject: Subject, rows: Sequence[Row]) -> list[dict]:
    """Return the argument of a drawing function: one entry per row that has results.

    An entry has the row's ids and labels (group, sparsity, method; model, name), its variant, spec, extension and
    dense. It has the ``records`` by benchmark as they are on disk, and by benchmark the chance level (``chance``). By
    column it has the ``scores``; ``replicates``, which gives a column as `Resampled` does; and ``over``, the number of
    columns that a derived one is over.
    """
    columns = coverage.columns(table, store, subject)
    benchmarks = dict.fromkeys(column.benchmark for column in columns if column.benchmark)
    scored_rows, fewer = _scored_rows(columns, subject, store, rows, set())
    over = {c.id: len(fewer.get(c.id, c.of)) for c in columns if c.derived and c.of}
    resampled, lines = Resampled(store, scored_rows, columns), []
    for row, _, scores in scored_rows:
        named = ((name, store.get(row.recipe, name)) for name in benchmarks if row.recipe)
        records = {name: asdict(record) for name, record in named if record and record.status == "ok"}
        if records:
            line = {"group": row.group, "sparsity": row.sparsity, "method": row.method, "dense": row.dense}
            line |= {"model": row.label, "name": row.name, "variant": row.variant}
            line |= {"extension": row.extension, "spec": row.spec}
            line |= {"scores": {label: score.value for label, score in scores.items() if isinstance(score, Score)}}
            line |= {"replicates": partial(resampled, *row.key)}
            lines.append(line | {"records": records, "chance": chance(benchmarks), "over": over})
    return lines


def drawn(
    table: Table,
    store: Store,
    subject: Subject,
    *,
    models: Sequence[str] = (),
    pattern: str | None = None,
    limit: int | None = None,
    folder: Path | None = None,
    forms: Sequence[str] = ("svg",),
) -> list[Path]:
    """Draw a figure from its results; return its files, none if nothing has been measured.

    The drawing function gets `entries`. Files have different names for the toy model, the paper's models, any other
    model, a part of the rows, and a limited number of items. models, pattern, limit: see
    `reproductions.spec.narrowing.choose_rows`. folder, forms: see `figures.style.save`.

    Raises:
        NotWritten: the files cannot be written.
    """
    from figures import style

    rows = choose_rows(table, subject, models=models, pattern=pattern, limit=limit)
    results = entries(table, store, subject, rows)
    if not results:
        return []
    module, _, function = table.draw.partition(":")
    figure = getattr(importlib.import_module(module), function)(results, subject.profile)
    if figure is None:  # nothing of what it shows
        return []
    style.caption(figure, results)
    name = table.target + ("" if subject.toy else f"-{subject.name.replace('/', '--')}")
    name += "-part" if len(rows) < len(choose_rows(table, subject, (), None, limit)) else ""
    name += f"-limit{limit}" if limit else ""
    try:
        return style.save(figure, name, folder, forms)
    except OSError as error:
        place = error.filename or folder or style.DRAWN
        raise NotWritten(
            f"cannot write the picture to {place}: {error.strerror}; free space or permit writing"
        ) from error


def changed(
    table: Table,
    store: Store,
    subject: Subject,
    models: Sequence[str] = (),
    *,
    pattern: str | None = None,
    limit: int | None = None,
) -> dict:
    """Return rows with a user's changes beside the unchanged ones (`reproductions.render.tables.render_changes`).

    ``rows`` has one entry for each cell with a number on a side: ``yours``, ``unchanged``, their ``difference`` and its
    95 % ``interval`` over the same items. ``origin``: the origin of the unchanged results. ``published_for``: models
    with results of the table, if the user named none.
    """
    columns, origins = coverage.columns(table, store, subject, limit), set()
    rows = choose_rows(table, subject, models, pattern, limit)
    unchanged = choose_rows(table, replace(subject, changes=Changes()), models, pattern, limit)
    plain = {row.key: row for row in unchanged}
    pairs = [(replace(row, method=f"{row.method}/changed"), plain[row.key]) for row in rows if not row.dense]
    dense = [row for row in table.rows(subject, limit) if row.dense]
    for _, row in pairs:
        _scores(row, columns, store, origins)
    # together, so that averages of both are over the same columns
    scored_rows, _ = _scored_rows(columns, subject, store, [*dense, *(row for pair in pairs for row in pair)], set())
    scores, replicates = {row.key: scored for row, _, scored in scored_rows}, Resampled(store, scored_rows, columns)
    lines = []
    for pair in pairs:
        changed_row, row = pair
        # an average of fewer columns than the table's would pass for the table's
        measured = [
            {c.id for c in columns if not c.derived and isinstance(scores[r.key].get(c.id), Score)} for r in pair
        ]
        complete = measured[0] == measured[1]
        for column in columns:
            values = [scores[r.key].get(column.id) for r in pair]
            numbers = [value.value if isinstance(value, Score) else None for value in values]
            if column.hidden or numbers == [None, None] or (column.derived and not complete):
                continue
            line = {"model": row.label, "sparsity": row.sparsity, "method": row.name, "column": column.label}
            line |= {"yours": numbers[0], "unchanged": numbers[1], "difference": None, "interval": None}
            if None not in numbers:
                difference = replicates(*changed_row.key, column.id) - replicates(*row.key, column.id)
                line["difference"] = numbers[0] - numbers[1]
                line["interval"] = list(significance.interval(difference)) if np.ndim(difference) else None
            lines.append(line)
    return {
        "target": table.target,
        "title": table.title,
        "subject": subject.name,
        "label": subject.phrase,
        "changes": str(subject.changes),
        "origin": " and ".join(sorted(origins)) or "no",
        "published_for": [],
        "rows": lines,
    }


def _cell(row: Row, column: Column, scores: dict, printed: dict) -> dict:
    number = printed.get((*row.key, column.id))
    score = scores.get(column.id, row.status)
    # NaN is what a paper may print and JSON cannot hold.
    value = number.value if number and math.isfinite(number.value) else None
    cell, status = {"reported": value, "reproduced": None, "stderr": None}, score
    if number:
        cell |= {"digits": len(number.text.partition(".")[2])}
        cell |= {"printed": number.text} if value is None else {}
        cell |= {"flag": number.flag} if number.flag else {}
    if isinstance(score, TextCell):
        cell["text"], status = score.text, statuses.MEASURED
    elif row.dense and column.id == RATIO.id and number is None:
        status = statuses.NONE  # nothing is removed, nothing is printed
    elif isinstance(score, Score):
        cell |= {"reproduced": score.value, "stderr": score.stderr}
        status = statuses.MEASURED
        cell |= {"digits": 0} if number is None and isinstance(score.value, int) else {}
        cell |= {"digits": _significant(score.value)} if number is None and column.unit == "s" else {}
        if value is not None:
            status = statuses.MATCH if _matches(column, score, number) else statuses.DIFFERS
            if status == statuses.DIFFERS and column.compare == "exact":
                cell |= {"explanation": "cut off"} if _cut_off(score, number) else {}
    elif printed and number is None and column.weight_free and row.shapes is None:
        status = statuses.NONE  # the paper leaves the cell empty, and nothing is to be measured
    elif printed and number is None and column.benchmark is None and column.derived is None:
        status = statuses.ABSENT
    return cell | _as_json(status)


def _as_json(status: Status) -> dict:
    """Return a status as JSON has it."""
    fields = {"status": status.text, "status_id": status.id}
    return fields | ({"reason": status.reason} if status.reason else {})


def _status(cell: dict) -> Status:
    """Return the status of a cell's JSON form."""
    reason = cell.get("reason", "")
    return Status(cell["status_id"], cell["status"].removesuffix(f": {reason}" if reason else ""), reason)


def _significant(value: float) -> int:
    """Return the digits after the point of a number with three significant ones."""
    return min(6, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 2


def _matches(column: Column, score: Score, number: reported.Number) -> bool:
    difference = abs(score.value - number.value)
    if column.compare == "perplexity":
        return difference <= PERPLEXITY * number.value
    if column.compare == "exact" or not score.stderr:
        return difference <= number.half_unit * (1 + 1e-9)
    return difference <= 2 * score.stderr


def _cut_off(score: Score, number: reported.Number) -> bool:
    """Return whether the printed digits are the first ones of the reproduced number, not its rounding."""
    return 0 <= score.value - number.value < 2 * number.half_unit

"""Write every published cell as one tidy table, ``reproductions/results/cells.parquet``."""

from collections.abc import Iterator
from pathlib import Path

from common.records.results import PUBLISHED, Store
from reproductions.render import show
from reproductions.spec import coverage, registry
from reproductions.spec.registry import Column, Row, Table
from reproductions.spec.subjects import PAPER, Subject

FILE = PUBLISHED / "cells.parquet"
# Column -> (type, what it holds).
FIELDS = {
    "paper": ("string", "paper that the table is of; league: of this project"),
    "target": ("string", "table or figure, as `make` takes it"),
    "subject": ("string", "paper: the paper's own models; else the model of the table (MODEL=)"),
    "model": ("string", "model of the row, as the registry names it"),
    "group": ("string", "model as the table names it, with [L] or [S] where a table has both selections"),
    "row": ("string", "method, as the table names it"),
    "row_id": ("string", "id of the row, which never changes"),
    "layers_removed": ("string", "layers removed of all layers, n/N, or the share that the paper prints"),
    "column": ("string", "column, as the table names it"),
    "column_id": ("string", "id of the column, which never changes"),
    "value": ("double", "measured value as the table shows it: accuracies in percent, perplexities per token"),
    "stderr": ("double", "standard error of the value in its unit; items are treated as independent"),
    "items": ("int64", "items or sequences that the value is over; empty for derived columns"),
    "reported": ("double", "number that the paper prints in this cell"),
    "status": ("string", "measured; match or differs beside a printed number; else why there is no value"),
    "status_id": ("string", "id of the status"),
    "recipe": ("string", "hash of the recipe behind the row: `hash` in recipes.jsonl, `recipe` in records/"),
    "benchmark": ("string", "benchmark behind the value: the file's name in records/; empty for derived columns"),
}


def rows(store: Store) -> Iterator[dict]:
    """Yield each cell that has a measured or a reported number, in the tables' order; its keys are `FIELDS`.

    Args:
        store: The records that the tables show.
    """
    for table in registry.targets().values():
        subjects = [*show.published(table, store), PAPER]
        declared = {subject.name: _declared(table, subject, store) for subject in subjects}
        content = show.build(table, store, subjects, claims=False)
        for line in content["rows"]:
            rows_by_key, columns = declared[line["subject"]]
            row = rows_by_key.get((line["model_id"], line["sparsity"], line["method_id"]))
            for label, cell in line["cells"].items():
                if cell["reproduced"] is not None or cell["reported"] is not None:
                    named = (label, content["column_ids"][label])
                    yield _cell(table, line, row, columns.get(label), named, cell, store)


def _declared(table: Table, subject: Subject, store: Store) -> tuple[dict[tuple, Row], dict[str, Column]]:
    rows = {row.key: row for row in table.rows(subject)}
    return rows, {column.label: column for column in coverage.columns(table, store, subject)}


def _cell(
    table: Table, line: dict, row: Row | None, column: Column | None, labels: tuple[str, str], cell: dict, store: Store
) -> dict:
    label, column_id = labels
    record = None
    recipes = [recipe for recipe in ((row.recipe, row.shapes) if row else ()) if recipe is not None]
    if cell["reproduced"] is not None and column is not None and column.benchmark:
        records = (store.get(recipe, column.benchmark) for recipe in recipes)
        record = next((record for record in records if record is not None and record.status == "ok"), None)
    items = record and record.details.get("items", record.details.get("windows"))
    return {
        "paper": table.paper,
        "target": table.target,
        "subject": line["subject"],
        "model": row.model if row else line["model"],
        "group": line["model"],
        "row": line["method"],
        "row_id": line["method_id"],
        "layers_removed": line["sparsity"],
        "column": label,
        "column_id": column_id,
        "value": None if cell["reproduced"] is None else float(cell["reproduced"]),
        "stderr": None if cell["stderr"] is None else float(cell["stderr"]),
        "items": items if isinstance(items, int) else None,
        "reported": None if cell["reported"] is None else float(cell["reported"]),
        "status": cell["status"],
        "status_id": cell["status_id"],
        "recipe": record.recipe_hash if record else recipes[0].hash if recipes else None,
        "benchmark": record and record.benchmark,
    }


def write(lines: list[dict], path: Path = FILE) -> None:
    """Write cells, as `rows` yields them, as a Parquet file with the meaning of each column in its metadata."""
    import pyarrow as arrow
    from pyarrow import parquet

    from common.utils import atomic_files

    schema = arrow.schema(
        [
            arrow.field(name, arrow.type_for_alias(kind), metadata={"about": about})
            for name, (kind, about) in FIELDS.items()
        ]
    )
    with atomic_files.whole(path) as file:
        parquet.write_table(arrow.Table.from_pylist(lines, schema), file, compression="zstd")

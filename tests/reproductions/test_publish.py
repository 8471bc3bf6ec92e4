"""Publishing: what goes, what stays and why; the table of all cells."""

import dataclasses
import json
import re

import numpy as np
import pytest
from pyarrow import parquet
from stored_records import put

from common.records.results import NOWHERE, PUBLISHED, Record, Store
from common.utils.errors import UserError
from common.utils.paths import ROOT
from reproductions import publish
from reproductions.render import cells_parquet
from reproductions.spec import registry, subjects

ROW = registry.get("table1-linearpatch").rows(subjects.TOY)[3]
CLEAN = {"commit": "c" * 40, "dirty": False, "measured_at": "2"}


def measured(store, recipe=ROW.recipe, value=0.5, **fields):
    fields = {"values": {"acc": value}, "stderr": {"acc": 0.1}, "provenance": CLEAN} | fields
    return put(store, recipe, "b", outcomes={"acc": np.arange(4) < 4 * value}, **fields)


@pytest.fixture(scope="module")
def shown():
    return publish.shown_recipes()


@pytest.fixture
def mine(tmp_path, shown, monkeypatch):
    """A user's results; which recipes tables show is looked up once for this file."""
    monkeypatch.setattr(publish, "shown_recipes", lambda: shown)
    return Store(tmp_path / "mine", None)


def told(mine, folder):
    outcomes = publish.run(mine.user, folder)
    return sorted(f"{outcome.record.benchmark} {outcome.verdict}" for outcome in outcomes)


def test_a_result_is_added_then_known_then_replaced(mine, tmp_path):
    folder = tmp_path / "published"
    first = measured(mine)
    assert told(mine, folder) == ["b added"] and told(mine, folder) == [f"b {publish.UNCHANGED}"]
    assert Store(NOWHERE, folder).get(ROW.recipe, "b") == first
    second = measured(mine, value=0.25, provenance=CLEAN | {"measured_at": "3"})
    assert told(mine, folder) == ["b replaced"]
    measured(mine)
    assert told(mine, folder) == ["b older than the published one"]  # a clone where it was not measured again
    store = Store(NOWHERE, folder)
    assert store.get(ROW.recipe, "b") == second
    assert np.array_equal(store.items(ROW.recipe, "b")["acc"], [True, False, False, False])


def test_a_damaged_published_file_is_named_with_its_remedy(mine, tmp_path):
    folder = tmp_path / "published"
    measured(mine)
    told(mine, folder)
    [path] = folder.glob("*/records/b.jsonl")
    path.write_text("<<<<<<< HEAD\n" + path.read_text())
    measured(mine, value=0.25, provenance=CLEAN | {"measured_at": "3"})
    with pytest.raises(UserError, match="line 1 of .*b.jsonl.*restore that file with git"):
        publish.run(mine.user, folder)


def test_a_result_of_another_version_is_left_where_it_is(mine, tmp_path, caplog):
    measured(mine)
    [path] = mine.user.rglob("b.json")
    content = json.loads(path.read_text())
    content["recipe"]["of_another_version"] = 1
    path.write_text(json.dumps(content))
    assert told(mine, tmp_path / "published") == []
    assert path.exists() and "of_another_version" in caplog.text


@pytest.mark.parametrize(
    ("fields", "why", "refused"),
    [
        ({"provenance": CLEAN | {"dirty": True}}, "local changes", True),
        ({"provenance": CLEAN | {"dirty": None, "commit": None}}, "no known commit", True),
        ({"status": "failed", "values": {}, "reason": "r"}, "without a value", False),
        ({"recipe": dataclasses.replace(ROW.recipe, limit=4)}, "quick look", False),
        ({"recipe": dataclasses.replace(ROW.recipe, model="local/mine")}, "no table publishes", False),
    ],
)
def test_what_is_left_out_is_said_with_its_reason(mine, tmp_path, capsys, fields, why, refused, monkeypatch):
    recipe = fields.pop("recipe", ROW.recipe)
    measured(mine, recipe, **fields)
    outcomes = publish.run(mine.user, tmp_path / "published")
    assert why in publish.summary(outcomes) and not (tmp_path / "published").exists()
    assert [outcome.refused for outcome in outcomes] == [refused]
    monkeypatch.setenv("LAYERLAB_RESULTS", str(mine.user))
    monkeypatch.setattr(cells_parquet, "write", lambda rows: None)
    assert publish.main([]) == int(refused)
    assert why in capsys.readouterr().out


@pytest.fixture(scope="module")
def table():
    return parquet.read_table(cells_parquet.FILE)


def test_the_table_of_cells_is_what_the_published_results_give(table, evidence):
    assert table.to_pylist() == list(cells_parquet.rows(evidence.store)), "make publish writes it anew"


def test_a_cell_is_known_by_its_place(table):
    """Tables with both selections have two rows of one method and depth, which `group` tells apart."""
    names = ("target", "subject", "group", "layers_removed", "row_id", "column_id")
    assert table.group_by(list(names)).aggregate([]).num_rows == table.num_rows


def test_a_cell_names_the_record_that_has_its_value(table):
    """Against the records, by hand: a measured value is the record's, accuracies times 100."""
    store, checked = Store(NOWHERE), 0
    for row in table.to_pylist()[::7]:
        if row["benchmark"] is None or row["value"] is None:
            continue
        record = Record(**store.published.get(row["model"], row["recipe"], row["benchmark"]))
        scales = (1, 100, 1e-6, 1e-9, 1e3, 1e15, 1 / 2**30, 1 / 2**20)
        values = [value * scale for value in record.values.values() for scale in scales]
        assert any(row["value"] == pytest.approx(value, rel=1e-9, nan_ok=True) for value in values), row
        checked += 1
    assert checked > 1000


def test_every_column_is_described_in_the_file_and_on_the_page(table):
    page = (PUBLISHED / "README.md").read_text()
    for field in table.schema:
        assert f"| `{field.name}` | {field.metadata[b'about'].decode()} |" in page


def test_the_example_of_the_page_answers_its_question(table, capsys):
    pytest.importorskip("pandas")
    code = re.search(r"```python\n(.*?)```", (PUBLISHED / "README.md").read_text(), re.S)[1]
    exec(code.replace('"reproductions/results', f'"{ROOT}/reproductions/results'))
    lines = capsys.readouterr().out.splitlines()[1:]
    asked = {"target": "table11-linearpatch", "subject": "smollm2-135m-instruct", "column": "PPL AVG"}
    rows = [row for row in table.to_pylist() if row.items() >= asked.items()]
    assert min(rows, key=lambda row: row["value"])["row"] in lines[0] and len(lines) > 5

"""The league: which rows there are, and that one of each kind is measured on the stand-in."""

import itertools
from dataclasses import replace

import pytest

from common.results import Store
from reproductions import measure, registry, runner, settings, show
from reproductions.league import rows

TABLE = registry.get("league")


def test_every_repair_stands_after_every_selection_at_every_number_on_one_budget():
    for subject, counts in (("standin", (2, 3, 4, 5)), (settings.of_model("smollm2-135m-instruct"), (3, 5, 7, 9))):
        found = TABLE.rows(subject)
        names = {(row.sparsity, row.method) for row in found}
        layers = settings.subject(subject).layers
        for count, selection, repair in itertools.product(counts, rows.selections(1), rows.REPAIRS):
            assert (f"{count}/{layers}", rows.name(selection, repair)) in names
        budgets = {str(row.recipe.calibration) for row in found if not row.dense}
        assert len(budgets) == 1
        assert len({row.recipe.hash for row in found}) == len(found) == 1 + 4 * (6 * 11 + 3)
    assert TABLE.rows("paper") == []


def test_its_rows_are_those_of_linearpatchs_table_where_they_say_the_same():
    others = {row.recipe.hash for row in registry.get("table5-linearpatch").rows("standin")}
    shared = {row.method for row in TABLE.rows("standin") if row.recipe.hash in others}
    assert {rows.name("[L]", rows.REFIT), rows.name("[S]", "LinearPatch's A"), "Dense"} <= shared


@pytest.mark.parametrize(
    ("method", "loader", "tokens"),
    [
        (rows.name("[L]", rows.NONE), "Transformers, vLLM, llama.cpp", 0),
        (rows.name("LoRP", rows.GHOSTED), "this project", 4 * 32),
        (rows.name("UIDL", "bias alone (ours)"), "Transformers, vLLM, llama.cpp", 4 * 32),
    ],
)
def test_a_row_says_what_it_cost_and_what_loads_it(method, loader, tokens, tmp_path, monkeypatch):
    row = next(row for row in TABLE.rows("standin") if row.method == method and row.sparsity == "2/16")
    row = replace(row, recipe=replace(row.recipe, calibration=row.recipe.calibration | {"count": 4, "length": 32}))
    columns = [column for column in TABLE.columns_for(settings.STANDIN) if column.benchmark in ("repair", "loadable")]
    assert {column.label for column in columns} == {"calibration tokens", "seconds", "loaded by"}
    table = registry.Table("league", "league", "league", "", lambda *_: [row], lambda _: columns)
    store = Store(tmp_path, None)
    runner.run([table], store, "standin", measure)
    line, _ = show.build(table, store, "standin")["rows"]
    assert line["cells"]["loaded by"]["text"] == loader
    assert line["cells"]["calibration tokens"]["reproduced"] == tokens
    assert line["cells"]["seconds"]["reproduced"] >= 0

"""Reported and measured numbers stand in one row where ids or specifications say that they are of one method."""

import copy
from dataclasses import replace

import pytest

from reproductions.render import show
from reproductions.site import beside, table_grids
from reproductions.site.table_grids import Cell, Grid, Heading, Line, ShownNumber
from reproductions.spec import registry, reported
from reproductions.spec.subjects import PAPER, TOY

TARGETS = ("table5-reassessing", "tableK-reassessing", "tableJ-reassessing", "tableI-reassessing", "tableA3-prunecomp")


@pytest.fixture(scope="module")
def grids(evidence):
    """The grids of a few targets, from the published results."""
    shortened = copy.copy(evidence)
    shortened.__dict__["tables"] = {
        target: (table, subjects, show.build(table, evidence.store, subjects, claims=False))
        for target in TARGETS
        for table, subjects in [(registry.get(target), evidence.subjects[target])]
    }
    return {target: table_grids.grids(shortened, target) for target in TARGETS}


def line(method, name, *numbers, spec=None, dense=False, compared=False):
    shown = [None if number is None else ShownNumber(number) for number in numbers]
    cells = tuple(Cell(reported=value) if compared else Cell(reproduced=value) for value in shown)
    return Line("model", "1/4", name, dense, "", "", cells, id=method, spec=spec)


def two(printed, measured, printed_columns=("acc",), measured_columns=("acc",)):
    """The grids of the paper and of another model; columns: ids."""
    headings = [tuple(Heading(name, f"{name} here") for name in names) for names in (printed_columns, measured_columns)]
    return [
        Grid(TOY, "toy model", "published", False, headings[1], tuple(measured)),
        Grid(PAPER, "the paper's models", "no", True, headings[0], tuple(printed)),
    ]


def rows(metric):
    def text(entry):
        return entry and (entry.cell.reported or entry.cell.reproduced).text

    return [(row.label, row.printed, [text(entry) for entry in row.entries]) for row in metric.rows]


def test_rows_correspond_by_id_whatever_they_are_called():
    printed = [line("cut", "The cut", "1", compared=True), line("other", "Same name", "2", compared=True)]
    measured = [line("cut", "No repair", "3"), line("third", "Same name", "4")]
    [metric] = beside.metrics(two(printed, measured))
    assert rows(metric) == [
        ("No repair", ("The cut",), ["1", "3"]),
        ("Same name", (), ["2", None]),
        ("Same name", (), [None, "4"]),
    ]


def test_rows_correspond_by_specification_where_the_paper_has_a_name_of_its_own():
    printed = [line("ours", "Ours", "1", spec=("a", 3), compared=True), line("x", "X", "2", compared=True)]
    measured = [line("a[3]", "A, three layers", "3", spec=("a", 3)), line("a[4]", "A, four layers", "4", spec=("a", 4))]
    [metric] = beside.metrics(two(printed, measured))
    assert rows(metric)[0] == ("A, three layers", ("Ours",), ["1", "3"])
    assert [row.label for row in metric.rows] == ["A, three layers", "X", "A, four layers"]


def test_two_rows_of_one_model_with_one_specification_keep_their_rows():
    printed = [line(name, name, "1", spec="same", compared=True) for name in ("first", "second")]
    [metric] = beside.metrics(two(printed, [line("m", "M", "3", spec="same")]))
    assert rows(metric) == [("M", ("first",), ["1", "3"]), ("second", (), ["1", None])]


def test_columns_correspond_by_id_and_shares_are_said():
    grids = two([line("a", "A", "0.5", compared=True)], [line("a", "A", "7", "50")], ("acc",), ("ppl", "acc"))
    measured, printed = grids
    headings = (Heading("ppl", "acc"), Heading("acc", "accuracy of 6", unit="%"))
    [metric] = beside.metrics([table_grids.Grid(**vars(measured) | {"headings": headings}), printed])
    assert rows(metric) == [("A", (), ["0.5", "50"])] and metric.shares
    assert not beside.metrics(grids)[0].shares


def test_rates_that_each_method_has_of_its_own_share_columns():
    """Six rates of three methods are two columns, not six, and each cell says its rate."""
    rates = {name: (f"{10 + at}%", f"{20 + at}%") for at, name in enumerate("abc")}
    printed = [replace(line(name, name, rate, compared=True), sparsity=rate) for name in rates for rate in rates[name]]
    [metric] = beside.metrics(two(printed, [line("a", "a", "3")]))
    assert metric.sides == (("Reported", 2), ("Measured on toy model", 1))
    assert rows(metric) == [
        ("a", (), ["10%", "20%", "3"]),
        ("b", (), ["11%", "21%", None]),
        ("c", (), ["12%", "22%", None]),
    ]
    assert [entry.sparsity for entry in metric.rows[1].entries if entry] == ["11%", "21%"]


def test_the_recipe_that_a_table_calls_ours_stands_beside_the_measured_one(grids):
    metric = beside.metrics(grids["table5-reassessing"])[0]
    row = next(row for row in metric.rows if "Our" in row.printed)
    number = next(n for n in reported.numbers("reassessing", "5") if (n.method, n.column) == ("Our", "Avg."))
    assert float(row.entries[0].cell.reported.text) == pytest.approx(float(number.value))
    assert row.label == "Reverse-order +lm_head & last 3"
    measured = {entry.grid.subject.model for entry in row.entries[1:] if entry}
    assert {"smollm2-135m-instruct", "standin"} <= measured  # others have not been trained


def test_a_method_printed_without_fine_tuning_stands_beside_the_measured_one(grids):
    metric = beside.metrics(grids["tableK-reassessing"])[0]
    row = next(row for row in metric.rows if "LLM-Pruner[no fine-tuning]" in row.printed)
    assert {entry.grid.compared for entry in row.entries if entry} == {True, False}


@pytest.mark.parametrize("target", ["tableJ-reassessing", "tableI-reassessing", "tableA3-prunecomp"])
def test_a_table_without_such_a_row_has_no_such_view(grids, target):
    assert beside.metrics(grids[target]) == []

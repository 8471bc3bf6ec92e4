"""Prune&Comp's tables: every printed row has a recipe that says what the row says, and lists compare place by place."""

import pytest

from common.results import Record, Store
from reproductions import declare, measure, registry, reported, show
from reproductions.methods import prunecomp as methods
from reproductions.prunecomp import METRICS, TABLES, recipe

NUMBERS = [table.number for table in TABLES if table.draw is None and table.number.lstrip("A").isdigit()]


@pytest.mark.parametrize("number", NUMBERS)
def test_every_printed_row_has_a_recipe_of_its_own_method_and_count(number):
    rows = registry.get(f"table{number}-prunecomp").rows("paper", None)
    by_name = {(row.label, row.sparsity, row.method): row for row in rows}
    for printed in declare.rows("prunecomp", number):
        row = by_name[printed.label, printed.sparsity, printed.method]
        if printed.dense:
            assert row.recipe.selection is None
            continue
        metric, _, variant = printed.method.partition(" ")
        chosen = row.recipe.selection
        assert chosen["metric"] == METRICS[metric]
        assert chosen["count"] == int(printed.sparsity.split("/")[0])
        assert chosen["compensate"] == ("Comp" in variant)
        assert (
            chosen["iterative"] == (variant.startswith(("+Prune", "+Iter")) or "+Iter" in variant)
            or metric == "CosSim(CL)"
        )


@pytest.mark.parametrize("number", NUMBERS)
def test_the_standin_has_the_same_methods(number):
    table = registry.get(f"table{number}-prunecomp")
    ours = {row.method for row in table.rows("standin", None)} - {"Dense"}
    theirs = {row.method for row in table.rows("paper", None)} - {"Dense"}
    assert ours == theirs or number == "A6"  # other sizes
    assert all(row.recipe for row in table.rows("standin", None))


def test_code_and_paper_differ_in_calibration_and_share_the_rest():
    paper = recipe("standin", "standin", None, "PPL +Prune&Comp", 5)
    code = recipe("standin", "standin", None, "PPL +Prune&Comp", 5, "code")
    assert (paper.fidelity, code.fidelity) == ("paper", "code")
    assert code.calibration["count"] == 2 * paper.calibration["count"]
    assert code.selection["calibration"]["sampler"] == "lines"
    assert "calibration" not in paper.selection


def test_printed_lists_are_read_in_order():
    assert methods.printed_list("A3", "LLaMA-3-8B", "5/32", "Taylor+ +Prune&Comp") == [29, 28, 4, 25, 23]
    assert len(methods.printed_list("A3", "LLaMA-3-8B", "7/32", "CosSim(BI)")) == 9
    assert methods.printed_list("A3", "LLaMA-3-8B", "3/32", "PPL") == []


def test_a_removed_list_is_held_against_the_printed_one_place_by_place(tmp_path):
    table = registry.get("tableA3-prunecomp")
    row = next(
        r for r in table.rows("paper", None) if (r.label, r.method) == ("LLaMA-3-8B", "PPL") and r.sparsity == "5/32"
    )
    removed = [10, 11, 9, 8, 12]  # printed: 10, 11, 8, 9, 12
    store = Store(tmp_path, published=None)
    for name, values in (("removed", {"count": 5}), ("removed-order", {str(i): x for i, x in enumerate(removed, 1)})):
        record = Record(row.recipe.__dict__, row.recipe.hash, name, "ok", values=values, details={"removed": removed})
        store.put(record, row.recipe)
    shown = show.build(table, store, "paper", models=["llama-3-8b"])
    line = next(r for r in shown["rows"] if (r["method"], r["sparsity"]) == ("PPL", "5/32"))
    assert line["cells"]["removed layers"]["text"] == "10 11 9 8 12"
    assert [line["cells"][f"removed {i}"]["status"] for i in range(1, 6)] == [
        "match",
        "match",
        "differs",
        "differs",
        "match",
    ]


def test_rp_is_the_ratio_of_averages_of_every_printed_row():
    cells = reported.cells("prunecomp", "2")
    for (model, sparsity, method, column), number in cells.items():
        if column == "RP" and method != "Dense":
            dense = cells[model, f"0/{sparsity.split('/')[1]}", "Dense", "AVG"].value
            assert number.value == pytest.approx(100 * cells[model, sparsity, method, "AVG"].value / dense, abs=0.02)


def test_a_recipe_is_carried_out_and_a_shorter_one_starts_from_a_longer(tmp_path):
    made = [recipe("standin", "standin", None, "Mag+ +Prune&Comp", count, samples=2) for count in (3, 2)]
    three, two = (measure.prepare(one) for one in made)
    assert two.details["removed"] == three.details["removed"][:2]
    assert two.details["layer_executions"] == 0  # nothing is searched twice
    assert len(three.model.model.layers) == 13
    values, _, _ = measure.benchmark(three, "removed-order")
    assert list(values.values()) == three.details["removed"]


def test_claims_are_read_from_both_sides():
    table = registry.get("table1-prunecomp")
    cells = reported.cells("prunecomp", "1")

    def printed(*key):
        return cells[key].value if key in cells else None

    settings = list(dict.fromkeys((m, s) for m, s, _, _ in cells if not s.startswith("0/")))
    assert [claim.check(printed, settings) for claim in table.claims] == [True] * 5
    assert [claim.check(lambda *key: None, settings) for claim in table.claims] == [None] * 5
    flipped = {"CosSim(BI) +Prune&Comp": 1e9}
    assert table.claims[0].check(lambda *key: flipped.get(key[2], printed(*key)), settings) is False

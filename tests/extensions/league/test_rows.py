"""The league's further tables: which rows they share with it, and in what alone their own rows differ."""

from itertools import pairwise

import pytest

from extensions.league import distilled, grafts, rows, texts
from extensions.refit.steps import Refit
from reproductions.spec import registry, subjects

SMOLLM = subjects.of_model("smollm2-135m-instruct")
VARIANTS = rows.ABLATION | rows.VARIANTS


def rows_of(target, subject=SMOLLM):
    return registry.get(target).rows(subject)


def hashes(subject, *targets):
    return {row.recipe.hash for target in targets for row in rows_of(target, subject)}


@pytest.mark.parametrize("subject", [SMOLLM, subjects.TOY], ids=["SmolLM2", "toy"])
@pytest.mark.parametrize(
    ("target", "others", "repairs"),
    [
        ("league-answers", ["league", "league-texts"], {rows.PATCHED}),
        ("league-measures", ["league", "league-texts"], set()),
        ("league-texts", ["league"], {rows.REFIT, rows.GRAFT_REFIT}),
        ("league-distilled", ["league", "league-texts"], set(distilled.REPAIRS)),
        ("ablation-league", ["league"], VARIANTS.keys() - {rows.REFIT_FIXED_RIDGE, rows.REFIT}),
        ("ablation-league-seeds", ["league-seeds"], VARIANTS.keys() - {rows.REFIT}),
    ],
)
def test_rows_that_another_table_has_are_measured_once(target, others, repairs, subject):
    table_rows, known = rows_of(target, subject), hashes(subject, *others)
    assert len({row.recipe.hash for row in table_rows}) == len(table_rows)
    own = {row.spec.repair for row in table_rows if not row.dense and row.recipe.hash not in known}
    if subject is subjects.TOY and target in ("league-answers", "league-texts"):
        repairs = set()  # it has no second text
    assert own == repairs
    assert rows_of(target, subjects.PAPER) == []


def test_each_variant_of_the_refit_changes_one_option_of_the_one_before():
    steps = [Refit(**{k: v for k, v in step.items() if k != "method"}) for _, step in rows.ABLATION.values()]
    defaults = {"target": "stream", "towards": "old", "before": True, "held_out": 0, "following": None, "ridge": None}
    options = [
        {name: default if (value := getattr(step, name)) is None else value for name, default in defaults.items()}
        for step in steps
    ]
    changed = [{name for name in one if one[name] != other[name]} for one, other in pairwise(options)]
    assert changed == [{"target"}, {"towards"}, {"before"}, {"following"}, {"ridge"}, {"held_out"}]


def test_a_repair_reads_other_items_of_a_task_for_the_same_layers():
    again = [row.recipe for row in rows_of("league-answers") if row.spec and row.spec.text]
    assert len(again) == 4 and {recipe.calibration["corpus"] for recipe in again} == {"hellaswag-after-500"}
    assert {recipe.selection["calibration"]["corpus"] for recipe in again} == {SMOLLM.text}


def test_rows_with_a_distillation_differ_from_others_in_the_training_alone():
    for sparsity, methods in (("7/30", (distilled.BOTH,)), ("9/30", (distilled.BOTH, distilled.RESIDUAL_BOTH))):
        own = {row.method: row.recipe for row in rows_of("league-distilled") if row.sparsity == sparsity}
        for method in methods:
            trained, refitted = own[method], own[method.replace(rows.DISTILLED_REFIT, rows.REFIT)]
            assert trained.repair["first"] == refitted.repair
            assert (trained.calibration, trained.selection) == (refitted.calibration, refitted.selection)
        alone, both = own[distilled.ALONE], own[distilled.BOTH]
        assert alone.repair == {k: v for k, v in both.repair.items() if k != "first"}


def test_rows_with_a_graft_differ_in_that_alone():
    recipes = {(row.sparsity, row.method): row.recipe for row in rows_of("league-graft")}
    for sparsity in ("8/30", "9/30"):
        methods = (grafts.NONE, grafts.REFIT, grafts.GRAFT, grafts.BOTH)
        none, refit, graft, both = (recipes[sparsity, method] for method in methods)
        assert none.repair is None and graft.repair == {"method": "graft"}
        assert both.repair == refit.repair | {"graft": True}
        assert none.selection == refit.selection == graft.selection == both.selection
    for sparsity in ("3/30", "5/30", "7/30", "8/30", "9/30"):
        left, chosen = (recipes[sparsity, method] for method in (grafts.RESIDUAL_REFIT, grafts.CHOSEN_BOTH))
        assert chosen.selection == left.selection | {"carried": True}
        assert chosen.repair == left.repair | {"graft": True} and chosen.calibration == left.calibration
    assert {method for sparsity, method in recipes if sparsity == "7/30"}.isdisjoint({grafts.NONE, grafts.GRAFT})
    assert rows_of("league-graft", subjects.PAPER) == []


@pytest.mark.parametrize("subject", [SMOLLM, subjects.TOY], ids=["SmolLM2", "toy"])
def test_the_league_has_the_rows_selected_with_grafting_of_its_own_numbers_of_layers(subject):
    league = {(row.sparsity, row.method): row.recipe.hash for row in rows_of("league", subject)}
    for row in rows_of("league-graft", subject):
        if row.spec and row.spec.selection == rows.LEAST_RESIDUAL_GRAFTED and not row.sparsity.startswith("8/30"):
            assert league[row.sparsity, row.method] == row.recipe.hash


def test_rows_of_texts_differ_in_what_the_repair_reads():
    every = {(row.sparsity, row.method): row.recipe for row in rows_of("league-texts")}
    for sparsity in ("7/30", "9/30"):
        plain, *others = (every[sparsity, method] for method in (texts.PLAIN, texts.FROM_ITEMS, texts.BOTH))
        for other, corpus in zip(others, (texts.TASK_TEXT, f"{SMOLLM.text}+{texts.TASK_TEXT}"), strict=True):
            assert other.repair == plain.repair and other.calibration == plain.calibration | {"corpus": corpus}
            assert other.selection == plain.selection | {"calibration": plain.calibration}
    none, left, both, tools = (
        every["9/30", name] for name in (texts.RESIDUAL_NONE, texts.RESIDUAL_BOTH, texts.BOTH, texts.TOOL_DEFAULT)
    )
    carried = every["9/30", rows.name(rows.LEAST_RESIDUAL_GRAFTED, rows.GRAFT)]
    assert none.selection == left.selection and left.selection["shape"] == "set"
    assert (left.repair, left.calibration) == (both.repair, both.calibration)
    assert carried.selection == tools.selection == left.selection | {"carried": True}
    assert tools.repair == left.repair | {"graft": True}
    assert tools.calibration == left.calibration and carried.calibration == none.calibration


@pytest.mark.parametrize("target", ["league-texts", "league-distilled"])
def test_no_task_of_the_average_is_read_and_each_is_asked_whole(target):
    columns = {column.id: column for column in registry.get(target).columns_for(SMOLLM)}
    assert columns[texts.AVERAGE].of == texts.TEST_TASKS and "HeSw" not in columns
    assert not any("@" in columns[task].benchmark for task in texts.TEST_TASKS)

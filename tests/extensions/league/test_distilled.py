"""Rows with a short distillation: each is another league row and the training, from the same text."""

from extensions.league import distilled, rows
from extensions.league.texts import TEST_TASKS
from reproductions.spec import registry, subjects

SMOLLM = subjects.of_model("smollm2-135m-instruct")


def test_rows_differ_from_those_of_the_other_tables_in_the_training_alone():
    others = {row.recipe.hash for target in ("league", "league-texts") for row in registry.get(target).rows(SMOLLM)}
    every = registry.get("league-distilled").rows(SMOLLM)
    assert len(every) == len({row.recipe.hash for row in every}) == 1 + 2 * 4 + 3
    assert {row.spec.repair for row in every if row.recipe.hash not in others} == set(distilled.REPAIRS)
    for sparsity, methods in (("7/30", (distilled.BOTH,)), ("9/30", (distilled.BOTH, distilled.RESIDUAL_BOTH))):
        own = {row.method: row.recipe for row in every if row.sparsity == sparsity}
        for method in methods:
            trained, refitted = own[method], own[method.replace(rows.DISTILLED_REFIT, rows.REFIT)]
            assert trained.repair["first"] == refitted.repair
            assert (trained.calibration, trained.selection) == (refitted.calibration, refitted.selection)
        alone, both = own[distilled.ALONE], own[distilled.BOTH]
        assert alone.repair == {k: v for k, v in both.repair.items() if k != "first"}
    assert registry.get("league-distilled").rows(subjects.PAPER) == []


def test_the_toy_model_reads_its_own_text():
    league = {row.recipe.hash for row in registry.get("league").rows("standin")}
    table_rows = registry.get("league-distilled").rows("standin")
    assert {row.spec.repair for row in table_rows if not row.dense and row.recipe.hash not in league} == set(
        distilled.REPAIRS
    )


def test_tasks_are_asked_whole_as_where_the_other_rows_were_measured():
    benchmarks, others = (
        {column.id: column.benchmark for column in registry.get(target).columns_for(SMOLLM)}
        for target in ("league-distilled", "league-texts")
    )
    assert benchmarks == others and not any("@" in benchmarks[task] for task in TEST_TASKS)

"""The neurons carried over: rows differ in that alone, and the league has those that are chosen with them."""

from extensions.league import grafts, rows
from reproductions.spec import registry, subjects

SMOLLM = subjects.of_model("smollm2-135m-instruct")
TABLE = registry.get("league-graft")


def test_rows_differ_in_what_is_carried_over():
    recipes = {(row.sparsity, row.method): row.recipe for row in TABLE.rows(SMOLLM)}
    for sparsity in ("8/30", "9/30"):
        none, refit, graft, both = (
            recipes[sparsity, method] for method in (grafts.NONE, grafts.REFIT, grafts.GRAFT, grafts.BOTH)
        )
        assert (
            none.repair is None
            and graft.repair == {"method": "graft"}
            and both.repair == refit.repair | {"graft": True}
        )
        assert none.selection == refit.selection == graft.selection == both.selection
        assert len({each.hash for each in (none, refit, graft, both)}) == 4
    for sparsity in ("3/30", "5/30", "7/30", "8/30", "9/30"):
        left, chosen = (recipes[sparsity, method] for method in (grafts.RESIDUAL_REFIT, grafts.CHOSEN_BOTH))
        assert chosen.selection == left.selection | {"carried": True}
        assert chosen.repair == left.repair | {"graft": True} and chosen.calibration == left.calibration
    assert {method for sparsity, method in recipes if sparsity == "7/30"}.isdisjoint({grafts.NONE, grafts.GRAFT})
    assert TABLE.rows(subjects.PAPER) == []


def test_the_league_has_the_rows_of_its_own_numbers_of_layers():
    for subject in (SMOLLM, subjects.TOY):
        league = {(row.sparsity, row.method): row.recipe.hash for row in registry.get("league").rows(subject)}
        for row in TABLE.rows(subject):
            if row.spec and row.spec.selection == rows.LEAST_RESIDUAL_GRAFTED and not row.sparsity.startswith("8/30"):
                assert league[row.sparsity, row.method] == row.recipe.hash

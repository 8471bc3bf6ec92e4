"""The ablation: one option changes from row to row, and rows that the league has are its own."""

from itertools import pairwise

from extensions.league import rows
from extensions.refit.steps import Refit
from reproductions.spec import registry, subjects

VARIANTS = rows.ABLATION | rows.VARIANTS
MODELS = ("standin", subjects.of_model("smollm2-135m-instruct"))


def test_each_variant_changes_one_option_of_the_one_before():
    steps = [Refit(**{k: v for k, v in step.items() if k != "method"}) for _, step in rows.ABLATION.values()]
    defaults = {"target": "stream", "towards": "old", "before": True, "held_out": 0}
    options = [
        {name: default if (v := getattr(s, name)) is None else v for name, default in defaults.items()} for s in steps
    ]
    options = [own | {"following": s.following, "ridge": s.ridge} for own, s in zip(options, steps, strict=True)]
    changed = [{name for name in one if one[name] != other[name]} for one, other in pairwise(options)]
    assert changed == [{"target"}, {"towards"}, {"before"}, {"following"}, {"ridge"}, {"held_out"}]


def test_rows_that_the_league_has_are_measured_once():
    for subject in MODELS:
        league = {row.recipe.hash for row in registry.get("league").rows(subject)}
        drawn = {row.recipe.hash for row in registry.get("league-seeds").rows(subject)}
        table_rows = registry.get("ablation-league").rows(subject)
        shared = {row.method for row in table_rows if row.recipe.hash in league}
        assert shared == {
            "Dense",
            *(rows.name(rows.BLOCK, one) for one in (rows.NONE, rows.REFIT_FIXED_RIDGE, rows.REFIT)),
        }
        assert len({row.recipe.hash for row in table_rows}) == len(table_rows) == 1 + 2 * (1 + len(VARIANTS))
        table_rows = registry.get("ablation-league-seeds").rows(subject)
        assert len({row.recipe.hash for row in table_rows}) == len(table_rows) == 1 + 2 * 5 * len(VARIANTS)
        shared = {row.spec.repair for row in table_rows if not row.dense and row.recipe.hash in drawn}
        assert shared == {rows.REFIT}
    for target in ("ablation-league", "ablation-league-seeds"):
        assert registry.get(target).rows("paper") == []

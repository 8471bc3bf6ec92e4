"""The league's further tables: which rows they share with it, and in what alone their own rows differ."""

from itertools import pairwise

import pytest

from extensions.league import distilled, rows, texts
from extensions.refit.steps import Refit
from reproductions.spec import registry, subjects

SMOLLM = subjects.of_model("smollm2-135m-instruct")
VARIANTS = rows.ABLATION | rows.VARIANTS
FROM_BOTH_TEXTS = (rows.REFIT, rows.GRAFT_REFIT)


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
        ("league-texts", ["league"], {*FROM_BOTH_TEXTS, *map(rows.WITHOUT.format, FROM_BOTH_TEXTS)}),
        ("league-distilled", ["league", "league-texts"], set(distilled.REPAIRS)),
        ("league-questions", ["league", "league-texts"], {rows.REFIT, rows.GHOSTED, rows.DISTILLED_REFIT}),
        ("ablation-league", ["league"], VARIANTS.keys() - {rows.REFIT_FIXED_RIDGE, rows.REFIT}),
        ("ablation-league-seeds", ["league-seeds"], VARIANTS.keys() - {rows.REFIT}),
    ],
)
def test_rows_that_another_table_has_are_measured_once(target, others, repairs, subject):
    table_rows, known = rows_of(target, subject), hashes(subject, *others)
    assert len({row.recipe.hash for row in table_rows}) == len(table_rows)
    own = {row.spec.repair for row in table_rows if not row.dense and row.recipe.hash not in known}
    if subject is subjects.TOY and target in ("league-answers", "league-texts", "league-questions"):
        repairs = set()  # it has no second text
    assert own == repairs
    assert rows_of(target, subjects.PAPER) == []


def test_the_draw_that_the_league_itself_reads_is_not_measured_again():
    known, seed = hashes(SMOLLM, "league"), rows.BUDGET["paper"]["seed"]
    draws = [row for row in rows_of("league-seeds") if not row.dense]
    again = {(row.spec.repair, row.spec.text, row.spec.seed) for row in draws if row.recipe.hash in known}
    assert again == {(repair, rows.FIRST, seed) for repair in (*rows.FROM_BOTH, *rows.FROM_FIRST)}


def test_each_variant_of_the_refit_changes_one_option_of_the_one_before():
    steps = [Refit(**{k: v for k, v in step.items() if k != "method"}) for _, step in rows.ABLATION.values()]
    defaults = {"target": "stream", "towards": "old", "before": True, "held_out": 0, "following": None, "ridge": None}
    options = [
        {name: default if (value := getattr(step, name)) is None else value for name, default in defaults.items()}
        for step in steps
    ]
    changed = [{name for name in one if one[name] != other[name]} for one, other in pairwise(options)]
    assert changed == [{"target"}, {"towards"}, {"before"}, {"following"}, {"ridge"}, {"held_out"}]


@pytest.mark.parametrize("target", ["league-texts", "league-distilled"])
def test_no_task_of_the_average_is_read_and_each_is_asked_whole(target):
    columns = {column.id: column for column in registry.get(target).columns_for(SMOLLM)}
    assert columns[texts.AVERAGE].of == texts.TEST_TASKS and "HeSw" not in columns
    assert not any("@" in columns[task].benchmark for task in texts.TEST_TASKS)

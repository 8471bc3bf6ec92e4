"""Which recipe stands behind every row, pinned: a record is found by its recipe's hash, so none may change by accident.

``python -m tests.reproductions.test_golden`` writes ``golden.csv`` again where a table gains rows or is meant to change.
"""

import csv
from functools import cache
from pathlib import Path

import pytest

from common.pruning.recipe import PARTS, Calibration, Recipe
from common.pruning.steps import ContiguousBlock
from common.records.published import Published
from common.records.results import PUBLISHED
from common.utils.errors import UserError
from reproductions.engine import execute
from reproductions.spec import registry, subjects

GOLDEN = Path(__file__).with_name("golden.csv")
FIELDS = ("target", "subject", "model", "sparsity", "method", "recipe", "shape")
SUBJECTS = ("standin", "paper", *subjects.PUBLISHED_MODELS)


def subject_of(name: str) -> subjects.Subject:
    return subjects.PROFILES[name] if name in subjects.PROFILES else subjects.of_model(name)


def declared(subject: str):
    """Every row that a subject's tables declare, with its target."""
    for target, table in registry.targets().items():
        for row in table.rows(subject_of(subject)):
            yield target, row


def line(target: str, subject: str, row: registry.Row) -> tuple[str, ...]:
    recipe, shape = (recipe_.hash if recipe_ else "" for recipe_ in (row.recipe, row.shapes))
    return target, subject, row.model, row.sparsity, row.method, recipe, shape


def lines(subject: str) -> list[tuple[str, ...]]:
    return sorted({line(target, subject, row) for target, row in declared(subject)})


def pinned() -> list[dict]:
    with GOLDEN.open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def published() -> list[dict]:
    """Every published record."""
    return list(Published(PUBLISHED))


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_row_has_the_recipe_that_it_had(subject, loaded, monkeypatch):
    """With the steps, which spell what is left out, and without, as `list` and `show` build the rows."""
    if not loaded:
        monkeypatch.setattr("common.pruning.recipe._STEPS", {})
    differing = {*lines(subject)} ^ {tuple(row.values()) for row in pinned() if row["subject"] == subject}
    assert not differing, f"if all are meant: python -m tests.reproductions.test_golden; {sorted(differing)}"


def test_every_published_record_lies_where_its_recipe_says():
    records = published()
    assert len(records) > 1000
    for record in records:
        recipe = Recipe(**record["recipe"])
        assert recipe.hash == record["recipe_hash"], record
        assert all(getattr(recipe, part) == record["recipe"][part] for part in PARTS), record


def test_all_published_records_of_a_recipe_are_of_one_model():
    """A search may choose otherwise on another machine; a row whose cells are of two models is no row."""
    chosen = {}
    for record in published():
        for name in {"removed", "halves"} & record["details"].keys():
            chosen.setdefault((record["recipe_hash"], name), set()).add(str(sorted(record["details"][name])))
    assert len(chosen) > 100
    assert {str(place): methods for place, methods in chosen.items() if len(methods) > 1} == {}


def test_every_published_record_is_of_some_row():
    """What a row no longer stands for is found by nobody: it goes when the row changes."""
    hashes = {row[name] for row in pinned() for name in ("recipe", "shape")}
    assert {record["recipe_hash"] for record in published()} <= hashes


def test_a_default_that_is_said_is_the_default_that_is_not():
    entry = {"corpus": "a", "sampler": "lines"}
    gptq = {"method": "gptq", "bits": 4, "group_size": 8, "texts": 1, "tokens": 8, "corpus": "a"}
    window = {"method": "window", "count": 2}
    short = Recipe("small", "paper", selection=window, training=gptq, calibration=entry | {"seed": None})
    spelled = window | {"cosine": "token", "exclude_ends": False}
    whole = Recipe(**vars(short) | {"selection": spelled, "calibration": entry})
    typed = Recipe(**vars(short) | {"selection": ContiguousBlock(2), "calibration": Calibration("a", "lines")})
    assert short == whole == typed and short.hash == whole.hash == typed.hash
    assert Recipe(**vars(short) | {"selection": ContiguousBlock(2, "channel")}).hash != short.hash


def test_a_recipe_of_before_its_steps_is_refused_where_they_spell_it_otherwise(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("common.pruning.recipe._STEPS", {})
        early = Recipe("small", "paper", selection={"method": "window", "count": 2})
    problem = 'selection leaves out defaults; write {"method": "window", "count": 2, "cosine"'
    with pytest.raises(UserError, match=problem):
        execute.prepare(early)


def test_every_declared_and_every_published_recipe_is_read_into_typed_steps():
    rows = [row for name in SUBJECTS for _, row in declared(name)]
    recipes = [recipe for row in rows for recipe in (row.recipe, row.shapes) if recipe]
    recipes += [Recipe(**record["recipe"]) for record in published()]
    by_hash = {recipe.hash: recipe for recipe in recipes}
    assert len(by_hash) > 500
    for recipe in by_hash.values():
        steps = {part: recipe.step(part) for part in PARTS}
        for part, step in steps.items():
            assert (None if step is None else step.to_json()) == getattr(recipe, part), recipe
        assert Recipe(**vars(recipe) | steps).hash == recipe.hash


if __name__ == "__main__":
    with GOLDEN.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(FIELDS)
        for name in SUBJECTS:
            writer.writerows(lines(name))

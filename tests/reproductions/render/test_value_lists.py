"""The lists of values, made from records."""

import dataclasses

from common.records.results import Recipe, Record, Store, publish
from extensions.league import rows as league
from reproductions.render import value_lists
from reproductions.render.evidence import Loaded
from reproductions.spec import registry, subjects

# Of a group of subjects: LaCo's is a mean of the subjects' means, and mmlu's outcomes were not kept at first.
OF_SUBJECTS = {"laco_mmlu@first-500", "mmlu@first-500"}


def test_every_published_mean_has_the_outcomes_that_it_is_the_mean_of(evidence):
    counted = 0
    for record in evidence.store:
        outcomes = evidence.store.items(Recipe(**record.recipe), record.benchmark)
        if outcomes or record.benchmark not in OF_SUBJECTS:
            assert bool(outcomes) == bool(record.status == "ok" and record.stderr), record
        counted += bool(outcomes)
    assert counted > 1000


def test_every_row_has_the_columns_of_the_dictionary(evidence):
    rows = list(value_lists.rows(evidence))
    assert {tuple(row) for row in rows} == {tuple(value_lists.FIELDS)}
    assert all(about for about in value_lists.FIELDS.values())
    refits = [row for row in rows if str(row["repair"]).startswith("refit")]
    assert all("following " in row["repair"] for row in refits)
    assert {row["selection"].partition(":")[0] for row in refits} >= {"bi", "window"}


def test_a_users_record_is_preferred_and_marked(evidence, tmp_path):
    published = next(entry for entry in evidence.store if entry.benchmark == "removed")
    own = dataclasses.replace(published, provenance=published.provenance | {"commit": "0000"})
    Store(tmp_path, None).put(own, Recipe(**published.recipe))
    loaded = Loaded(tmp_path)
    record = loaded.get(Recipe(**published.recipe), "removed")
    assert record.origin == "yours" and record.provenance["commit"] == "0000"
    assert evidence.records[published.recipe_hash]["removed"].origin == "published"
    assert len(list(loaded)) == len(list(evidence.store))


def test_every_record_on_disk_is_loaded_where_it_has_a_value(tmp_path):
    """A directory's and a hub model's have a slash in their names."""
    store = Store(tmp_path / "mine", tmp_path / "published")
    recipes = [Recipe(model, "paper", "w") for model in ("plain", "local/mine", "somebody/small")]
    for recipe in recipes:
        store.put(Record(dict(vars(recipe)), recipe.hash, "b", "failed", {}), recipe)
    publish(tmp_path / "published", [(Record(dict(vars(r)), r.hash, "b", "ok", {}), {}) for r in recipes])
    loaded = Loaded(store.user, tmp_path / "published")
    assert len(list(loaded)) == len(recipes)
    for recipe in recipes:
        assert loaded.get(recipe, "b") == store.get(recipe, "b") and loaded.get(recipe, "b").origin == "published"


def test_steps_are_told_in_one_line():
    nested = {"method": "finetune", "settings": {"last": 3, "keep": None}, "data": {"source": "standin"}}
    assert value_lists.described(nested) == "finetune: settings (last 3, keep None), data (source standin)"
    assert value_lists.described({"method": "sleb"}) == "sleb"
    assert value_lists.described({"corpus": "c4", "count": 8, "seed": None}) == "c4: count 8"


def test_what_removes_parts_of_layers_or_looks_at_blocks_has_its_rows_share(evidence):
    compared = 0
    for subject in (subjects.TOY, subjects.of_model("smollm2-135m-instruct")):
        for target, repairs in (
            ("league", {league.PRUNER, league.SLICEGPT, league.NBL}),
            ("figure-windows-league", set()),
        ):
            for row in registry.get(target).rows(subject):
                needed = row.spec.repair in repairs if row.spec else row.method == "every-window"
                if row.recipe.hash in evidence.records and needed:
                    assert evidence.share(row.recipe.hash) == row.sparsity, row.method
                    compared += 1
    assert compared > 20

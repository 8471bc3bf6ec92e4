"""The lists of values, and the index of the published records."""

import csv
import io
import json

from common.results import PUBLISHED, Recipe, Record, Store
from reproductions import registry, settings, values
from reproductions.evidence import Evidence, Loaded


def indexed(text: str) -> dict[str, dict]:
    lines = csv.DictReader(io.StringIO(text))
    return {f"{e['profile']}/{e['model']}/{e['recipe']}/{e['benchmark']}.json": e for e in lines}


def test_the_index_lists_every_published_record_with_its_values():
    found = indexed(values.INDEX.read_text(encoding="utf-8"))
    on_disk = {path.relative_to(PUBLISHED).as_posix(): path for path in PUBLISHED.glob("*/*/*/*.json")}
    assert found.keys() == on_disk.keys(), "make index writes the index"
    for name, entry in found.items():
        record = json.loads(on_disk[name].read_text())
        spelled = "; ".join(f"{key} {float(value):.6g}" for key, value in record["values"].items())
        assert entry["value"] == (spelled or record["status"]), name
        removed = record["details"].get("removed")
        if removed and isinstance(record["details"].get("layers"), int):
            assert entry["n/N"] == f"{len(removed)}/{record['details']['layers']}", name


def test_every_published_mean_has_the_outcomes_that_it_is_the_mean_of():
    for path in PUBLISHED.glob("*/*/*/*.json"):
        record = json.loads(path.read_text())
        assert path.with_suffix(".npz").exists() == bool(record["status"] == "ok" and record["stderr"]), path


def test_the_index_is_what_the_command_writes():
    assert values.INDEX.read_text(encoding="utf-8") == values.index(Evidence(Loaded(None))), "make index writes it anew"


def test_every_row_has_the_columns_of_the_dictionary():
    rows = list(values.rows(Evidence(Loaded(None))))
    assert {tuple(row) for row in rows} == {tuple(values.FIELDS)}
    assert all(about for about in values.FIELDS.values())
    refits = [row for row in rows if str(row["repair"]).startswith("refit")]
    assert all("following " in row["repair"] for row in refits)
    assert {row["selection"].partition(":")[0] for row in refits} >= {"bi", "window"}


def test_a_users_record_is_preferred_and_told_apart(tmp_path):
    published = next(iter(sorted(PUBLISHED.glob("standin/standin/*/removed.json"))))
    mine = tmp_path / published.relative_to(PUBLISHED)
    mine.parent.mkdir(parents=True)
    mine.write_text(published.read_text().replace('"commit": "', '"commit": "0000'))
    found = Evidence(Loaded(tmp_path))
    record = found.records[published.parent.name]["removed"]
    assert record.origin == "yours" and record.provenance["commit"].startswith("0000")
    alone = Evidence(Loaded(None)).records[published.parent.name]["removed"]
    assert alone.origin == "published" and len(found.records) == len(Evidence(Loaded(None)).records)


def test_every_record_on_disk_is_loaded_where_it_has_a_value(tmp_path):
    """A directory's and a hub model's have a slash in their names."""
    store = Store(tmp_path / "mine", tmp_path / "published")
    recipes = [Recipe(model, "paper", "w") for model in ("plain", "local/mine", "somebody/small")]
    for recipe in recipes:
        for place, status in ((store, "failed"), (Store(store.published, None), "ok")):
            place.put(Record({}, recipe.hash, "b", status, {}), recipe)
    found = Loaded(store.user, store.published)
    assert len(list(found)) == len(recipes)
    for recipe in recipes:
        assert found.get(recipe, "b") == store.get(recipe, "b") and found.get(recipe, "b").origin == "published"


def test_steps_are_told_in_one_line():
    nested = {"method": "finetune", "settings": {"last": 3, "keep": None}, "data": {"source": "standin"}}
    assert values.described(nested) == "finetune: settings (last 3, keep None), data (source standin)"
    assert values.described({"method": "sleb"}) == "sleb"
    assert values.described({"corpus": "c4", "count": 8, "seed": None}) == "c4: count 8"


def test_what_removes_parts_of_layers_or_looks_at_windows_has_its_rows_share():
    found = indexed(values.INDEX.read_text(encoding="utf-8"))
    by_recipe = {name.split("/")[2]: entry["n/N"] for name, entry in found.items()}
    compared = 0
    for subject in (settings.STANDIN, settings.of_model("smollm2-135m-instruct")):
        for target, marks in (("league", ("LLM-Pruner", "SliceGPT", "NBL")), ("figure-windows-league", ("window",))):
            for row in registry.get(target).rows(subject):
                if row.recipe.hash in by_recipe and row.method.endswith(marks):
                    assert by_recipe[row.recipe.hash] == row.sparsity, row.method
                    compared += 1
    assert compared > 20

"""What a table is made for: the paper's models, the toy model, any other model; and the type of numbers in a recipe."""

import dataclasses
import json

import pytest
import torch
from hub_mirror import saved_llama, write_task, write_wikitext
from stored_records import put

from common.models import checkpoint, loading
from common.records.results import Store
from common.utils.errors import UserError
from reproductions.__main__ import main
from reproductions.render import show
from reproductions.spec import registry, reported, shared_recipes
from reproductions.spec import subjects as settings
from reproductions.spec.statuses import REFUSED, REPORTED, TOO_FEW
from reproductions.spec.subjects import PAPER

PRINTED = [table for table in registry.targets().values() if table.number in reported.tables(table.paper)]


@pytest.mark.parametrize("table", PRINTED, ids=lambda table: table.target)
def test_rows_and_columns_of_the_paper_profile_are_the_printed_ones(table):
    rows = [row for row in table.rows(PAPER, None) if not row.extension]
    printed = {key[:3] for key in reported.cells(table.paper, table.number)}
    assert {(row.label, row.sparsity, row.method) for row in rows} == printed and len(rows) == len(printed)
    shown = [column.label for column in table.columns("paper") if not column.hidden]
    assert set(reported.columns(table.paper, table.number)) <= set(shown) and len(shown) == len(set(shown))


@pytest.mark.parametrize("profile", settings.PROFILES)
@pytest.mark.parametrize(
    "table", [table for table in PRINTED if table.paper in ("linearpatch", "laco")], ids=lambda table: table.target
)
def test_an_extension_says_so_and_a_row_without_a_recipe_says_why(table, profile):
    printed = {key[2] for number in reported.tables(table.paper) for key in reported.cells(table.paper, number)}
    for row in table.rows(settings.PROFILES[profile], None):
        assert row.method in printed or row.extension
        assert not row.extension or "(extension)" in row.name
        assert row.recipe or row.status in (REFUSED, TOO_FEW) or (row.method, row.status.id) == ("Dense", REPORTED.id)


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"])
@pytest.mark.parametrize("target", sorted(registry.targets()))
def test_every_target_has_rows_for_any_model(target, name):
    """The paper's rows and data at the paper's shares, with nothing of the toy model's: 7/32 and 9/32 of 30 are 7 and 8."""
    subject = settings.of_model(name)
    table = registry.get(target)
    rows = table.rows(subject)
    if target == "table7-linearpatch" or not rows:  # follows from the shape alone
        return
    for row in rows:
        assert row.model == name and row.label.startswith(subject.label)
        if row.recipe is not None:
            text = row.recipe.canonical_json()
            assert row.recipe.dtype == "bfloat16" and row.recipe.profile == "paper"
            assert "standin" not in text.replace('"source":"standin"', "")  # docstrings stand for instructions
            for part in (row.recipe.calibration or {}, (row.recipe.selection or {}).get("calibration", {})):
                text = part.get("corpus", settings._TEXTS[subject.model])
                assert set(text.split("+")) <= {settings._TEXTS[subject.model], *settings._AT_HAND}
    keys = [(row.label, row.sparsity, row.method) for row in rows]
    assert len(set(keys)) == len(keys)
    assert not any(column.only == "printed" for column in table.columns_for(subject))


def test_shares_are_rounded_and_what_is_said_wins():
    subject = settings.of_model("smollm2-135m-instruct")
    assert subject.counts((9, 32), (7, 32), toy=(5, 4)) == (8, 7)
    for size, counts in (("0.5b", (5, 7)), ("1.5b", (6, 8))):
        qwen = settings.of_model(f"qwen2.5-coder-{size}-instruct")
        assert qwen.counts((7, 32), (9, 32), toy=1) == counts and qwen.text == "wikitext2-tokenised-validation"
    assert subject.counts((7, 32), (7, 32), toy=1) == (7,)  # several that round to one are one
    assert settings.TOY.counts((9, 32), (7, 32), toy=(5, 4)) == (5, 4)
    chosen = settings.of_model("smollm2-135m-instruct", remove=(3, 9))
    assert chosen.counts((9, 32), toy=(5, 4)) == (3, 9)
    rows = registry.get("table1-linearpatch").rows(chosen)
    assert {row.sparsity for row in rows} == {"0/30", "3/30", "9/30"}
    assert sum(row.dense for row in rows) == 1


@pytest.mark.parametrize(
    ("layers", "remove", "message"),
    [
        (30, (29,), "30 layers: 29 of them cannot be removed"),
        (30, (0,), "30 layers: 0 of them cannot be removed; at least one has to be removed$"),
        (30, (-1,), "30 layers: -1 of them cannot be removed; at least one has to be removed$"),
        (1, (), "1 layer: 0 of them cannot be removed; a table's share of so few rounds to none"),
    ],
)
def test_a_number_of_layers_that_cannot_be_removed_is_refused(layers, remove, message):
    subject = dataclasses.replace(settings.of_model("smollm2-135m-instruct", remove=remove), layers=layers)
    with pytest.raises(UserError, match=message):
        registry.get("table1-linearpatch").rows(subject)


def test_the_profile_follows_from_the_model():
    assert settings.of_model("standin") == settings.of_model("toy") == settings.TOY  # both names, one recipe
    assert settings.of_model("smollm2-135m").profile == "paper"
    for name, profile in (("standin", "paper"), ("smollm2-135m", "standin")):
        with pytest.raises(UserError, match="the toy model's tasks are the toy model's alone"):
            settings.of_model(name, profile=profile)


@pytest.fixture
def mirrored(tmp_path, tiny_tokenizer, monkeypatch):
    """A model of somebody's, on a mirror that has one of the nine tasks and the calibration text."""
    monkeypatch.setenv("LAYERLAB_HUB", str(tmp_path / "hub"))
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("LAYERLAB_WORK", str(tmp_path / "work"))
    hub = tmp_path / "hub"
    folder = saved_llama(hub / "models" / "somebody" / "small", tiny_tokenizer, hidden=64, layers=8, seed=0)
    write_wikitext(hub)
    write_task(hub, "piqa", 4)
    monkeypatch.setattr("common.models.files.hub.unreachable_because", lambda *_: "no network")
    few = shared_recipes.CALIBRATION["paper"] | {"length": 48, "count": 4}
    monkeypatch.setitem(shared_recipes.CALIBRATION, "paper", few)
    return folder


@pytest.mark.parametrize("by", ["hub id", "directory"])
def test_a_table_is_made_for_a_model_from_the_hub_and_for_a_directory(by, mirrored, show_json, capsys):
    name = "somebody/small" if by == "hub id" else str(mirrored)
    command = ["table1-linearpatch", "--model", name, "--remove", "2", "--row", "*n*", "--dtype", "float32"]
    assert main(["run", "--no-show", *command]) == 0
    table = show_json(*command)
    own = [row for row in table["rows"] if row["subject"] != "paper"]
    assert {row["sparsity"] for row in own} == {"0/8", "2/8"}
    assert all(row["cells"]["ARC-c"]["status"].startswith("no data: ") for row in own if row["method"] != "LLM-Pruner")
    assert {row["status"] for row in own if row["method"] == "LLM-Pruner"} == {"too few layers: LLM-Pruner spares six"}
    dense = next(row for row in own if row["dense"])
    assert dense["cells"]["AVG"]["reproduced"] == dense["cells"]["PIQA"]["reproduced"]
    assert table["subjects"][0]["over"] == {"AVG": 1} and table["subjects"][0]["over_tasks"] == {"AVG": ["PIQA"]}
    assert dense["cells"]["RP"]["status"] == "the dense model only guesses"  # it is a random one
    assert all(row["cells"].get("PIQA", {}).get("reported") is None for row in own)
    # the same command again measures nothing
    assert main(["run", "--no-show", *command]) == 0
    assert "no data for ARC-c, ARC-e" in capsys.readouterr().err


def test_a_directory_is_known_by_its_weights(tmp_path, tiny_llama, tiny_tokenizer):
    first_folder, second_folder = tmp_path / "a" / "model", tmp_path / "b" / "model"
    checkpoint.save(tiny_llama, tiny_tokenizer, first_folder)
    with torch.no_grad():
        tiny_llama.model.norm.weight.mul_(1.5)
    checkpoint.save(tiny_llama, tiny_tokenizer, second_folder)
    first, second = loading.describe(str(first_folder)), loading.describe(str(second_folder))
    assert first.name == second.name == "local/model" and first.weights != second.weights
    assert first.parameters == sum(p.numel() for p in tiny_llama.parameters())
    with pytest.raises(UserError, match="a/model and .*b/model would both be local/model.*measure one at a time"):
        loading.load("local/model")  # the records of one would have the numbers of the other
    checkpoint.save(tiny_llama, tiny_tokenizer, first_folder)
    assert loading.describe(str(first_folder)).weights == second.weights
    assert loading.resolve("local/model") in (first_folder, second_folder)


def test_directories_of_one_name_are_shown_one_at_a_time_and_one_named_twice_once(
    tmp_path, tiny_llama, tiny_tokenizer, monkeypatch, capsys
):
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "results"))
    for place, factor in (("a", 1.0), ("same", 1.0), ("b", 1.5)):
        with torch.no_grad():
            tiny_llama.model.norm.weight.mul_(factor)
        checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / place / "model")
    command = ["show", "table1-linearpatch", "--remove", "2", "--format", "json"]

    def show(*places):
        return main([*command, *(word for place in places for word in ("--model", str(tmp_path / place / "model")))])

    assert show("a", "b") == 2
    error = capsys.readouterr().err
    assert "a/model and " in error and "b/model would both be local/model in records; rename one, or measure" in error
    loading._DIRECTORIES.clear()
    assert show("a", "a", "same") == 0
    assert [subject["name"] for subject in json.loads(capsys.readouterr().out)["subjects"]] == ["local/model"]


def test_parameters_are_counted_without_reading_a_directorys_weights(tmp_path, tiny_llama, tiny_tokenizer, monkeypatch):
    checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "model")
    name = loading.describe(str(tmp_path / "model")).name
    monkeypatch.setattr(checkpoint, "digest", lambda path: pytest.fail("reads the weights"))
    assert loading.parameters(name) == sum(p.numel() for p in tiny_llama.parameters())


def test_what_is_published_comes_before_the_toy_model(tmp_path):
    """A real model is shown where there are records of its rows, not where those of the dense row are all there is."""
    table, store = registry.get("table1-linearpatch"), Store(tmp_path, None)
    assert [subject.name for subject in show.published(table, store)] == ["standin"]
    dense, pruned, *_ = (row.recipe for row in table.rows(settings.of_model("smollm2-135m-instruct")) if row.recipe)
    for recipe, share in ((dense, 0.64), (pruned, 0.6)):
        assert [subject.name for subject in show.published(table, store)] == ["standin"]
        put(store, recipe, "piqa", {"acc_norm": share}, {"acc_norm": 0.01})
    subjects = show.published(table, store)
    assert [subject.name for subject in subjects] == ["smollm2-135m-instruct", "standin"]
    content = show.build(table, store, subjects)
    assert content["rows"][0]["cells"]["PIQA"]["reproduced"] == pytest.approx(64)
    assert [c["by_subject"].keys() for c in content["claims"]][0] == {"smollm2-135m-instruct", "standin"}

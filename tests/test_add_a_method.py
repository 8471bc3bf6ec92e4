"""The worked examples of docs/add-a-method.md: each is one file of a method that recipes, records and checkpoints know."""

import re
import sys
from pathlib import Path

import pytest
import torch
from tools import measure_missing

import papers
from common import hooks
from common.cli.overview import main
from common.hooks import PATCH_LOADERS, patches
from common.models import checkpoint, loading
from common.models.decoder import Decoder
from common.pruning.pipeline import context_of, run_recipe
from common.pruning.recipe import _STEPS, Recipe, registered_steps
from common.pruning.steps import Given
from common.records.results import Store
from reproductions.engine import execute
from reproductions.render import show
from reproductions.spec.registry import Column, Row, Table
from reproductions.spec.subjects import PAPER

PAGE = Path(__file__).resolve().parents[1] / "docs" / "add-a-method.md"


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """The examples' files among the papers, and their steps registered."""
    (tmp_path / "added").mkdir()
    for name, block in (("spaced", 0), ("channel_means", 2)):
        (tmp_path / "added" / f"{name}.py").write_text(_blocks()[block])
    monkeypatch.setattr("common.pruning.recipe._STEPS", dict(_STEPS))
    monkeypatch.setattr("common.hooks.PATCH_LOADERS", dict(PATCH_LOADERS))
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path / "added")])
    papers.load_steps()
    yield
    for name in ("spaced", "channel_means"):
        sys.modules.pop(f"papers.{name}")


def _blocks():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


def test_the_pages_own_test_passes(examples, make_tiny):
    names = {}
    exec(_blocks()[1], names)
    names["test_spaced_layers_are_removed"](make_tiny)


def test_the_pages_repair_restores_mean_magnitudes_and_is_read_back(examples, make_tiny, ids, reloaded):
    model = make_tiny("llama")
    decoder = Decoder(model)
    before = decoder.run(decoder.embed_tokens(ids), 0, 2)
    after = decoder.run(before, 2, 4)
    repair = registered_steps("repair")["channel-means"]()
    run_recipe(context_of(model, sequences=ids, selection=Given(layers=(2, 3)), repair=repair))
    [patch] = patches(model)
    per_sample = after.abs().mean(1) / before.abs().mean(1)
    assert patch.position == 2
    torch.testing.assert_close(patch.module.weight, per_sample.mean(0))
    hooks.PATCH_LOADERS.pop(patch.kind)  # as in another process
    sys.modules.pop("papers.channel_means")
    reloaded(model, ids, plain=False)


def test_recipe_record_table_and_checkpoint_know_it(
    examples, tmp_path, monkeypatch, tiny_llama, tiny_tokenizer, capsys
):
    tiny_llama.source = {"name": "small", "revision": None}
    monkeypatch.setattr(loading, "load", lambda *a, **k: (tiny_llama, tiny_tokenizer))
    recipe = Recipe("small", "paper", "none", selection={"method": "spaced", "count": 2})
    row, column = Row("small", "small", "2/6", "spaced", recipe), Column("n", "removed", "count")
    table = Table("table9-test", "linearpatch", "9", "", lambda subject, limit: [row], lambda profile: [column])
    store = Store(tmp_path / "records", None)
    monkeypatch.setattr("reproductions.spec.registry._in_type", lambda row, dtype: row)
    assert measure_missing([table], store, PAPER, execute) == 0
    record = store.get(recipe, "removed")
    assert record.details["removed"] == [1, 3]
    assert record.recipe["selection"] == {"method": "spaced", "count": 2, "first": 1}
    assert show.build(table, store, PAPER)["rows"][0]["cells"]["n"]["reproduced"] == 2
    ids = torch.arange(3, 19)[None]
    checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "saved")
    assert torch.equal(checkpoint.load(tmp_path / "saved")[0](ids).logits, tiny_llama(ids).logits)
    assert main("papers", ["--steps"]) == 0
    assert re.search(r"spaced +Select `count` layers at equal distances.*\n +count first=1", capsys.readouterr().out)

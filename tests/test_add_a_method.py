"""The worked example of docs/add-a-method.md: its one file makes a method that recipes, records and checkpoints know."""

import re
import sys
from pathlib import Path

import pytest
import torch
from tools import measure_missing

import papers
from common.cli.overview import main
from common.models import checkpoint, loading
from common.pruning.recipe import _STEPS, Recipe, registered_steps
from common.records.results import Store
from reproductions.engine import execute
from reproductions.render import show
from reproductions.spec.registry import Column, Row, Table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "add-a-method.md"


@pytest.fixture
def spaced(tmp_path, monkeypatch):
    """The example's file among the papers; returns its class."""
    (tmp_path / "added").mkdir()
    (tmp_path / "added" / "spaced.py").write_text(_blocks()[0])
    monkeypatch.setattr("common.pruning.recipe._STEPS", dict(_STEPS))
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path / "added")])
    papers.load_steps()
    yield registered_steps("selection")["spaced"]
    sys.modules.pop("papers.spaced")


def _blocks():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


def test_the_pages_own_test_passes(spaced, make_tiny):
    names = {}
    exec(_blocks()[1], names)
    names["test_spaced_layers_are_removed"](make_tiny)


def test_recipe_record_table_and_checkpoint_know_it(spaced, tmp_path, monkeypatch, tiny_llama, tiny_tokenizer, capsys):
    tiny_llama.source = {"name": "small", "revision": None}
    monkeypatch.setattr(loading, "load", lambda *a, **k: (tiny_llama, tiny_tokenizer))
    recipe = Recipe("small", "paper", "none", selection={"method": "spaced", "count": 2})
    row, column = Row("small", "small", "2/6", "spaced", recipe), Column("n", "removed", "count")
    table = Table("table9-test", "linearpatch", "9", "", lambda subject, limit: [row], lambda profile: [column])
    store = Store(tmp_path / "records", None)
    monkeypatch.setattr("reproductions.spec.registry._in_type", lambda row, dtype: row)
    assert measure_missing([table], store, "paper", execute) == 0
    record = store.get(recipe, "removed")
    assert record.details["removed"] == [1, 3]
    assert record.recipe["selection"] == {"method": "spaced", "count": 2, "first": 1}
    assert show.build(table, store, "paper")["rows"][0]["cells"]["n"]["reproduced"] == 2
    ids = torch.arange(3, 19)[None]
    checkpoint.save(tiny_llama, tiny_tokenizer, tmp_path / "saved")
    assert torch.equal(checkpoint.load(tmp_path / "saved")[0](ids).logits, tiny_llama(ids).logits)
    assert main("papers", ["--steps"]) == 0
    assert re.search(r"spaced +Select `count` layers at equal distances.*\n +count first=1", capsys.readouterr().out)

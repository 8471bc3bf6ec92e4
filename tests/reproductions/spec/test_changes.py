"""A row with a user's changes: another recipe with records of its own, shown beside the unchanged row."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from stored_records import put_outcomes
from tools import status_of

from common.calibration import collect
from common.models.decoder import Decoder
from common.pruning.recipe import Recipe
from common.records.results import Store
from common.utils.errors import UserError
from papers.linearpatch.patch import patch_values
from reproductions.command_line import main
from reproductions.engine import runner
from reproductions.spec import registry
from reproductions.spec import subjects as settings
from reproductions.spec.changes import Changes

TABLE = "table1-linearpatch"


@pytest.mark.parametrize(
    ("changes", "method", "path", "value"),
    [
        (Changes(samples=16), "LinearPatch[S]", ("calibration", "count"), 16),
        (Changes(seed=7), "ShortGPT", ("calibration", "seed"), 7),
        (Changes(text="c4-train"), "LinearPatch[L]", ("calibration", "corpus"), "c4-train"),
        (Changes(alpha=0.9), "LinearPatch[L]", ("repair", "alpha"), 0.9),
    ],
)
def test_a_change_replaces_one_option_and_nothing_else(changes, method, path, value):
    table = registry.get(TABLE)
    before = {(row.sparsity, row.method): row for row in table.rows(settings.TOY)}
    after = {(row.sparsity, row.method): row for row in table.rows(replace(settings.TOY, changes=changes))}
    for key, row in after.items():
        if row.dense:
            assert row == before[key]
        elif row.method == method:
            part, name = path
            recipe = before[key].recipe
            expected = replace(recipe, **{part: {**getattr(recipe, part), name: value}})
            assert row.recipe == expected and row.recipe.hash != recipe.hash
    assert any(row.method == method for row in after.values())


def test_laco_reads_as_many_sentences_and_a_choices_own_text_changes_too():
    sentences = Recipe("m", "paper", calibration={"corpus": "wikipedia-en", "sentences": 10})
    changed = Changes(samples=4, seed=1, text="c4-train").of(sentences)
    assert changed.calibration == {"corpus": "c4-train", "sentences": 4}
    own = {"corpus": "wikitext2-train", "sampler": "lines", "length": 256, "count": 32, "seed": 0}
    selection = {"method": "prunecomp", "metric": "ppl", "count": 3, "iterative": False, "compensate": True}
    recipe = Recipe("m", "paper", selection=selection | {"calibration": own}, calibration=own)
    changed = Changes(samples=8).of(recipe)
    assert changed.selection["calibration"] == changed.calibration == own | {"count": 8}
    assert Changes(alpha=2.0).of(recipe) == recipe  # it has no patch


def test_rows_that_nothing_changes_are_refused_and_none_is_measured(tmp_path):
    store, table = Store(tmp_path, None), registry.get(TABLE)
    subject = replace(settings.TOY, changes=Changes(alpha=0.9))
    titles = {entry.title.split("/16 ")[1] for entry in runner.missing([table], store, subject)}
    assert titles == {"Dense", "LinearPatch[S]", "LinearPatch[L]"}
    with pytest.raises(UserError, match="no row of table1-linearpatch changes with alpha 0.9"):
        runner.missing([table], store, subject, pattern="SLEB")
    with pytest.raises(UserError, match="no row of table1-laco changes"):
        runner.missing([registry.get("table1-laco")], store, subject)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "0"], "--samples 0: nothing would calibrate; use 1 or more"),
        (["--seed", "-1"], "--seed -1: use 0 or more"),
        (["--alpha", "nan"], "--alpha nan scales no patch"),
        (["--alpha", "1"], "--alpha 1 is the patch as it is"),
        (["--text", "wikitxt2-train"], "did you mean 'wikitext2-train'"),
        (["--text", __file__], f"--text {__file__!r} is a file. A table's results are found by the name of a corpus"),
        (["--text", f"ptb-train+{__file__}"], "tools that prune a model take files: `python -m papers.linearpatch`"),
        (["--text", "wikitext2.train"], "unknown corpus 'wikitext2.train'; did you mean 'wikitext2-train'"),
        (["--pictures", "svg,gif"], "unknown form of a picture 'gif'"),
    ],
)
def test_a_change_that_cannot_be_made_is_named(arguments, message, capsys):
    assert status_of(main, ["show", TABLE, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_yours_stands_beside_the_published_with_the_paired_difference(tmp_path, show_json, capsys, monkeypatch):
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path))
    store, table = Store(tmp_path), registry.get(TABLE)
    subject = replace(settings.TOY, changes=Changes(seed=3))
    row, plain = (
        {(row.sparsity, row.method): row for row in table.rows(own)}["4/16", "LinearPatch[S]"]
        for own in (subject, settings.TOY)
    )
    column = next(column for column in table.columns_for(subject) if column.label == "Continue")
    published = store.get(plain.recipe, column.benchmark)
    right = store.items(plain.recipe, column.benchmark)[column.key].astype(bool)
    changed = right.copy()
    changed[np.flatnonzero(~right)[:24]] = True  # 24 of 240 items more
    put_outcomes(store, row.recipe, column.benchmark, {column.key: changed})
    command = [TABLE, "--seed", "3", "--row", "LinearPatch[S]"]
    [content] = show_json(*command)
    [cell] = [r for r in content["rows"] if r["yours"] is not None]
    assert content["origin"] == "published" and cell["column"] == "Continue"
    assert cell["unchanged"] == pytest.approx(100 * published.values[column.key])
    assert cell["difference"] == pytest.approx(100 * 24 / len(right))
    assert cell["interval"][0] > 0  # no item is lost, 24 are won
    assert main(["show", *command]) == 0
    shown = capsys.readouterr().out
    assert "Yours" in shown and "Published" in shown and "+10.00 [+" in shown
    assert main(["show", *command, "--format", "latex"]) == 0
    shown = capsys.readouterr().out
    assert r"\begin{tabular}{lllrrr}" in shown and "& +10.00 [+" in shown


def test_rows_of_both_selections_say_which_and_whose_they_are(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["show", "table5-linearpatch", "--seed", "3", "--row", "*+d"]) == 0
    title, table, note = capsys.readouterr().out.strip().split("\n\n")
    assert " ".join(title.split()).endswith(", on the toy model with seed 3")
    rows = [re.split("  +", line)[:4] for line in table.splitlines()[2:] if line[0] != "─"]
    assert {row[0] for row in rows} == {"toy model [L]", "toy model [S]"} and {row[2] for row in rows} == {"+d"}
    assert len(set(map(tuple, rows))) == len(rows) > 10
    assert note.startswith("No model was named. MODEL= (--model) names one; results are published for SmolLM2")
    assert main(["show", "table5-linearpatch", "--seed", "3", "--row", "*+d", "--model", "toy"]) == 0
    assert "No model was named" not in capsys.readouterr().out


def test_alpha_multiplies_the_patch(tiny_llama):
    crops = torch.randint(3, 320, (4, 40), generator=torch.Generator().manual_seed(7))
    statistics = collect(Decoder(tiny_llama), crops, span=2)
    for kind in ("hadamard", "diagonal", "scalar"):
        once = patch_values(statistics, 2, 4, kind=kind)
        np.testing.assert_allclose(patch_values(statistics, 2, 4, kind=kind, alpha=0.8), 0.8 * once)

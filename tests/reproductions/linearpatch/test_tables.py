"""Table 1: its reported side against the paper's own arithmetic, and a rehearsal of the paper profile without a hub."""

import json
import shutil
from fnmatch import fnmatch

import pytest
from hub_mirror import saved_llama, write_wikitext

from common.calibration import collect, sample_crops
from common.calibration.corpora import joined_ids
from common.models import loading
from common.models.decoder import Decoder
from common.models.files import hub
from common.pruning.selection import best_block
from reproductions.__main__ import main
from reproductions.linearpatch import recipes
from reproductions.spec import comparisons, reported, shape_recipes, shared_recipes
from reproductions.spec.registry import Claim

PAPER_MODEL = ["--profile", "paper", "--model", "llama-2-7b", "--dtype", "float32"]
ON_CPU = ["--device", "cpu", "--no-show"]
TASKS = ("ARC-c", "ARC-e", "BoolQ", "HeSw", "PIQA", "WG", "WSC", "Race-h", "CoPa")


def test_the_reported_table_is_complete():
    """What its numbers give of each other is the audit's."""
    rows = {}
    for number in reported.numbers("linearpatch", "1"):
        rows.setdefault((number.model, number.sparsity, number.variant, number.method), set()).add(number.column)
    assert len(rows) == 35
    for (*_, method), columns in rows.items():
        assert columns == {*TASKS, "AVG", "RP"} | (set() if method == "Dense" else {"Ratio"})


def pruned_share(facts, flag):
    """Per cent of the parameters that LLM-Pruner's official code takes from all but the first four and last two layers."""
    width = facts["hidden"] // facts["heads"]
    keys = facts["kv_heads"] * width
    heads = (keys - int(keys * (1 - flag))) // width
    inner = facts["intermediate"] - int(facts["intermediate"] * (1 - flag))
    group = facts["heads"] // facts["kv_heads"]
    layer = facts["hidden"] * (2 * heads * width * (group + 1) + 3 * inner)
    return 100 * (facts["layers"] - 6) * layer / facts["params"]


def test_llm_pruners_printed_ratios_follow_from_the_registrys_shapes_and_its_recipes():
    names = {label: name for name, (label, _, _) in recipes.PAPER_MODELS.items()}
    ratios = {key: n for key, n in reported.cells("linearpatch", "1").items() if key[2:] == ("LLM-Pruner", "Ratio")}
    assert len(ratios) == 6
    for (label, sparsity, *_), number in ratios.items():
        flag = recipes.PRUNER_RATIOS[names[label], int(sparsity.split("/")[0])]
        share = pruned_share(loading.get(names[label]).facts, flag)
        assert number.value == pytest.approx(share, abs=0.0051), (label, sparsity)


def test_most_settings_are_more_than_half_of_them():
    numbers = {
        ("m", "1", "a", "x"): 1.0,
        ("m", "1", "b", "x"): 1.0,
        ("m", "2", "a", "x"): 1.0,
        ("m", "2", "b", "x"): 2.0,
    }
    claim = Claim("x", "", comparisons.alike("a", "b", ["x", "y"]), enough=comparisons.in_most)

    def check(*settings):
        return claim.by(claim.compare(lambda *key: numbers.get(key), settings))

    assert check(("m", "1")) is True
    assert check(("m", "1"), ("m", "2")) is False  # half of them
    assert check(("m", "3")) is None
    numbers["m", "1", "b", "y"] = 5.0  # a number that only one of them has
    assert check(("m", "1")) is False


@pytest.fixture
def rehearsal(mirror, tmp_path, monkeypatch, tiny_tokenizer):
    """A 32-layer checkpoint and WikiText-2 with the hub's columns in the mirror; records in a folder of their own."""
    folder = saved_llama(tmp_path / "hub" / "models" / "meta-llama" / "Llama-2-7b-hf", tiny_tokenizer, hidden=64)
    write_wikitext(tmp_path / "hub")
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "results"))
    # The same path, fewer tokens
    for entry, count in ((shared_recipes.CALIBRATION, 4), (shared_recipes.SLEB_LINES, 12)):
        monkeypatch.setitem(entry, "paper", {**entry["paper"], "length": 48, "count": count})
    monkeypatch.setitem(shared_recipes.PRUNER_LINES, "paper", {**shared_recipes.PRUNER_LINES["paper"], "length": 8})
    monkeypatch.setattr(recipes, "PRUNER_TEXT", "wikitext2-train")  # whose lines are short
    return folder


def test_the_paper_profile_runs_offline_on_a_mirror(rehearsal, show_json, capsys):
    patterns = ("Dense", "LinearPatch*")
    command = ["table1-linearpatch", *PAPER_MODEL]
    for pattern in patterns:
        assert main(["run", *command, "--row", pattern, *ON_CPU]) == 0
    rows = show_json(*command)["rows"]
    assert {row["model"] for row in rows} == {"LLaMA-2-7B"} and len(rows) == 13
    measured = [row for row in rows if any(fnmatch(row["method"], pattern) for pattern in patterns)]
    assert len(measured) == 5
    for row in measured:
        assert {cell["status"] for cell in row["cells"].values()} <= {"match", "differs", "none"}
        assert row["cells"]["RP"]["reproduced"] > 0 and row["cells"]["RP"]["reported"] > 0
        assert row["cells"]["ARC-c"]["stderr"] is not None

    # The removed window is the one an independent pass finds, and asking again measures nothing.
    model, tokenizer = loading.load("llama-2-7b")
    ids = joined_ids(tokenizer, "wikitext2-train")
    crops = sample_crops(ids, length=48, count=4, seed=2)
    window = best_block(collect(Decoder(model), crops, span=9), 9, exclude_ends=False)
    removed = {}
    for path in rehearsal.parents[3].glob("results/paper/llama-2-7b/*/parameters.json"):
        record = json.loads(path.read_text())
        recipe, selection = record["recipe"], record["recipe"]["selection"] or {}
        if recipe["weights"] != shape_recipes.SHAPE_ONLY and recipe["repair"] and selection.get("count") == 9:
            removed[selection["method"]] = record["details"]["removed"]
    assert removed["window"] == list(range(*window)) and sorted(removed) == ["bi", "window"]
    assert main(["run", *command, "--row", patterns[-1], *ON_CPU]) == 0
    assert "nothing to measure" in capsys.readouterr().err


def test_a_missing_dataset_leaves_its_cells_empty_and_averages_say_what_they_are_over(
    rehearsal, show_json, capsys, monkeypatch
):
    monkeypatch.setattr(hub, "unreachable_because", lambda *_: "no network")
    shutil.rmtree(rehearsal.parents[2] / "datasets" / "baber")
    command = ["table1-linearpatch", *PAPER_MODEL, "--row", "Dense"]
    assert main(["run", *command, *ON_CPU]) == 0
    cells = show_json(*command)["rows"][0]["cells"]
    assert cells["PIQA"]["status"].startswith("no data: could not fetch dataset baber/piqa: no network")
    there = [cells[name]["reproduced"] for name in TASKS if name != "PIQA"]
    assert cells["AVG"]["reproduced"] == pytest.approx(sum(there) / 8)
    assert main(["show", *command]) == 0
    shown = capsys.readouterr().out
    assert "AVG of 8" in shown and "PIQA: no data: could not fetch dataset baber/piqa: no network" in shown

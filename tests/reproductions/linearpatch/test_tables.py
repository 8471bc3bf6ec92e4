"""Table 1: its reported side against the paper's own arithmetic, and a rehearsal of the paper profile without a hub."""

import shutil

import pytest
from hub_mirror import saved_llama

from common.models import loading
from common.models.files import hub
from reproductions.__main__ import main
from reproductions.linearpatch import recipes
from reproductions.spec import comparisons, reported
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
    """A 32-layer checkpoint in the mirror; records in a folder of their own."""
    folder = saved_llama(tmp_path / "hub" / "models" / "meta-llama" / "Llama-2-7b-hf", tiny_tokenizer, hidden=64)
    monkeypatch.setenv("LAYERLAB_RESULTS", str(tmp_path / "results"))
    return folder


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

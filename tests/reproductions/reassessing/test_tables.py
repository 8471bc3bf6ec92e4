"""Reassessing's tables: rows are the printed ones, names of recipes are known, recipes say what the rows say."""

import numpy as np
import pytest
from stored_records import put

from common.evaluation import significance
from common.models import registry as model_registry
from common.pruning.recipe import PARTS
from common.records.results import Store
from common.training.finetuning import Settings
from reproductions.reassessing import TABLES, claims, recipes
from reproductions.reassessing.recipes import fields
from reproductions.reassessing.specs import (
    AT_INTERFACE,
    FULL,
    HEAD,
    LAST3,
    LAST10,
    LORA,
    QLORA,
    ArmSpec,
    again,
    faster,
    of_printed,
)
from reproductions.render import show  # noqa: F401 - steps: those that recipes name
from reproductions.spec import registry, reported, steps, subjects  # noqa: F401 - steps: those that recipes name
from reproductions.spec.registry import Claim
from reproductions.spec.statuses import NOT_REPEATED, REPORTED
from reproductions.spec.subjects import PAPER, PROFILES

BY_NUMBER = {table.number: table for table in TABLES}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.target)
def test_every_name_in_a_recipe_is_known_and_its_settings_fit(table):
    for profile in PROFILES:
        for row in table.rows(PROFILES[profile], None):
            if row.recipe is None:
                assert row.status in (REPORTED, NOT_REPEATED)
                continue
            for part in PARTS:
                row.recipe.step(part)
            for tuned in (row.recipe.training, (row.recipe.selection or {}).get("tune")):
                tuned = (tuned or {}).get("after", tuned)
                assert not tuned or Settings.of(tuned["settings"])


def test_a_share_of_layers_is_shown_where_a_rate_is_printed():
    shown = [PROFILES["paper"], subjects.of_model("toy"), subjects.of_model("smollm2-135m-instruct")]
    ids = [{column.id for column in BY_NUMBER["6"].columns_for(subject)} for subject in shown]
    assert ["share-of-layers" in columns for columns in ids] == [True, False, False]


def test_specifications_become_recipes():
    def setting(arm, name, profile="paper"):
        return fields(ArmSpec("Taylor", arm), 8, profile)["training"]["settings"].get(name)

    assert setting(LORA, "learning_rate") == 1e-5 and setting(faster(LORA), "learning_rate") == 1e-4
    assert setting(faster(LORA), "learning_rate", "standin") == 10 * setting(LORA, "learning_rate", "standin")
    assert setting(HEAD, "last") == 0 and setting(LAST10, "last") == 10
    assert setting(LAST10, "first") is None
    assert (setting(LORA, "seed"), setting(again(LORA), "seed")) == (None, 43)
    assert [setting(AT_INTERFACE, name) for name in ("method", "last", "first")] == ["partial", 3, "cut"]
    assert setting(FULL, "method") == "full" and setting(QLORA, "method") == "qlora"
    assert fields(ArmSpec("BI", LORA, samples=1), 8, "paper")["calibration"]["count"] == 1
    assert fields(ArmSpec("Reverse-order", LAST3, share=0.2), 8, "paper")["training"]["data"]["count"] == 9952
    iterative = fields(ArmSpec("Taylor", LORA, schedule=(4, 8)), 8, "paper")
    assert iterative["selection"]["schedule"] == "1:4:8" and "training" not in iterative
    assert "training" not in fields(ArmSpec("Taylor"), 8, "paper")
    quantized = fields(ArmSpec("Reverse-order", LAST3, quantized=True), 8, "paper")["training"]
    assert quantized["after"] == fields(ArmSpec("Reverse-order", LAST3), 8, "paper")["training"]
    assert fields(ArmSpec("PPL", LORA), 8, "paper")["calibration"]["corpus"] != "wikitext2-test"
    plain = fields(ArmSpec("Reverse-order", LAST3, plain_text=True), 4, "standin")["training"]
    same = fields(ArmSpec("Reverse-order", LAST3), 4, "standin")["training"]
    assert plain["settings"] == same["settings"] and plain["data"]["count"] == same["data"]["count"]
    assert "corpus" in plain["data"] and "source" in same["data"]


def test_printed_variants_stand_for_specifications():
    numbers = [n for table in reported.tables("reassessing") for n in reported.numbers("reassessing", table)]
    known = {n.variant for n in numbers} - {"MMLU +lm_head & last 3"}
    for variant in known - {"", "no fine-tuning", "Alpaca-cleaned +lm_head & last 3"}:
        assert of_printed("Taylor", variant).method == reported.row_name("Taylor", variant)
    assert of_printed("BI", "") == of_printed("BI", "no fine-tuning") == ArmSpec("BI")
    assert of_printed("BI", "Alpaca-cleaned +lm_head & last 3") == ArmSpec("BI", LAST3)
    assert of_printed("Taylor", "1:4:8 +LoRA") == ArmSpec("Taylor", LORA, schedule=(4, 8))
    assert of_printed("BI", "1 sample +LoRA") == ArmSpec("BI", LORA, samples=1)
    assert of_printed("BI", "0.2 +lm_head & last 3") == ArmSpec("BI", LAST3, share=0.2)


@pytest.mark.parametrize(
    ("size", "name"),
    [("paper", "llama-3.1-8b-instruct"), *(("small", f"smollm2-{size}") for size in ("135m-instruct", "360m", "1.7b"))],
)
def test_groups_of_4_bits_divide_the_matrices_that_are_quantized(size, name):
    facts = model_registry.find(name).facts
    assert [facts[width] % recipes.GPTQ[size]["group_size"] for width in ("hidden", "intermediate")] == [0, 0]


def test_a_training_in_two_orders_is_judged_by_both():
    """The interval spans both: of one order alone it has the items' width, which here is nothing."""
    claim = next(claim for claim in BY_NUMBER["M"].claims if claim.id == "head-beats-lora")
    averages = {"Taylor +LoRA": 37.5, "Taylor +LoRA/again": 36.1, "Taylor +lm_head": 36.0}

    def verdicts(known):
        def number(model, sparsity, method, column):
            return known.get(method)

        def replicates(*key):
            value = number(*key)
            return None if value is None else value + np.random.default_rng(1).normal(0, 0.05, significance.REPLICATES)

        (point,), (drawn,) = (claim.compare(cell, [("M", "8/32")]) for cell in (number, replicates))
        least, most = significance.interval(drawn.difference)
        return point.difference, point.verdict(least, most), most - least

    difference, verdict, width = verdicts(averages)
    assert difference == pytest.approx(36.0 - (37.5 + 36.1) / 2) and verdict is False and width > 1.3
    single = {name: value for name, value in averages.items() if "again" not in name}
    assert verdicts(single) == (pytest.approx(-1.5), False, pytest.approx(0, abs=1e-9))
    assert verdicts(averages | {"Taylor +LoRA/again": 35.9})[1] is None


# (table, model, method, layers that go): printed rows of others' whose method is implemented here.
BESIDE = {
    ("4", "LLaMA-3.1-8B-It", "LaCo", 7),
    ("4", "LLaMA-3.1-8B-It", "LLM-Streamline", 7),
    ("4", "LLaMA-3-8B", "DeeperLayers", 8),
    ("4", "LLaMA-3-8B", "FINERCUT", 16),  # halves
    ("5", "LLaMA-3-70B", "ShortGPT", 16),
    *(("6", "LLaMA-3.1-8B", method, n) for method in ("ShortGPT", "LaCo") for n in (4, 7, 13)),
    *(("8", "LLaMA-3.1-8B", method, 7) for method in ("ShortGPT", "LaCo")),
    ("G", "LLaMA-3-8B", "ShortGPT", 7),
    ("H", "Mixtral-8x7B", "UMD", 5),
    *(("I", "CodeQwen1.5-7B-Chat", method, 7) for method in ("ShortGPT", "UIDL", "SLEB")),
}


def test_beside_what_the_paper_took_from_others_stands_what_this_repository_makes_of_it():
    methods = set()
    for number, table in BY_NUMBER.items():
        rows = table.rows(PAPER, None)
        for before, row in zip(rows, rows[1:]):
            if before.status == REPORTED and row.recipe is not None and row.extension:
                name = row.method.removesuffix("/ours")
                assert row.name == f"{name} (extension)"
                assert before.method.startswith(name) and before.sparsity == row.sparsity
                chosen, repair = row.recipe.step("selection"), row.recipe.step("repair")
                if name in ("LLM-Pruner", "SliceGPT"):
                    continue
                if name == "LaCo":
                    removed = model_registry.get(row.model).facts["layers"] - chosen.layers
                    assert removed % (chosen.C - 1) == 0  # whole merges
                else:
                    removed = chosen.count - (repair is not None)  # the trained layer stands in for one more
                methods.add((number, row.label, name, removed))
    assert methods == BESIDE and len(methods) == 18


def test_a_row_beside_a_printed_one_counts_against_the_papers_recipe():
    claim = Claim("x", "", claims.leads("8", ["Ours"], "GSM8K Acc %"))
    cells = {("25%", "Ours"): 0.3, ("19.02%", "ShortGPT/ours"): 0.2, ("20.12%", "SliceGPT/ours"): 0.1}

    def verdict():
        settings = [("m", sparsity) for sparsity, _ in cells]
        return claim.by(claim.compare(lambda model, s, method, column: cells.get((s, method)), settings))

    assert verdict() is True
    cells["20.12%", "SliceGPT/ours"] = 0.4
    assert verdict() is False


def test_a_method_is_held_against_the_others_at_the_nearest_rate():
    settings = [("m", s) for s in ("12.50%", "10%", "20%", "21.88%")]
    printed = {name for number in reported.numbers("reassessing", "6") for _, name in reported.row_names(number)}
    other = sorted(printed - {"Ours"})[0]
    own_averages = {"12.50%": 0.6, "21.88%": 0.5}

    def verdict(other_averages):
        averages = {"Ours": own_averages, other: other_averages}
        claim = Claim("x", "", claims.leads("6", ["Ours"]))
        return claim.by(claim.compare(lambda model, s, method, column: averages.get(method, {}).get(s), settings))

    assert verdict({"10%": 0.55, "20%": 0.45}) is True
    assert verdict({"20%": 0.55}) is False and verdict({"10%": 0.61}) is False
    assert verdict({}) is None
    assert claims.rate("8/32") == claims.rate("25%") == 0.25


def test_shares_are_in_percent_on_models_at_hand_and_as_printed_on_the_papers(tmp_path):
    table, store = registry.get("table1-reassessing"), Store(tmp_path, None)
    subject = subjects.of_model("smollm2-135m-instruct")
    row = next(row for row in table.rows(subject) if not row.dense)
    column = next(column for column in table.columns_for(subject) if column.label == "PIQA")
    put(store, row.recipe, column.benchmark, {"acc": 0.625}, {"acc": 0.0125})
    lines = show.build(table, store, subject, claims=False)["rows"]
    (cell,) = (line["cells"]["PIQA"] for line in lines if line["cells"]["PIQA"]["reproduced"] is not None)
    assert (cell["reproduced"], cell["stderr"]) == (62.5, 1.25)
    dense = show.build(table, store, subjects.PAPER, claims=False)["rows"][0]["cells"]["PIQA"]
    assert 0 < dense["reported"] < 1
    assert {c.scale for c in table.columns_for(subjects.PAPER) if c.key == "acc"} == {1}

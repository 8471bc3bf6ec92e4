"""Measures beside perplexity: rows of the league, and a divergence that a pruned model's own logits give."""

import numpy as np
import pytest
import torch
from stored_records import put_outcomes

from common.evaluation import divergence
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.models import surgery
from common.models.decoder import Decoder
from common.pruning.pipeline import Context
from common.records.results import Recipe, Store
from common.utils.errors import UserError
from extensions.league import measures, rows
from reproductions import measurements
from reproductions.engine import execute
from reproductions.measurements import answers
from reproductions.render import show
from reproductions.spec import registry, subjects

SMOLLM = subjects.of_model("smollm2-135m-instruct")


def test_less_divergence_and_more_agreement_are_better():
    for profile in measures.TEXTS:
        better = {column.id: column.better for column in measures.columns(profile)}
        assert (better[measures.KL], better[measures.SAME]) == ("lower", "higher")


@pytest.mark.parametrize("limit", [None, 2])
def test_divergence_is_from_the_model_that_was_pruned(limit, make_tiny, tiny_tokenizer, monkeypatch):
    measurements.benchmarks()
    original, pruned = make_tiny("llama"), make_tiny("llama")
    surgery.remove_layers(pruned, [1])
    monkeypatch.setattr(answers.loading, "load", lambda name, **_: (original, tiny_tokenizer))
    sequences = torch.randint(3, 300, (5, 16), generator=torch.Generator().manual_seed(1))
    protocol = PROTOCOLS["standin-learning-thin"]
    monkeypatch.setitem(
        PROTOCOLS, protocol.name, type("Protocol", (), {"sequences": staticmethod(lambda *_: sequences)})()
    )
    context = Context(pruned, tiny_tokenizer, Recipe(model="small", profile="paper", limit=limit), 1)
    values, errors, details, outcomes = execute.benchmark(context, f"kl@{protocol.name}")
    kl, same = divergence.from_original(pruned, original, sequences[:limit])
    assert len(Decoder(pruned).layers) < len(Decoder(original).layers) and float(kl.min()) > 0
    assert np.allclose(outcomes["kl"], kl) and np.allclose(outcomes["same_top"], same)
    assert values["kl"] == pytest.approx(float(kl.mean())) and details["windows"] == len(kl)
    assert errors["kl"] == pytest.approx(float(kl.std() / len(kl) ** 0.5))
    with pytest.raises(UserError, match="perplexity protocol"):
        execute.benchmark(context, "kl@no-such")


def test_claims_compare_the_same_questions_written_and_picked(tmp_path):
    """Pruned, the made-up model picks 80 % of what it picked and writes half of what it wrote; repaired, it is nearer."""
    store, table = Store(tmp_path, None), registry.get("league-measures")
    noise = np.random.default_rng(0).normal(0, 0.05, 48)
    picked, written = np.arange(500) < 400, np.arange(500) < 200
    measured = {
        rows.NONE: (1.0, picked & (np.arange(500) % 5 > 0), written & (np.arange(500) % 2 > 0)),
        rows.REFIT: (0.5, picked & (np.arange(500) % 10 > 0), written & (np.arange(500) % 4 > 0)),
        None: (0.0, picked, written),
    }
    for row in table.rows(SMOLLM):
        if row.spec and (row.spec.text or row.spec.repair not in measured):
            continue
        kl, right, wrote = measured[row.spec and row.spec.repair]
        outcomes = {
            "kl@league-wikitext2": {"kl": kl + (noise if kl else 0 * noise)},
            "arc_easy@first-500": {"acc_norm": right},
            "arc_easy_written@first-500": {"exact": wrote, "contains": wrote},
        }
        if row.spec is None or row.sparsity == "7/30":  # the rest was not asked as written
            outcomes["arc_easy"] = {"acc_norm": np.concatenate([right, np.ones(1876, bool)])}
        for benchmark, by_item in outcomes.items():
            put_outcomes(store, row.recipe, benchmark, by_item)
    shown = show.build(table, store, SMOLLM)
    cells = {row["method"]: row["cells"] for row in shown["rows"] if row["sparsity"] in ("0/30", "7/30")}
    judged = {claim["id"].rpartition("/")[2]: claim["judged"][SMOLLM.name] for claim in shown["claims"]}
    assert {name: verdict["verdict"] for name, verdict in judged.items()} == {
        "repairs-nearer-than-none": "supported",
        "refit-nearest": "not tested",
        "written-lost-before-picked": "supported",
        "refit-writes-more": "supported",
    }
    (lost, _) = judged["written-lost-before-picked"]["comparisons"]
    assert lost["difference"] == pytest.approx(100 * (0.5 / 0.8 - 1)), cells

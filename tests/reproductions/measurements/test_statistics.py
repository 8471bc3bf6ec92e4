"""Costs, similarity and theory as benchmarks, on tiny models: against direct computation."""

import pytest
import torch

from common.calibration.similarity import layer_similarity
from common.models import sizes
from common.models.surgery import remove_layers
from common.pruning.pipeline import Context
from common.records.results import Recipe
from common.utils.errors import UserError
from reproductions import measurements
from reproductions.measurements import statistics
from reproductions.measurements.theory import NETWORKS


@pytest.fixture
def prepared(tiny_llama, tiny_tokenizer, monkeypatch):
    sequences = torch.randint(3, 320, (32, 32), generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(statistics, "_test_sequences", lambda _, count: sequences[:count])
    remove_layers(tiny_llama, [4, 2])
    recipe = Recipe("standin", "standin")
    return Context(tiny_llama, tiny_tokenizer, recipe, 0, details={"removed": [4, 2]})


def measure(prepared, name, argument=""):
    return measurements.measure(prepared, f"{name}@{argument}")


def test_statistics_count_what_the_model_holds(prepared):
    values, _, details = measure(prepared, "statistics")
    assert values["parameters"] == sum(p.numel() for p in prepared.model.parameters())
    assert values["multiply_adds"] == sizes.multiply_adds(prepared.model, 64)
    buffers = sum({b.data_ptr(): b.numel() for b in prepared.model.buffers()}.values())
    assert values["memory_mib"] * 2**20 / 4 == pytest.approx(values["parameters"] + buffers)
    assert min(details["seconds"]) <= values["latency_seconds"] <= max(details["seconds"])


def test_multiply_adds_of_experts_are_told_to_be_unknown(prepared, make_tiny):
    prepared.model = make_tiny("mixtral")
    values, _, details = measure(prepared, "statistics")
    assert "multiply_adds" not in values and "experts" in details["status"]


def test_similarity_is_that_of_the_test_sequences(prepared):
    values, _, details = measure(prepared, "similarity", "cosine")
    ids = statistics._test_sequences(prepared, 64).flatten()[:1024].view(4, 256)
    expected = layer_similarity(prepared.decoder, ids, "cosine")
    torch.testing.assert_close(torch.tensor(details["matrix"]).double(), expected, atol=1e-5, rtol=0)
    assert values["mean"] == pytest.approx(float((expected.sum() - 4) / 12), abs=1e-6)


def test_removed_layers_by_place_and_no_costs_without_a_training(prepared):
    assert measure(prepared, "removed-each")[0] == {"1": 4, "2": 2}
    with pytest.raises(UserError, match="no fine-tuning"):
        measure(prepared, "training-cost")


def test_memory_of_a_plain_model_is_sixteen_bits_a_number(prepared):
    numbers = sum(t.numel() for t in (*prepared.model.parameters(), *dict(prepared.model.named_buffers()).values()))
    assert measure(prepared, "held-memory")[0]["held_mib"] == pytest.approx(numbers * 2 / 2**20, rel=0.02)


def test_theory_is_measured_on_toys_and_refuses_other_networks(prepared):
    values, _, details = measure(prepared, "gradients", "toy-post")
    correlations = [seed["rank_correlation"] for seed in details["each_seed"]]
    assert values["rank_correlation"] == pytest.approx(sum(correlations) / len(correlations))
    assert len(details["bound_one"]) == 17 and details["bound_one"][-1] == details["gradient_of_stream_one"][-1]
    assert measure(prepared, "theorems")[0]["deviation_rms"] < 1e-12
    with pytest.raises(UserError, match="unknown network 'toy'"):
        measure(prepared, "gradients", "toy")
    assert "trained" in NETWORKS

"""Measures beside perplexity: rows of the league, and a divergence that a pruned model's own logits give."""

import numpy as np
import pytest
import torch

from common.evaluation import divergence
from common.evaluation.windowed_perplexity import PROTOCOLS
from common.models import surgery
from common.models.decoder import Decoder
from common.pruning.pipeline import Context
from common.records.results import Recipe
from common.utils.errors import UserError
from extensions.league import measures, rows
from reproductions import measurements
from reproductions.engine import execute
from reproductions.measurements import answers
from reproductions.spec import registry, subjects

SMOLLM = subjects.of_model("smollm2-135m-instruct")


def test_rows_are_the_leagues_own():
    league = {row.recipe.hash for target in ("league", "league-texts") for row in registry.get(target).rows(SMOLLM)}
    found = registry.get("league-measures").rows(SMOLLM)
    assert {row.recipe.hash for row in found} <= league and len(found) == 1 + 2 * (len(measures.REPAIRS) + 1)
    assert registry.get("league-measures").rows(subjects.PAPER) == []
    assert not any(row.spec and row.spec.text == rows.BOTH for row in registry.get("league-measures").rows("standin"))


@pytest.mark.parametrize("limit", [None, 2])
def test_divergence_is_from_the_model_that_was_pruned(limit, make_tiny, tiny_tokenizer, monkeypatch):
    measurements.known()
    original, pruned = make_tiny("llama"), make_tiny("llama")
    surgery.remove_layers(pruned, [1])
    monkeypatch.setattr(answers.loading, "load", lambda name, **_: (original, tiny_tokenizer))
    windows = torch.randint(3, 300, (5, 16), generator=torch.Generator().manual_seed(1))
    protocol = PROTOCOLS["standin-learning-thin"]
    monkeypatch.setitem(PROTOCOLS, protocol.name, type("Protocol", (), {"windows": staticmethod(lambda *_: windows)})())
    context = Context(pruned, tiny_tokenizer, Recipe(model="small", profile="paper", limit=limit), 1)
    values, errors, details, outcomes = execute.benchmark(context, f"kl@{protocol.name}")
    kl, same = divergence.of_windows(pruned, original, windows[:limit])
    assert len(Decoder(pruned).layers) < len(Decoder(original).layers) and float(kl.min()) > 0
    assert np.allclose(outcomes["kl"], kl) and np.allclose(outcomes["same_top"], same)
    assert values["kl"] == pytest.approx(float(kl.mean())) and details["windows"] == len(kl)
    assert errors["kl"] == pytest.approx(float(kl.std() / len(kl) ** 0.5))
    with pytest.raises(UserError, match="perplexity protocol"):
        execute.benchmark(context, "kl@no-such")

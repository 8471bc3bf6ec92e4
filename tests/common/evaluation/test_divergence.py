"""Divergence from the original, against full logits and torch's own formula."""

import copy

import pytest
import torch

from common.evaluation import divergence
from common.evaluation.windowed_perplexity import split_into_sequences


@torch.no_grad()
def test_divergence_is_that_of_full_logits(tiny, monkeypatch):
    monkeypatch.setattr(divergence, "HEAD_ROWS", 4)
    monkeypatch.setattr(divergence, "ROWS", {"cpu": 3})
    sequences = split_into_sequences(torch.randint(3, 320, (60,), generator=torch.Generator().manual_seed(5)), 12)
    changed = copy.deepcopy(tiny)
    for parameter in changed.parameters():
        parameter.mul_(1.1)
    means, same = divergence.from_original(changed, tiny, sequences)
    assert means.shape == same.shape == (5,)
    for window, kl, share in zip(sequences, means, same, strict=True):
        p, q = (model(window[None]).logits[0, :-1].double() for model in (tiny, changed))
        both = [logits.log_softmax(-1) for logits in (q, p)]
        expected = torch.nn.functional.kl_div(*both, reduction="batchmean", log_target=True)
        assert float(kl) == pytest.approx(float(expected), rel=1e-3)
        assert float(share) == pytest.approx(float((p.argmax(-1) == q.argmax(-1)).double().mean()))
    assert float(means.min()) > 0


def test_a_model_is_its_own_original(tiny_llama):
    means, same = divergence.from_original(tiny_llama, tiny_llama, torch.arange(3, 15).view(1, -1))
    assert means.tolist() == [0] and same.tolist() == [1]

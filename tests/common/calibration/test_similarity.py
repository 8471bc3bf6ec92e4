"""Similarity between layers: against naive loops over pairs of hidden states."""

import pytest
import torch
from heads import streams

from common.calibration.similarity import layer_similarity
from common.models.decoder import Decoder


def naive_cka(x, y):
    n = len(x)
    centre = torch.eye(n).double() - torch.ones(n, n).double() / n

    def hsic(a, b):
        return torch.trace(a @ centre @ b @ centre)

    k, m = (v.double() @ v.double().T for v in (x, y))
    return float(hsic(k, m) / (hsic(k, k) * hsic(m, m)).sqrt())


def test_matrices_agree_with_pairs_of_hidden_states(make_tiny, ids):
    model = make_tiny("llama")
    flat = [h.flatten(0, 1) for h in streams(model, ids)[1:]]
    cka, cosine = (layer_similarity(Decoder(model), ids, kind) for kind in ("cka", "cosine"))
    for a in range(6):
        for b in range(6):
            assert cka[a, b] == pytest.approx(naive_cka(flat[a], flat[b]), abs=1e-6)
            expected = torch.cosine_similarity(flat[a], flat[b], dim=-1).mean()
            assert cosine[a, b] == pytest.approx(float(expected), abs=1e-6)

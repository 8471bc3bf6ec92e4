"""WRP against the definition of linear CKA, loops over pairs, and planted clusters."""

import numpy as np
import pytest
import torch

from common.baselines.lorp import lorp
from common.baselines.wrp import cluster_count, weight_similarity
from common.models.decoder import Decoder
from common.pruning.pipeline import context_of, run_recipe
from common.utils.errors import UserError

SEVEN = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
SEVEN += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def weight(layer, name):
    return layer.get_submodule(name).weight.detach().double().numpy()


def cka(first, second):
    """By features: |A'B|^2 / (|A'A| |B'B|) of matrices whose rows, one a channel, are centred."""
    first, second = (x - x.mean(0) for x in (first, second))
    norms = [np.linalg.norm(a.T @ b) for a, b in ((first, second), (first, first), (second, second))]
    return norms[0] ** 2 / (norms[1] * norms[2])


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_similarity_is_the_mean_of_both_projections_cka_and_the_cosine_of_scales(kind, make_tiny):
    model = make_tiny(kind)
    layers = model.model.layers
    with torch.no_grad():  # scales that differ, and two layers that write into the same channels
        for place, layer in enumerate(layers):
            layer.mlp.down_proj.weight *= 1 + 0.3 * place
            layer.self_attn.q_proj.weight *= 2 - 0.2 * place
        layers[3].mlp.down_proj.weight.copy_(layers[1].mlp.down_proj.weight.flip(1))
    norms = np.array([[np.linalg.norm(weight(layer, name)) for name in SEVEN] for layer in layers])
    norms -= norms.mean(0)
    got = weight_similarity(Decoder(model))
    for i, one in enumerate(layers):
        for j, other in enumerate(layers):
            both = [cka(weight(one, name), weight(other, name)) for name in (SEVEN[3], SEVEN[6])]
            cosine = norms[i] @ norms[j] / (np.linalg.norm(norms[i]) * np.linalg.norm(norms[j]))
            expected = 1.0 if i == j else (np.mean(both) + cosine) / 2
            assert got[i, j].item() == pytest.approx(expected, abs=1e-6)
            assert (i, j) != (1, 3) or both[1] == pytest.approx(1)  # the order of features does not count


def planted(*sizes, inside=0.9, outside=-0.5):
    alike = torch.block_diag(*(torch.full((size, size), inside - outside) for size in sizes)).double()
    return (alike + outside).fill_diagonal_(1.0)


def gaps(similarity):
    """Of D^-1 A, which has the eigenvalues of one less the normalised Laplacian's."""
    affinity = (similarity.numpy() + 1) / 2
    values = np.sort(1 - np.linalg.eigvals(affinity / affinity.sum(1, keepdims=True)).real)
    return values[2] - values[1], values[3] - values[2]


def test_two_clusters_unless_the_finer_structure_is_the_stronger_beyond_depth():
    assert cluster_count(planted(6, 6)) == 2
    assert cluster_count(planted(4, 4, 4)) == 4  # the gap lies behind the third eigenvalue
    near = torch.tensor([[0.9 ** abs(i - j) for j in range(12)] for i in range(12)], dtype=torch.float64)
    assert cluster_count(near) == 2  # all of it is nearness in depth: nothing is left of either gap
    rng = np.random.default_rng(0)
    for _ in range(20):
        noise = rng.uniform(-0.4, 0.9, (10, 10))
        similarity = torch.from_numpy((noise + noise.T) / 2).fill_diagonal_(1.0)
        reference = similarity.clone()
        for i in range(10):
            for j in range(10):
                reference[i, j] = np.mean([similarity[a, b] for a in range(10) for b in range(10) if a - b == i - j])
        excess = [max(own - other, 0) for own, other in zip(gaps(similarity), gaps(reference), strict=True)]
        assert cluster_count(similarity) == (2 if excess[0] >= excess[1] else 4)


def test_a_recipe_removes_the_layers_that_lorps_allocation_gives_and_reads_no_text(tiny_llama):
    similarity = weight_similarity(Decoder(tiny_llama))
    expected = lorp(similarity, 2, cluster_count(similarity))
    context = context_of(tiny_llama, selection={"method": "wrp", "count": 2})
    run_recipe(context)
    assert context.details["removed"] == expected and len(tiny_llama.model.layers) == 4
    assert context.decoder.executions == 0


@pytest.mark.parametrize("kind", ["mixtral", "phi3"])
def test_layers_without_the_seven_matrices_are_refused(kind, make_tiny):
    with pytest.raises(UserError, match="WRP cannot compare"):
        weight_similarity(Decoder(make_tiny(kind)))

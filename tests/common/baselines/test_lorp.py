"""LoRP against a loop over tokens and against planted clusters; UIDL's angle against its definition."""

import math

import pytest
import torch
from heads import streams

from common.baselines.lorp import locality, lorp, token_similarity
from common.calibration import collect
from common.models.decoder import Decoder
from common.pruning.pipeline import context_of
from common.pruning.recipe import read
from common.pruning.selection import best_block
from common.utils.errors import UserError


def test_similarity_is_the_mean_cosine_of_layer_inputs(tiny, ids):
    x = streams(tiny, ids)
    got = token_similarity(Decoder(tiny), ids, batch_size=1)
    for i in range(6):
        for j in range(6):
            cosines = [torch.dot(a, b) / (a.norm() * b.norm()) for a, b in zip(x[i].flatten(0, 1), x[j].flatten(0, 1))]
            assert got[i, j].item() == pytest.approx(torch.stack(cosines).mean().item(), abs=1e-5)


def blocks(*sizes, inside, outside):
    """A similarity of clusters of these sizes: one number within a cluster, another between two."""
    alike = [torch.full((size, size), value - outside) for size, value in zip(sizes, inside, strict=True)]
    return (torch.block_diag(*alike).double() + outside).fill_diagonal_(1.0)


def test_every_cluster_loses_one_layer_before_the_most_alike_loses_more():
    similarity = blocks(5, 5, inside=(0.7, 0.9), outside=-0.9)
    similarity[2, :5] = similarity[:5, 2] = 0.8  # the most redundant of the first cluster
    similarity[2, 2] = 1.0
    assert lorp(similarity, 1, clusters=2) == [2]
    assert lorp(similarity, 4, clusters=2) == [2, 5, 6, 7]  # equal ones: the earlier first


def test_first_and_last_layer_stay_and_a_cluster_of_one_is_removed_last():
    similarity = blocks(1, 4, 1, inside=(1.0, 0.5, 1.0), outside=-0.9)
    assert sorted(lorp(similarity, 4, clusters=3)) == [1, 2, 3, 4]
    similarity = blocks(3, 3, inside=(0.9, 0.2), outside=-0.9)
    # Layers 0 and 2 stay more alike than 4 and 5, then 0 may not go
    assert lorp(similarity, 4, clusters=2) == [1, 3, 2, 4]


@pytest.mark.parametrize(("mean", "clusters"), [(0.49, 2), (0.55, 3), (0.7, 4)])
def test_locality_sets_the_number_of_clusters(mean, clusters, monkeypatch):
    similarity = blocks(8, inside=(mean,), outside=0.0)
    assert locality(similarity) == pytest.approx(-math.log2(mean))
    seen = []

    def clustered(similarity, number):
        seen.append(number)
        return [list(range(8))]

    monkeypatch.setattr("common.baselines.lorp._clustered", clustered)
    lorp(similarity, 2)
    assert seen == [clusters]


def test_refusals_and_the_recipes_step(tiny_llama, ids):
    similarity = token_similarity(Decoder(tiny_llama), ids)
    context = context_of(tiny_llama, sequences=ids)
    with pytest.raises(UserError, match="cannot remove 5 of 6"):
        read("selection", {"method": "lorp", "count": 5}).choose(context)
    chosen = read("selection", {"method": "lorp", "count": 2}).choose(context)
    assert chosen == lorp(similarity, 2)
    assert context.details["lorp"]["locality"] == round(locality(similarity), 4)


def test_uidls_angle_is_that_of_the_last_tokens(tiny, ids):
    x = streams(tiny, ids)
    statistics = collect(Decoder(tiny), ids, span=2, kinds=("last-token-angle",), batch_size=1)

    def angle(a, b):
        before, after = x[a][:, -1].double(), x[b][:, -1].double()
        return (torch.nn.functional.cosine_similarity(before, after).arccos() / math.pi).mean().item()

    for start in range(4):
        measured = 1 - statistics.cosine("last-token-angle", start, start + 2)
        assert measured == pytest.approx(angle(start, start + 2), abs=1e-6)
    window = best_block(statistics, 2, "last-token-angle")
    assert window[0] == min(range(1, 4), key=lambda a: angle(a, a + 2))
    # what was collected without angles does not pass for their being zero
    assert not collect(Decoder(tiny), ids, span=2).holds([], span=2, kinds=("last-token-angle",))

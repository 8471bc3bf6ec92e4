"""LoRP, locality-aware redundancy pruning (arXiv 2605.27786): select layers from clusters of layers with similar inputs.

S_ij is the mean over tokens of the cosine of X[i] and X[j], the inputs of layers i and j (Eqs. 3, 4). Its locality RLS
= -log2 of the mean S_ij, i < j (Eqs. 5, 6), sets the number of clusters: 2 from 1.0 on, 3 from 0.7 on, else 4 (section
5.1). Spectral clustering of (S + 1) / 2 (Eq. 7) gives the clusters. A layer's redundancy is its mean similarity to the
others of its cluster (Eq. 8). First each cluster, from the front, loses its most redundant layer. Then, until enough
are removed, the cluster whose remaining layers are most similar on average (Eq. 10) loses its next. The first and the
last layer stay.

Written from these formulas. The clustering is scikit-learn's, with k-means of a fixed seed, as in the official code
(github.com/daniel-eai/LoRP-Locality-Aware-Redundancy-Pruning at 234b525), which protects the same layers. A cluster of
fewer than two remaining layers counts as least similar.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.console.progress import track
from common.models.decoder import Decoder
from common.models.removal import check_count
from common.pruning.pipeline import Context
from common.pruning.recipe import Selection, register

# RLS from here on -> clusters; below all of them MOST.
CLUSTERS = ((1.0, 2), (0.7, 3))
MOST = 4


@register("lorp")
@dataclass(frozen=True)
class LoRP(Selection):
    """Select layers from clusters of layers with similar inputs (LoRP)."""

    count: int

    def choose(self, context: Context) -> Sequence[int]:
        """Return the layers to remove."""
        check_count(self.count, context.decoder.num_layers)

        def search() -> list[list[float]]:
            return token_similarity(context.decoder, context.sequences(), **context.pass_options).tolist()

        rows = context.searched("similarity", context.recipe.calibration, search)
        similarity = torch.tensor(rows).double()
        context.details["lorp"] = {"locality": round(locality(similarity), 4)}
        return lorp(similarity, self.count)


@torch.no_grad()
def token_similarity(decoder: Decoder, ids: Tensor, *, batch_size: int = 8, progress: bool = False) -> Tensor:
    """Compute S, the mean cosine of the inputs of every two layers over ``ids`` [samples, tokens]: float64 [N, N].

    The inputs of all layers are held for one batch.
    """
    total: Tensor | float = 0.0
    for batch in track(ids.split(batch_size), "calibration", unit="batch", shown=progress):
        hidden, views = decoder.embed_tokens(batch), []
        for layer in range(decoder.num_layers):
            views.append(torch.nn.functional.normalize(hidden.float(), dim=-1).flatten().to(decoder.device))
            if layer + 1 < decoder.num_layers:
                hidden = decoder.run(hidden, layer, layer + 1)
        flat = torch.stack(views)
        total = total + (flat @ flat.T).double().cpu()
    return (total / ids.numel()).fill_diagonal_(1.0)


def locality(similarity: Tensor) -> float:
    """Compute RLS from S [N, N] (Eqs. 5, 6); infinite if the mean similarity is not positive."""
    upper = similarity[tuple(torch.triu_indices(*similarity.shape, offset=1))]
    mean = upper.mean().item()
    return -math.log2(mean) if mean > 0 else math.inf


def lorp(similarity: Tensor, count: int, clusters: int | None = None) -> list[int]:
    """Return the layers to remove, in order, from S [N, N]; ``clusters`` is their number, None: by the locality."""
    if clusters is None:
        clusters = next((k for least, k in CLUSTERS if locality(similarity) >= least), MOST)
    members = _clustered(similarity, clusters)
    queues = [_by_redundancy(similarity, cluster) for cluster in members]
    removed = [queue.pop(0) for queue in queues if queue][:count]
    while len(removed) < count:
        remaining = [[layer for layer in cluster if layer not in removed] for cluster in members]
        candidates = [k for k, queue in enumerate(queues) if queue]
        removed.append(queues[max(candidates, key=lambda k: _mean_similarity(similarity, remaining[k]))].pop(0))
    return removed


def _clustered(similarity: Tensor, clusters: int) -> list[list[int]]:
    """Return the clusters, by their first layers."""
    from sklearn.cluster import SpectralClustering  # slow to load

    options = {"affinity": "precomputed", "random_state": 0, "assign_labels": "kmeans"}
    labels = SpectralClustering(clusters, **options).fit_predict(((similarity + 1) / 2).numpy())
    members: dict[int, list[int]] = {}
    for layer, label in enumerate(labels.tolist()):
        members.setdefault(label, []).append(layer)
    return list(members.values())


def _by_redundancy(similarity: Tensor, members: Sequence[int]) -> list[int]:
    """Return the layers of a cluster that may be removed, the most redundant first."""

    def redundancy(layer: int) -> float:
        others = [other for other in members if other != layer]
        return similarity[layer, others].mean().item() if others else -math.inf

    return sorted((layer for layer in members if 0 < layer < len(similarity) - 1), key=lambda layer: -redundancy(layer))


def _mean_similarity(similarity: Tensor, layers: Sequence[int]) -> float:
    """Return the mean similarity of every two of some layers."""
    if len(layers) < 2:
        return -math.inf
    pairs = torch.combinations(torch.tensor(layers))
    return similarity[pairs[:, 0], pairs[:, 1]].mean().item()

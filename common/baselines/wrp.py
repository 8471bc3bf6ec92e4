"""WRP, weight-redundancy pruning (Yun and Lim, arXiv 2609.09883): layers chosen from their weights alone.

No text is read and no forward pass is run. For ``o_proj`` and ``down_proj`` the centred Gram matrices G = H W (H W)' of the
output channels (H removes the mean over channels) give each pair of layers a linear CKA (section 3.1, Eqs. 1 and 2):

    s_ij = <G_i, G_j> / (|G_i| |G_j|),   S_proj = the mean of both matrices' s

A layer's seven Frobenius norms (q, k, v, o, gate, up, down), less their mean over the layers, give a cosine S_scale (Eq. 3).
S is the mean of S_proj and S_scale, with a diagonal of ones.

The number of clusters is 2 or 4 (section 3.2, Eqs. 4 and 5). The gaps d_j = l_(j+1) - l_j, j = 2 and 3, between ascending
eigenvalues of the normalised Laplacian of (S + 1) / 2 are compared with those of S_0, in which every entry is the mean of
S at its distance from the diagonal. With e_j = max(d_j - n_j, 0) there are 2 clusters if e_2 >= e_3, else 4. Spectral
clustering and the allocation of removals to clusters are LoRP's (`common.baselines.lorp`).

Written from these formulas; no code was found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.baselines.lorp import lorp
from common.console.progress import track
from common.models.architectures import at_hand
from common.models.decoder import Decoder
from common.models.removal import check_count
from common.pruning.pipeline import Context
from common.pruning.recipe import Selection, register
from common.utils.errors import UserError

EPS = 1e-12
COARSE, FINE = 2, 4  # numbers of clusters


@register("wrp")
@dataclass(frozen=True)
class Wrp(Selection):
    """Select layers from clusters of layers with similar weights (WRP)."""

    count: int

    def choose(self, context: Context) -> Sequence[int]:
        """Return the layers to remove."""
        check_count(self.count, context.decoder.num_layers)
        similarity = weight_similarity(context.decoder, progress=context.progress)
        clusters = cluster_count(similarity)
        context.details["wrp"] = {"clusters": clusters}
        return lorp(similarity, self.count, clusters)


@torch.no_grad()
def weight_similarity(decoder: Decoder, *, progress: bool = False) -> Tensor:
    """Compute S, the similarity of every two layers' weights, float64 [layers, layers], on the CPU.

    One Gram matrix [channels, channels] per layer is held, in float32.

    Raises:
        UserError: an architecture without the seven matrices (mixtures of experts, fused projections).
    """
    spec = decoder.spec
    if len(spec.attention.readers) != 3 or len(spec.mlp.readers) != 2 or spec.inseparable:
        raise UserError(
            f"WRP cannot compare the layers of architecture {decoder.architecture!r}. It reads q, k, v, o, gate, up and "
            "down projections, one matrix each. Use another selection"
        )
    sublayers = [(f"{sublayer.module}.", sublayer) for sublayer in (spec.attention, spec.mlp)]
    names = [f"{path}{name}" for path, sublayer in sublayers for name in (*sublayer.readers, sublayer.writer)]
    norms = [[_weight(layer, name).double().norm().item() for name in names] for layer in decoder.layers]
    scale = torch.tensor(norms, dtype=torch.float64)
    scale = scale - scale.mean(0)
    lengths = scale.norm(dim=1)
    similarity = (scale @ scale.T) / (torch.outer(lengths, lengths) + EPS)
    writers = [f"{path}{sublayer.writer}" for path, sublayer in sublayers]
    by_projection = [
        _cka([_weight(layer, name) for layer in track(decoder.layers, name, shown=progress)]) for name in writers
    ]
    return ((sum(by_projection) / len(by_projection) + similarity) / 2).fill_diagonal_(1.0)


def _weight(layer: nn.Module, name: str) -> Tensor:
    return at_hand(layer).get_submodule(name).weight


def _cka(weights: Sequence[Tensor]) -> Tensor:
    """Return the linear CKA of every two matrices [channels, features], float64 [layers, layers]."""
    grams = []
    for weight in weights:
        centred = weight.double() - weight.double().mean(0)
        grams.append((centred @ centred.T).float().flatten().to(weights[0].device))
    stacked = torch.stack(grams)
    inner = (stacked @ stacked.T).double().cpu()
    lengths = inner.diagonal().sqrt()
    return inner / (torch.outer(lengths, lengths) + EPS)


def cluster_count(similarity: Tensor) -> int:
    """Return the number of clusters that Eq. 5 gives for S [layers, layers]."""
    layers = len(similarity)
    distance = (torch.arange(layers)[:, None] - torch.arange(layers)).abs()
    means = torch.stack([similarity.diagonal(k).mean() for k in range(layers)])
    reference = means[distance].fill_diagonal_(1.0)
    excess = [
        max(gap - reference_gap, 0.0) for gap, reference_gap in zip(_gaps(similarity), _gaps(reference), strict=True)
    ]
    return COARSE if excess[0] >= excess[1] else FINE


def _gaps(similarity: Tensor) -> tuple[float, float]:
    """Return the gaps behind the second and the third eigenvalue of the normalised Laplacian."""
    affinity = ((similarity + 1) / 2).fill_diagonal_(1.0)
    degree = affinity.sum(1).rsqrt()
    laplacian = torch.eye(len(similarity), dtype=similarity.dtype) - degree[:, None] * affinity * degree
    values = torch.linalg.eigvalsh(laplacian)
    return (values[2] - values[1]).item(), (values[3] - values[2]).item()

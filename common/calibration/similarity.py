"""Compare the layers of a model on the same tokens: mean cosine and linear CKA between boundaries."""

import torch
from torch import Tensor

from common.models.decoder import Decoder


@torch.no_grad()
def layer_similarity(decoder: Decoder, ids: Tensor, kind: str = "cka") -> Tensor:
    """Compute the similarity of every two layers' outputs X[1] .. X[N], float64 [N, N] with ones on the diagonal.

    ``cka`` is linear centred kernel alignment over all tokens (Kornblith et al. 2019), <K, L> / (|K| |L|) of the centred
    Gram matrices. It is 1 for outputs that differ by rotation and scale alone, and takes n^2 numbers per layer for n
    tokens, whatever the width. ``cosine`` is the mean over tokens of the cosine along channels.
    """
    hidden, views = decoder.embed_tokens(ids), []
    for layer in range(decoder.num_layers):
        hidden = decoder.run(hidden, layer, layer + 1)
        view = hidden.flatten(0, 1).double()  # [tokens, channels], of which a dot product becomes the similarity
        if kind == "cosine":
            view = torch.nn.functional.normalize(view, dim=-1)
        else:
            view = view - view.mean(0)
            view = view @ view.T
            view = view / torch.linalg.matrix_norm(view)
        views.append(view.flatten())
    flat = torch.stack(views)
    similarity = flat @ flat.T
    return similarity / (ids.numel() if kind == "cosine" else 1)

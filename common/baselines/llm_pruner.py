"""LLM-Pruner (Ma et al. 2023): remove the heads and MLP channels whose weights matter least.

Coupled weights are removed together: a key head with its value head, the query heads that read it and their columns of
`o_proj`; a channel's rows of gate and up with its column of `down_proj`. A group's importance is the sum of |w g| over
its weights, g the gradient of the loss of one batch. Each layer loses the same share of its heads and of its channels
("block-wise", local), in one step, without training; the first four and the last two layers lose nothing.

Rounding is the official code's (github.com/horseee/LLM-Pruner at 128a07d): of C channels C - int(C (1 - ratio)) are
removed, and in attention as many entire heads as these contain. So the removed share is below `ratio` if heads are few.

Deviations: one head is always left. Gradients exist for one layer at a time (`common.pruning.importance.taylor`), in
float32. A mixture of experts, which the official code does not know, loses the same number of channels in every expert,
and keeps a multiple of eight. Of k key heads each counts with the query heads that read it; the official code folds
importances so that query heads h, h + k, h + 2k, ... count towards key head h, which is not how models group them: with
fewer key heads (LLaMA-3, Mistral) it may select others.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from common.models import offload
from common.models.decoder import Decoder
from common.models.layers.widths import channels, key_heads, narrow_to, settle, slice_channels, slice_heads, widths
from common.pruning.importance import taylor
from common.utils.errors import UserError, UserValueError

FIRST, LAST = 4, 2
EXPERT_STEP = 8  # torch's grouped products take experts whose rows are multiples of 16 bytes


def prune(
    model: nn.Module,
    ids: Tensor,
    ratio: float,
    *,
    of_channels: float | None = None,
    progress: bool = False,
) -> dict:
    """Remove ``ratio`` of the heads and channels from all layers but the `FIRST` and the `LAST`, in place.

    ``ids`` [samples, tokens] is the batch for the gradients; the paper takes 10 x 64. ``of_channels`` is another share
    for the channels.

    Returns:
        The pruned layers, and all layers' widths afterwards.

    Raises:
        UserError: a share outside 0..1, or no layer between the first and the last that stay.
    """
    offload.refuse(model, "LLM-Pruner")
    check_layout(model)
    decoder = Decoder(model)
    layers = decoder.num_layers
    for share in (ratio, ratio if of_channels is None else of_channels):
        if not 0 < share < 1:
            raise UserValueError(f"LLM-Pruner takes a share of each layer, 0 < ratio < 1, not {share}")
    _check_spared(layers)
    chosen = range(FIRST, layers - LAST)
    selected: dict[int, tuple[Tensor, Tensor]] = {}

    def choose(layer: int, weights: dict[str, Tensor], gradients: dict[str, Tensor | None]) -> None:
        if layer in chosen:
            importances = scores(decoder.layers[layer], weights, gradients)
            selected[layer] = tuple(
                map(highest, importances, remaining_counts(decoder.layers[layer], ratio, of_channels))
            )

    taylor(decoder, ids, norms=False, micro_batch=len(ids), visit=choose, progress=progress)
    for layer, (heads, inner) in selected.items():
        slice_heads(decoder.layers[layer], heads)
        slice_channels(decoder.layers[layer], inner)
    settle(model)
    return {"layers": list(chosen), "widths": widths(model)}


def _check_spared(layers: int) -> None:
    if layers <= FIRST + LAST:
        raise UserValueError(
            f"LLM-Pruner spares the first {FIRST} and the last {LAST} layers, but the model has {layers}; remove whole layers"
        )


def check_layout(model: nn.Module) -> None:
    """Refuse an architecture whose heads and channels are not laid out as Llama's.

    Raises:
        UserError: the message names the architecture.
    """
    if not Decoder(model).spec.narrows:
        raise UserError(
            f"LLM-Pruner cannot prune architecture {model.config.model_type!r}: its heads and channels are not laid out as "
            "Llama's. Remove whole layers instead"
        )


def as_layers(model: nn.Module, count: int) -> tuple[float, float]:
    """Return the (ratio, of_channels) that remove as many parameters as ``count`` layers have (extension).

    The share of the heads is that of the layers among those that may be pruned, rounded as usual; channels make up for
    the rest.

    Raises:
        UserError: the layers that may be pruned have no more parameters than that.
    """
    layers = Decoder(model).layers
    check_layout(model)
    _check_spared(len(layers))
    pruned, layer = len(layers) - FIRST - LAST, layers[FIRST]
    ratio = count / pruned
    if 0 < ratio < 1:
        attention, mlp = (sum(p.numel() for p in part.parameters()) for part in (layer.self_attn, layer.mlp))
        heads = 1 - remaining_counts(layer, ratio)[0] / key_heads(layer)
        of_channels = (ratio * sum(p.numel() for p in layer.parameters()) - heads * attention) / mlp
        if 0 < of_channels < 1:
            return ratio, of_channels
    raise UserValueError(
        f"LLM-Pruner cannot take as many parameters as {count} layers have out of {pruned} layers; take fewer"
    )


def remaining_counts(layer: nn.Module, ratio: float, of_channels: float | None = None) -> tuple[int, int]:
    """Return the numbers of key heads and of channels that a layer keeps."""
    heads, inner = key_heads(layer), channels(layer)
    size = layer.self_attn.head_dim
    stay = inner - removed(inner, ratio if of_channels is None else of_channels)
    if hasattr(layer.mlp, "experts"):
        stay += -stay % EXPERT_STEP
    return max(heads - removed(heads * size, ratio) // size, 1), max(stay, 1)


def narrow(model: nn.Module, ratio: float) -> None:
    """Prune the shapes alone: the first heads and channels stay, whatever their importance."""
    layers = Decoder(model).layers
    for layer in layers[FIRST : len(layers) - LAST]:
        narrow_to(layer, *remaining_counts(layer, ratio))


def removed(size: int, ratio: float) -> int:
    """Return how many of ``size`` channels are removed, rounded as in the official code."""
    return size - int(size * (1 - ratio))


def highest(importance: Tensor, count: int) -> Tensor:
    """Return the places of the ``count`` highest values along the last dimension, ascending."""
    return importance.topk(count, dim=-1).indices.sort(dim=-1).values


def scores(
    layer: nn.Module, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Compute a layer's importances: of its key heads [k], and of its channels [c], or [experts, c] with experts.

    ``weights`` and ``gradients`` are named as in the layer. Weights without a gradient count as zero.
    """

    def importance(name: str, dims: int | tuple[int, ...]) -> Tensor:
        weight, gradient = weights[name], gradients[name]
        return (torch.zeros_like(weight) if gradient is None else weight * gradient).abs().sum(dims)

    heads = key_heads(layer)
    parts = {"q_proj": 1, "k_proj": 1, "v_proj": 1, "o_proj": 0}
    by_head = sum(importance(f"self_attn.{name}.weight", dim).view(heads, -1).sum(1) for name, dim in parts.items())
    if hasattr(layer.mlp, "experts"):
        by_channel = importance("mlp.experts.gate_up_proj", 2).unflatten(1, (2, channels(layer))).sum(1)
        return by_head, by_channel + importance("mlp.experts.down_proj", 1)
    by_channel = importance("mlp.gate_proj.weight", 1) + importance("mlp.up_proj.weight", 1)
    return by_head, by_channel + importance("mlp.down_proj.weight", 0)

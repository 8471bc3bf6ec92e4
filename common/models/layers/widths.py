"""Layers of different widths: fewer key heads, each with the query heads that read it, and fewer channels in the MLP.

A slice is exact: the layer computes the same as with zeros in the columns of `o_proj` and `down_proj` that belong to
removed parts. transformers derives query, key and value heads from tensor shapes, so the model runs and decodes with a
cache unchanged; but a config has one width for all layers. A mixture of experts loses the same number of channels in
each expert, but different ones.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn

from common.models.architectures import architecture_of, layer_list
from common.models.layers.structure import register_structure


def key_heads(layer: nn.Module) -> int | None:
    """Return the number of key (and value) heads of a layer; None if it has no attention."""
    attention = layer.self_attn
    return None if hasattr(attention, "state") else attention.k_proj.weight.shape[0] // attention.head_dim


def channels(layer: nn.Module) -> int | None:
    """Return the number of intermediate channels of a layer's MLP, or of one expert; None if it has no MLP."""
    if hasattr(layer.mlp, "state"):
        return None
    experts = getattr(layer.mlp, "experts", None)
    return (layer.mlp.down_proj.weight if experts is None else experts.down_proj).shape[-1]


@torch.no_grad()
def slice_heads(layer: nn.Module, heads: Tensor) -> None:
    """Keep only these key heads [k] (ascending), their value heads and all query heads that read them, in place."""
    attention = layer.self_attn
    width, group = attention.head_dim, attention.num_key_value_groups
    keys, queries = _spread(heads, width), _spread(heads, width * group)
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        _keep(getattr(attention, name), rows, dim=0)
    _keep(attention.o_proj, queries, dim=1)


@torch.no_grad()
def slice_channels(layer: nn.Module, channels: Tensor) -> None:
    """Keep only these channels of the MLP, in place: [c] ascending, or [experts, c] with experts."""
    experts = getattr(layer.mlp, "experts", None)
    if experts is None:
        _keep(layer.mlp.gate_proj, channels, dim=0)
        _keep(layer.mlp.up_proj, channels, dim=0)
        _keep(layer.mlp.down_proj, channels, dim=1)
        return
    gate_up, down = experts.gate_up_proj, experts.down_proj  # [experts, 2 inner, channels], [experts, channels, inner]
    rows = torch.cat([channels, channels + down.shape[-1]], dim=1).to(gate_up.device)
    places = torch.arange(len(channels), device=gate_up.device)[:, None]
    matrices = {"gate_up_proj": gate_up[places, rows], "down_proj": down.mT[places, rows[:, : channels.shape[1]]].mT}
    for name, weight in matrices.items():
        setattr(experts, name, nn.Parameter(weight.contiguous(), requires_grad=gate_up.requires_grad))
    experts.intermediate_dim = channels.shape[1]


def _spread(heads: Tensor, width: int) -> Tensor:
    """Heads [k] -> their rows [k * width]."""
    return (heads[:, None] * width + torch.arange(width, device=heads.device)).flatten()


def _keep(linear: nn.Linear, indices: Tensor, dim: int) -> None:
    """Keep these rows (dim 0, with their biases) or columns (dim 1) of a linear layer."""
    weight, indices = linear.weight, indices.to(linear.weight.device)
    linear.weight = nn.Parameter(weight.index_select(dim, indices), requires_grad=weight.requires_grad)
    if dim == 1:
        linear.in_features = len(indices)
        return
    linear.out_features = len(indices)
    if linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias[indices], requires_grad=linear.bias.requires_grad)


def widths(model: nn.Module) -> list[dict[str, int | None]]:
    """Return the number of key heads and of intermediate channels of every layer."""
    return [{"key_heads": key_heads(layer), "channels": channels(layer)} for layer in layer_list(model)]


def settle(model: nn.Module) -> None:
    """Write the width into the config if all layers have the same one; the model is then a plain one.

    Nothing is written if the architecture refuses such a config: for some the heads must divide ``hidden_size``,
    whatever ``head_dim``.
    """
    layer_widths = widths(model)
    if any(width != layer_widths[0] for width in layer_widths):
        return
    attention = layer_list(model)[0].self_attn
    sizes = {
        "head_dim": attention.head_dim,  # no longer hidden_size / num_attention_heads
        "num_key_value_heads": layer_widths[0]["key_heads"],
        "num_attention_heads": layer_widths[0]["key_heads"] * attention.num_key_value_groups,
        "intermediate_size": layer_widths[0]["channels"],
    }
    candidate = copy.deepcopy(model.config)
    try:
        candidate.update(sizes)
        candidate.validate()
    except StrictDataclassError:
        return
    model.config.update(sizes)


def _describe(model: nn.Module) -> list[dict[str, int | None]] | None:
    if not architecture_of(model).narrows:
        return None
    config, layer_widths = model.config, widths(model)
    plain = {"key_heads": config.num_key_value_heads, "channels": config.intermediate_size}
    differs = any(size not in (None, plain[name]) for width in layer_widths for name, size in width.items())
    return layer_widths if differs else None


def narrow_to(layer: nn.Module, heads: int | None, inner: int | None) -> None:
    """Keep the first key heads and channels, for shapes whose weights are loaded later or never.

    None for ``heads`` or ``inner`` means that the layer lacks that sub-layer.
    """
    if heads is not None:
        slice_heads(layer, torch.arange(heads))
    if inner is None:
        return
    experts = getattr(layer.mlp, "experts", None)
    indices = torch.arange(inner)
    slice_channels(layer, indices if experts is None else indices.repeat(experts.num_experts, 1))


def _build(model: nn.Module, description: Sequence[Mapping[str, int]]) -> None:
    for layer, width in zip(layer_list(model), description, strict=True):
        narrow_to(layer, width["key_heads"], width["channels"])


register_structure("widths", _describe, _build, "its layers have different widths, and a config has one for all")

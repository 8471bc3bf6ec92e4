"""Remove one sub-layer, attention or MLP, of a layer, or replace an attention by a linear map.

The layer keeps its class: a removed sub-layer is replaced by a module without weights that adds nothing, and its norms
by identities. So the model runs, decodes with a cache, and loses further layers like any other. In the cache a removed
attention counts the tokens, in one number each, because positions and masks follow from how many the layers have seen.

A config cannot say which sub-layers exist: `common.models.checkpoint` saves and loads such a model; plain code would
initialise the missing weights at random.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from common.models import offload
from common.models.architectures import architecture_of, check_separable, embedding, layer_list
from common.models.layers.structure import register_structure
from common.utils.errors import UserValueError, unknown

ATTENTION, MLP = "attention", "mlp"
SUBLAYERS = (ATTENTION, MLP)


class NoMlp(nn.Module):
    """Stand-in for a removed MLP, which adds nothing. pair: `architectures.Sublayer.returns_pair`."""

    state = "none"

    def __init__(self, pair: bool = False):
        super().__init__()
        self.pair = pair

    def forward(self, hidden_states: Tensor) -> Tensor | tuple[Tensor, None]:
        """Return zeros."""
        zeros = torch.zeros_like(hidden_states)
        return (zeros, None) if self.pair else zeros


class _Counting(nn.Module):
    """Takes an attention's place, and its place in the cache."""

    def __init__(self, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, hidden_states: Tensor, past_key_values=None, **kwargs) -> tuple[Tensor, None]:
        if past_key_values is not None:
            token = hidden_states.new_zeros(*hidden_states.shape[:1], 1, hidden_states.shape[1], 1)
            past_key_values.update(token, token, self.layer_idx)
        return self.added(hidden_states), None


class NoAttention(_Counting):
    """Stand-in for a removed attention, which adds nothing."""

    state = "none"

    def added(self, hidden: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(hidden)


class LinearAttention(_Counting):
    """Linear map of the norm's output in place of an attention: each token sees itself alone (NBL)."""

    state = "linear"

    def __init__(self, layer_idx: int, weight: Tensor, bias: Tensor):
        super().__init__(layer_idx)
        self.weight = nn.Parameter(weight, requires_grad=False)  # [channels out, channels in]
        self.bias = nn.Parameter(bias, requires_grad=False)

    def added(self, hidden: Tensor) -> Tensor:
        """Return the linear map of the hidden states."""
        return nn.functional.linear(hidden, self.weight, self.bias)


def present(model: nn.Module) -> list[tuple[int, str]]:
    """Return (layer, sub-layer) of every attention and MLP that is unchanged, in the order in which they run."""
    sublayers = architecture_of(model).sublayers
    return [
        (number, name)
        for number, layer in enumerate(layer_list(model))
        for name, sublayer in sublayers.items()
        if not hasattr(getattr(layer, sublayer.module or sublayer.writer, None), "state")
    ]


def drop_sublayers(model: nn.Module, sublayers: Iterable[tuple[int, str]]) -> None:
    """Remove ``sublayers``, (layer, kind) each, from the model, in place.

    Raises:
        UserError: a sub-layer that does not exist, or one named twice.
    """
    sublayers = list(sublayers)
    for entry in sublayers:
        _check(model, *entry)
    if len(set(sublayers)) < len(sublayers):
        raise UserValueError(f"cannot drop one sub-layer twice: {sublayers}; name each once")
    for number, name in sublayers:
        if name == ATTENTION:
            nothing = NoAttention(layer_list(model)[number].self_attn.layer_idx)
        else:
            nothing = NoMlp(architecture_of(model).mlp.returns_pair)
        _replace(model, number, name, nothing)


@torch.no_grad()
def linear_attention(model: nn.Module, number: int, weight: Tensor, bias: Tensor) -> None:
    """Replace a layer's attention by a linear map of its norm's output, in place: ``weight`` [out, in] and ``bias`` [out]."""
    _check(model, number, ATTENTION)
    attention = layer_list(model)[number].self_attn
    to = next(attention.parameters())
    _replace(model, number, ATTENTION, LinearAttention(attention.layer_idx, weight.to(to), bias.to(to)))


def _check(model: nn.Module, number: int, name: str) -> None:
    check_separable(model, "changing sub-layers")
    offload.refuse(model, "changing sub-layers")
    if name not in SUBLAYERS:
        raise unknown("sub-layer", name, SUBLAYERS)
    if (number, name) not in present(model):
        raise UserValueError(
            f"the model has no {name} in layer {number}; it has layers 0 to {len(layer_list(model)) - 1}"
        )


def _replace(model: nn.Module, number: int, name: str, module: nn.Module) -> None:
    layer, sublayer = layer_list(model)[number], architecture_of(model).sublayers[name]
    setattr(layer, sublayer.module, module)
    if module.state == "none" and sublayer.norm:
        setattr(layer, sublayer.norm, nn.Identity())
    if sublayer.post is not None:
        setattr(layer, sublayer.post, nn.Identity())


def _describe(model: nn.Module) -> list[dict] | None:
    sublayers = architecture_of(model).sublayers
    changes = []
    for number, layer in enumerate(layer_list(model)):
        for name, sublayer in sublayers.items():
            if state := getattr(getattr(layer, sublayer.module or sublayer.writer, None), "state", None):
                changes.append({"layer": number, "half": name, "state": state})
    return changes or None


def _build(model: nn.Module, description: Sequence[Mapping]) -> None:
    channels = model.config.hidden_size
    for entry in description:
        if entry["state"] == "linear":
            like = embedding(model).weight
            linear_attention(model, entry["layer"], like.new_empty(channels, channels), like.new_empty(channels))
        else:
            drop_sublayers(model, [(entry["layer"], entry["half"])])


register_structure("halves", _describe, _build, "attention or MLP is missing from some of its layers")

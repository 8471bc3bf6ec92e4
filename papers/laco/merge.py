"""RDSC layer merge: the weights when layers l+1 .. l+m collapse into layer l (LaCo, section 2.1, Eq. 1).

    paper:  theta*_l = theta_l + sum_{k=1..m} (theta_{l+k} - theta_l)
    code:   theta*_l = theta_{l+m}, under layer l's own norms

The official notebooks mean Eq. 1 but add each difference to the *current* value, `base += theta_{l+k} - base`, so every
step overwrites the one before and the sum telescopes to the last layer. The two agree for m = 1 only. `code` is that
result without the rounding of the detour. A third rule (extension) separates the effect of merging from that of
removing:

    drop:   theta*_l = theta_l, the followers are removed

What counts as theta (the paper says "all parameters", the notebooks list seven matrices of LLaMA and Baichuan 2):

    weights of attention and MLP     merged, in both; a fused W_pack is one matrix (both rules act on each number alone)
    their biases (Qwen's QKV)        merged, in both: a bias belongs to its matrix
    QK-norms (Qwen3)                 merged, in both: they scale what q_proj and k_proj produce
    experts and router (Mixtral)     merged, in both: expert e with expert e, although layers number experts freely
    the router's bias (DeepSeek-V3)  merged, in both: training sets it, but as a buffer, and the router adds it to its scores
    norms of the residual stream     `paper` merges them ("all parameters"), the others keep layer l's; `norms=` chooses
    Gemma's gains, stored as w of 1 + w    as they are: Eq. 1 gives the same for w as for 1 + w
    attention type, rotary settings  layer l's
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from common.hooks import refuse_patches
from common.models.architectures import layer_list
from common.models.surgery import remove_layers
from common.utils.errors import UserValueError, unknown


def _equation_1(thetas: Sequence[Tensor]) -> Tensor:
    """Eq. 1 on one parameter of the layers l .. l+m; summed in at least float32, where layer l is, and rounded once."""
    base = thetas[0].to(torch.promote_types(thetas[0].dtype, torch.float32))
    total = base.clone()
    for theta in thetas[1:]:
        total += theta.to(base) - base
    return total.to(thetas[0].dtype)


RULES = {
    "paper": _equation_1,
    "code": lambda thetas: thetas[-1].to(thetas[0].device),  # which the notebooks' loop leaves
    "drop": lambda thetas: thetas[0],
}
NORMS = {"paper": "merge", "code": "first", "drop": "first"}  # what each does with the norms of the residual stream


def is_stream_norm(name: str) -> bool:
    """Return whether a layer's parameter belongs to a norm of the residual stream.

    QK-norms lie in `self_attn`.
    """
    return name.count(".") == 1 and "norm" in name


@torch.no_grad()
def merged(layers: Sequence[nn.Module], merge: str = "paper", norms: str | None = None) -> dict[str, Tensor]:
    """Compute the merged weights theta*_l of layer l (section 2.1, Eq. 1).

    Tensors that do not change are left out. A returned tensor may share memory with a follower, which is dropped
    afterwards.

    Args:
        layers: Layer l and its followers l+1 .. l+m.
        merge: Rule for the weights, a name in `RULES` (module docstring).
        norms: ``merge`` treats norms like other weights, ``first`` keeps layer l's; None: the default of ``merge``.

    Returns:
        Name -> new value, of parameters and saved buffers.

    Raises:
        UserError: unknown merge or norms, or layers whose parameters or saved buffers differ in name or shape.
    """
    if merge not in RULES:
        raise unknown("merge", merge, RULES)
    norms = NORMS[merge] if norms is None else norms
    if norms not in NORMS.values():
        raise unknown("policy for norms", norms, NORMS.values())
    check_alike(layers)
    states = [_tensors(layer) for layer in layers]
    return {
        name: RULES[merge]([state[name].data for state in states])
        for name in states[0]
        if norms == "merge" or not is_stream_norm(name)
    }


def _tensors(layer: nn.Module) -> dict[str, Tensor]:
    """Return a layer's parameters, and the buffers that a checkpoint holds, by name."""
    saved = layer.state_dict().keys()
    buffers = {name: buffer for name, buffer in layer.named_buffers() if name in saved}
    return dict(layer.named_parameters()) | buffers


def check_alike(layers: Sequence[nn.Module]) -> None:
    """Refuse layers that cannot be added.

    Raises:
        UserError: their parameters or saved buffers differ in name or shape.
    """
    shapes = [{name: list(tensor.shape) for name, tensor in _tensors(layer).items()} for layer in layers]
    for shape_by_name in shapes[1:]:
        for name in sorted(shapes[0].keys() | shape_by_name.keys()):
            if (first_shape := shapes[0].get(name)) != (other_shape := shape_by_name.get(name)):
                raise UserValueError(
                    f"cannot merge layers of different shapes: {name} is {first_shape} in one and {other_shape} in another; "
                    "LaCo needs layers of one shape. Name a block of such layers (--layers), or use another method"
                )


class Merge:
    """Give layer `layers[0]` the merged weights theta*_l, until `undo` restores its former tensors (the same storage).

    Besides the model, one layer's weights are held. The rule ``code`` holds none: its tensors are the last follower's.
    """

    def __init__(self, layers: Sequence[nn.Module], merge: str = "paper", norms: str | None = None) -> None:
        values = merged(layers, merge, norms)
        self._tensors = _tensors(layers[0])
        self._own = {name: self._tensors[name].data for name in values}
        self._assign(values)

    def undo(self) -> None:
        """Restore the layer's former weights."""
        self._assign(self._own)

    def keep(self) -> None:
        """Drop the layer's former weights; `undo` does nothing from now on."""
        self._own = {}

    def _assign(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self._tensors[name].data = value


def merge_layers(model: nn.Module, layer: int, followers: int, merge: str = "paper", norms: str | None = None) -> None:
    """Merge the `followers` layers after `layer` into it and drop them, in place (section 2.1, Eq. 1).

    The model generates, saves and reloads as usual afterwards, with m layers fewer.

    Args:
        model: The model; it is changed.
        layer: l, 0-based, in the present model.
        followers: m >= 1.
        merge: Rule for the weights: ``paper``, ``code`` or ``drop`` (module docstring).
        norms: Rule for the norms' gains: ``merge`` or ``first``; None: the default of ``merge``.

    Raises:
        UserError: no such layers, layers of different shapes, a model with patches, or an unknown merge.
    """
    refuse_patches(model, "LaCo")  # between two merged layers it would have no place
    layers = layer_list(model)
    if followers < 1 or layer < 0 or layer + followers >= len(layers):
        raise UserValueError(
            f"cannot merge {followers} layers into layer {layer} of {len(layers)}; "
            f"layer + followers must be at most {len(layers) - 1}, followers at least 1"
        )
    if followers > len(layers) - 2:
        raise UserValueError(f"merging {followers + 1} of {len(layers)} layers leaves fewer than two; merge fewer")
    Merge(layers[layer : layer + followers + 1], merge, norms).keep()
    remove_layers(model, range(layer + 1, layer + followers + 1))

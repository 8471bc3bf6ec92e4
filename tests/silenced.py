"""Models with layers, or sub-layers of them, switched off from outside: no surgery, which is held against it."""

import copy

from heads import logits

from common.models.architectures import layer_list
from common.models.layers.sublayers import ATTENTION


def skipping(model, ids, removed):
    """The logits of a model whose layers, these ones, hand on what they receive."""
    handles = [
        layer.register_forward_hook(lambda _module, args, _output: args[0])
        for index, layer in enumerate(layer_list(model))
        if index in removed
    ]
    skipped = logits(model, ids)
    for handle in handles:
        handle.remove()
    return skipped


def silenced(model, sublayers):
    """A copy without what these sub-layers add: their outputs, or what the norm behind them returns, are zeroed by hooks."""
    model = copy.deepcopy(model)
    for number, sublayer in sublayers:
        layer = model.model.layers[number]
        last = layer.self_attn if sublayer == ATTENTION else layer.mlp
        if model.config.model_type == "gemma2":
            last = layer.post_attention_layernorm if sublayer == ATTENTION else layer.post_feedforward_layernorm
        last.register_forward_hook(
            lambda _m, _a, out: (out[0] * 0, *out[1:]) if isinstance(out, tuple) else out * 0  # noqa: B023
        )
    return model

"""Models with some halves of layers switched off from outside: what `common.models.layers.sublayers` is held against."""

import copy

from common.models.layers.sublayers import ATTENTION


def silenced(model, halves):
    """A copy in which these halves add nothing: their outputs, or what the norm behind them returns, are zeroed by hooks."""
    model = copy.deepcopy(model)
    for number, half in halves:
        layer = model.model.layers[number]
        last = layer.self_attn if half == ATTENTION else layer.mlp
        if model.config.model_type == "gemma2":
            last = layer.post_attention_layernorm if half == ATTENTION else layer.post_feedforward_layernorm
        last.register_forward_hook(
            lambda _m, _a, out: (out[0] * 0, *out[1:]) if isinstance(out, tuple) else out * 0  # noqa: B023
        )
    return model

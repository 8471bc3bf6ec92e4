"""A tiny model in which a few neurons of one layer write a massive activation, planted."""

import torch

WRITER, HOST, FIRST = 3, 2, 7  # the layer that writes it, the one before; the token whose state becomes massive
PLANTED = (4, 9)  # neurons


@torch.no_grad()
def planted(model, neurons=PLANTED):
    """The model, with a channel that the token FIRST alone has and nothing else reads or writes; neurons of one layer read it
    and write into the first token's state what is long beside all others."""
    generator, spread = torch.Generator().manual_seed(1), model.model.embed_tokens.weight.std()
    model.model.embed_tokens.weight[:, 0] = 0.0
    model.model.embed_tokens.weight[FIRST, 0] = 20 * spread
    for layer in model.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.copy_(0.5 + torch.rand(norm.weight.shape, generator=generator))
        for matrix in (layer.self_attn.o_proj, layer.mlp.down_proj):
            matrix.weight[0] = 0.0
        for matrix in (layer.mlp.gate_proj, layer.mlp.up_proj):
            matrix.weight[:, 0] = 0.0
    mlp = model.model.layers[WRITER].mlp
    for place, neuron in enumerate(neurons):
        for matrix in (mlp.gate_proj, mlp.up_proj):
            matrix.weight[neuron] = 0.0
            matrix.weight[neuron, 0] = 5.0 + place
        mlp.down_proj.weight[1 + place, neuron] = 400.0
    return model

"""Carrying over the neurons that write the first token's massive activation, where their layer is removed. Ours.

In most LLMs one layer writes it (`common.massive`), and of that layer's MLP a few neurons: two of SmolLM2's 1,536. A cut that
takes the layer leaves the attention of all later ones without the token that it rests on, and no cosine averaged over tokens
shows it. So those neurons are copied into the last layer kept before theirs, in the place of as many that it uses least:

    gate[p] <- gate_w[n] g_w / g_h,   up[p] <- up_w[n] g_w / g_h,   down[:, p] <- down_w[:, n]

w: the layer that writes, h: the one that is kept, n, p: a neuron's places in them, g: the gains of the norms before their
MLPs, which the quotient exchanges. Nothing is fitted and nothing is added: the first token is known by its own state, whose
direction grows over the layers before w, so that neurons need no position, and a cache changes nothing.

Sources: few weights make massive activations (Sun et al., arXiv 2402.17762; one entry of down_proj: 2411.07191, "super
weights"), in one layer (2605.08504). That a pruned model gets them back by moving neurons was found nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.architectures import at_hand
from common.decoder import Decoder
from common.massive import Norms
from common.watched import GATE, MLP, UP, Watched

LOOKED_AT = 8  # calibration samples in which the neurons are looked for


@dataclass(frozen=True)
class Graft:
    """Neurons of layer ``writer`` that go to ``places`` of the MLP of layer ``host`` (positions in the whole model).

    matrices: path -> rows [neurons, channels] (of down_proj: columns, transposed) and biases [neurons], or None, as `host`
    is to have them. writes: the mean norm of what they write there into the state of a first token, wrote: where they were.
    """

    writer: int
    neurons: list[int]
    host: int
    places: list[int]
    wrote: float
    writes: float
    matrices: dict[str, tuple[Tensor, Tensor | None]]

    @torch.no_grad()
    def into(self, layer: nn.Module) -> None:
        """Overwrite the places of the host, in place."""
        for name, (rows, biases) in self.matrices.items():
            linear = at_hand(layer).get_submodule(name)
            (linear.weight.T if name == MLP else linear.weight)[self.places] = rows.to(
                linear.weight
            )  # a view, also of columns
            if biases is not None:
                linear.bias[self.places] = biases.to(linear.bias)

    def report(self) -> dict:
        """What a record holds of it."""
        where = {"writer": self.writer, "neurons": self.neurons, "host": self.host, "places": self.places}
        return where | {"wrote": round(self.wrote, 1), "writes": round(self.writes, 1)}


@torch.no_grad()
def find(decoder: Decoder, ids: Tensor, removed: Sequence[int]) -> Graft | None:
    """What has to be carried over so that layers may go, as the first samples of ids [samples, tokens] show.

    A neuron writes the massive activation if what it writes into first tokens is longer than the median token's state.
    None where no layer writes one or that layer stays, where no layer before it is kept, and where the neurons, in the layer
    that is kept, would write less than that length.
    """
    norms, uses, read, features = Norms(decoder.num_layers), [], [], []  # of the last two, of first tokens
    hidden = decoder.embed_tokens(ids[:LOOKED_AT])
    for layer in range(decoder.num_layers):
        norms.add(layer, hidden)
        with Watched(decoder.layers[layer]) as seen:
            hidden = decoder.run(hidden, layer, layer + 1)
        inputs, matrix = seen.inputs[MLP].float(), at_hand(decoder.layers[layer]).get_submodule(MLP).weight
        uses.append(inputs.square().mean((0, 1)).sqrt() * matrix.float().norm(dim=0))
        read.append(seen.inputs[GATE][:, 0].float())
        features.append(inputs[:, 0])
    writer = norms.writer
    kept = [layer for layer in range(writer or 0) if layer not in removed]
    if writer not in removed or not kept:
        return None
    host, least = kept[-1], norms.median[writer + 1]
    source = at_hand(decoder.layers[writer])
    written = features[writer].abs().mean(0) * source.get_submodule(MLP).weight.float().norm(dim=0)
    neurons = (written > least).nonzero().flatten()
    matrices = {MLP: (source.get_submodule(MLP).weight[:, neurons].T.float(), None)}
    wrote = (features[writer][:, neurons] @ matrices[MLP][0]).norm(dim=-1).mean().item()
    gains = [at_hand(decoder.layers[at]).get_submodule(decoder.spec.mlp.norm).weight.float() for at in (writer, host)]
    exchange = torch.where(gains[1] == 0, 0, gains[0] / gains[1])
    given = {}
    for name in (GATE, UP):
        linear = at_hand(decoder.layers[writer]).get_submodule(name)
        rows, biases = linear.weight[neurons].float() * exchange, linear.bias
        matrices[name] = rows, None if biases is None else biases[neurons].clone()
        given[name] = torch.nn.functional.linear(read[host], rows, None if biases is None else biases[neurons].float())
    copies = source.mlp.act_fn(given[GATE]) * given[UP]
    writes = (copies @ matrices[MLP][0]).norm(dim=-1).mean().item()
    places = uses[host].argsort()[: len(neurons)]
    return Graft(writer, neurons.tolist(), host, places.tolist(), wrote, writes, matrices) if writes > least else None

"""Graft the neurons that write the first token's massive activation, if their layer is removed (extension).

In most LLMs one layer writes it (`common.calibration.massive_activations`), and in that layer's MLP a few neurons: two
of SmolLM2's 1,536. If a selection removes that layer, the attention of all later layers loses the token that it rests
on, and no cosine averaged over tokens shows it. So these neurons are copied into the last kept layer before theirs, in
place of the neurons that this layer uses least:

    gate[p] <- gate_w[n] g_w / g_h,   up[p] <- up_w[n] g_w / g_h,   down[:, p] <- down_w[:, n]

w is the layer that writes, h the kept one, n and p the places of a neuron in them, and g the gains of the norms before
their MLPs, which the quotient exchanges. Nothing is fitted and no parameter is added. The first token is recognised by
its state, whose direction grows over the layers before w, so neurons need no position, and a cache changes nothing.

Sources: few weights make massive activations (Sun et al., arXiv 2402.17762; one entry of down_proj: 2411.07191, "super
weights"), in one layer (2605.08504). No earlier work is known that restores them in a pruned model by moving neurons.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.calibration.layer_inputs import GATE, MLP, UP, Watched, paths
from common.calibration.massive_activations import Norms
from common.models.architectures import at_hand
from common.models.decoder import Decoder

LOOKED_AT = 8  # calibration samples in which the neurons are looked for


@dataclass(frozen=True)
class Graft:
    """Neurons of layer ``writer`` that replace neurons in the MLP of layer ``host``.

    Layers are positions in the original model.

    Attributes:
        writer: Layer that the neurons come from.
        neurons: Their places in the MLP of that layer.
        host: Layer that gets them.
        places: Neurons of the host that they replace.
        matrices: Path -> rows [neurons, channels] (of down_proj: columns, transposed) and biases [neurons] or None, for
            ``host``.
        writes: Mean norm of the neurons' contribution to the state of a first token, in ``host``.
        wrote: The same in ``writer``.
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
        """Overwrite the host's neurons, in place."""
        for name, (rows, biases) in self.matrices.items():
            linear = at_hand(layer).get_submodule(name)
            weight = linear.weight.T if name == MLP else linear.weight  # a view
            weight[self.places] = rows.to(weight)
            if biases is not None:
                linear.bias[self.places] = biases.to(linear.bias)

    def report(self) -> dict:
        """Return the facts that a result keeps."""
        where = {"writer": self.writer, "neurons": self.neurons, "host": self.host, "places": self.places}
        return where | {"wrote": round(self.wrote, 1), "writes": round(self.writes, 1)}


class Observed:
    """Inputs of the MLPs of a model's layers on the first samples of ``ids`` [samples, tokens], from one pass."""

    @torch.no_grad()
    def __init__(self, decoder: Decoder, ids: Tensor):
        self.decoder, self.norms = decoder, Norms(decoder.num_layers)
        # By layer: what each neuron writes (root mean square), and of first tokens what the MLP and its down_proj read.
        self.uses: list[Tensor] = []
        self.able = GATE in paths(decoder.spec) and not decoder.spec.multiplier  # neurons of Llama's kind
        self.read: list[Tensor] = []
        self.features: list[Tensor] = []
        hidden = decoder.embed_tokens(ids[:LOOKED_AT])
        for layer in range(decoder.num_layers):
            self.norms.add(layer, hidden)
            with Watched(decoder, layer) as watched:
                hidden = decoder.run(hidden, layer, layer + 1)
            features = watched.inputs[MLP].float()
            self.uses.append(features.square().mean((0, 1)).sqrt().cpu() * self._lengths(layer))
            if self.able:
                self.read.append(watched.inputs[GATE][:, 0].float().cpu())  # layers may lie on several devices
            self.features.append(features[:, 0].cpu())

    def _matrix(self, layer: int, name: str) -> nn.Module:
        where = paths(self.decoder.spec).get(name, name)
        return at_hand(self.decoder.layers[layer]).get_submodule(where)

    def _lengths(self, layer: int) -> Tensor:
        """Of what a neuron writes, per unit."""
        return self._matrix(layer, MLP).weight.float().norm(dim=0).cpu()

    @property
    def graftable_writer(self) -> int | None:
        """The layer that writes the massive activation, if the layer before it can take its neurons; else None."""
        writer = self.norms.writer
        return writer if writer and self.graft([writer]) is not None else None

    @torch.no_grad()
    def graft(self, removed: Sequence[int]) -> Graft | None:
        """Return the graft that the removal of these layers needs, or None.

        A neuron writes the massive activation if its contribution to first tokens is longer than the median token's
        state. None if no layer writes one, that layer stays, no layer before it is kept, or the neurons would write
        less than that length in the host.
        """
        writer = self.norms.writer
        kept_layers = [layer for layer in range(writer or 0) if layer not in removed]
        if writer not in removed or not kept_layers or not self.able:
            return None
        host, least = kept_layers[-1], self.norms.median[writer + 1]
        neurons = (self.features[writer].abs().mean(0) * self._lengths(writer) > least).nonzero().flatten()
        down = self._matrix(writer, MLP).weight[:, neurons].T.float().cpu()
        matrices: dict[str, tuple[Tensor, Tensor | None]] = {MLP: (down, None)}
        spec = self.decoder.spec  # Gemma's gains are 1 + weight
        gains = [self._matrix(layer, spec.mlp.norm).weight.float().cpu() + spec.offset_gain for layer in (writer, host)]
        exchange, activations = torch.where(gains[1] == 0, 0, gains[0] / gains[1]), {}
        for name in (GATE, UP):
            linear = self._matrix(writer, name)
            rows, biases = linear.weight[neurons].float().cpu() * exchange, linear.bias
            biases = None if biases is None else biases[neurons].float().cpu()
            matrices[name] = rows, biases
            activations[name] = nn.functional.linear(self.read[host], rows, biases)
        copies = self.decoder.layers[host].mlp.act_fn(activations[GATE]) * activations[UP]
        wrote, writes = ((of @ down).norm(dim=-1).mean().item() for of in (self.features[writer][:, neurons], copies))
        if writes < least:
            return None
        places = self.uses[host].argsort()[: len(neurons)]
        return Graft(writer, neurons.tolist(), host, places.tolist(), wrote, writes, matrices)

"""OverRep (Oh et al., EMNLP 2026, arXiv 2609.06974): the two layers around a removed block, trained while they are wider.

Layers T + 1 .. T + I are removed. Two recovery layers stay: the first has the attention of layer T and the MLP and
norms of layer T + I, the second is layer T + I + 1. During training each of their matrices P may have an additive
matrix W, initially 0, and a square matrix D, initially I (README, "Overview"):

    P^ = D (P + W)     D on the side of the inner features: behind q, k, v, gate and up, before o and down

The first layer's attention has W, its MLP has D; the second has both in both. P is trained in the first layer and
frozen in the second. A gain g of a norm becomes g (1 + s) + t. Between P + W and D is the annealed activation

    A(x) = a x + (1 - a) SiLU(x)

a goes from 1 to 0 over the first 1 % of the steps, back to 1 on a half cosine, and is 1 in the last 20 %. So every P^
merges into one matrix in the end, and the result is a plain checkpoint. The loss is the mean squared error to the
original stream after layer T + I + 1, from the original residual stream before layer T. `PAPER`: 20 epochs of 12,000
documents, AdamW, 1e-4 to 1e-5 on a cosine.

Written from these facts, which are in the README, models/ and train/mse.py of github.com/MMAI-Laboratory/OverRep at
3f15fe7. Deviations: the layers train in float32. Gains have weight decay like matrices. The warm-up of the rate begins
above 0 and need not be whole steps; the official one has no rate in its first step. Norms have the model's e, not 1e-6.
Biases of q, k and v (none in its models) are added before D, those of o and down after P. If the second layer is the
model's last, the target is the stream before the final norm, which is not changed. The league trains it on the league's
text and steps, far fewer than the paper's, and removes the block of the other repairs. In all but one mask of the paper
the second recovery layer is the model's last.

The MLP of layer T is dropped. If it writes the massive activation, as on SmolLM2-135M-Instruct with layers 12 .. 18
removed, the training first has to bring that back: with 128 steps of 256 tokens perplexity is 132, against 105.5 without
repair. With layers 13 .. 19 removed it is 70 against 129, and 67 without annealing (tried once on 1,536 tokens of
WikiText-2, without records).
"""

import copy
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.models.decoder import Decoder
from common.models.surgery import remove_layers
from common.pruning.pipeline import Context
from common.pruning.recipe import register
from common.pruning.selection import runs
from common.pruning.trained_repair import TrainedRepair, note_training
from common.training.distillation import Distillation, standing_in, train
from common.training.fitting import Fitting
from common.utils.errors import UserError, UserValueError

PAPER = Fitting(
    learning_rate=1e-4,
    final_share=0.1,
    warmup_share=0.01,
    weight_decay=1e-2,
    clip=1.0,
    batch_size=8,
    epochs=20,
    order="shuffled",
)
WARM, STEADY = 0.01, 0.2  # shares of the steps at the beginning and at the end of the annealing
# Of the first and the second layer: sub-layer -> whether its matrices have W, and D.
WIDER = ({"self_attn": (True, False), "mlp": (False, True)}, {"self_attn": (True, True), "mlp": (True, True)})


@register("overrep")
@dataclass(frozen=True)
class OverRep(TrainedRepair):
    """Train OverRep's recovery layers on the recipe's sequences; options: changes of `PAPER`."""

    def apply(self, context: Context) -> None:
        """Remove the layers and repair the model."""
        report = recover(
            context.model, context.removed, self.sequences(context), self.fitting(PAPER), progress=context.progress
        )
        note_training(context, report)


class Wide(nn.Module):
    """A linear layer P while it is over-parametrised: D (P + W), with the annealed activation in between.

    added, factor: whether W, D exist. inward: D comes before P, as for o and down; otherwise after it. trained: P is
    trained, too.
    """

    def __init__(self, linear: nn.Linear, added: bool, factor: bool, inward: bool, trained: bool):
        super().__init__()
        self.linear, self.inward, self.anneal = linear.requires_grad_(trained), inward, 1.0
        out, inner = linear.weight.shape
        like = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.added = nn.Parameter(torch.zeros(out, inner, **like)) if added else None
        self.factor = nn.Parameter(torch.eye(inner if inward else out, **like)) if factor else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear layer with the added matrices."""
        weight = self.linear.weight if self.added is None else self.linear.weight + self.added
        if self.factor is None:
            return F.linear(x, weight, self.linear.bias)
        if self.inward:
            return F.linear(self._annealed(F.linear(x, self.factor)), weight, self.linear.bias)
        return F.linear(self._annealed(F.linear(x, weight, self.linear.bias)), self.factor)

    def _annealed(self, x: Tensor) -> Tensor:
        return x if self.anneal == 1 else self.anneal * x + (1 - self.anneal) * F.silu(x)

    def merged(self) -> dict[str, Tensor]:
        """Return the weight, and the bias if there is one, of the equivalent linear layer after annealing."""
        weight = self.linear.weight if self.added is None else self.linear.weight + self.added
        bias = self.linear.bias
        if self.factor is not None:
            weight = weight @ self.factor if self.inward else self.factor @ weight
            bias = bias if bias is None or self.inward else self.factor @ bias
        return {"weight": weight} | ({} if bias is None else {"bias": bias})


class WideGain(nn.Module):
    """A norm whose gain is g (1 + s) + t. trained: g is trained, too."""

    def __init__(self, norm: nn.Module, trained: bool):
        super().__init__()
        self.norm = norm.requires_grad_(trained)
        self.scale, self.shift = (nn.Parameter(torch.zeros_like(norm.weight)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the norm with the added gain."""
        return torch.func.functional_call(self.norm, self.merged(), (x,))

    def merged(self) -> dict[str, Tensor]:
        """Return the gain."""
        return {"weight": self.norm.weight * (1 + self.scale) + self.shift}


class RecoveryLayers(nn.Module):
    """Both recovery layers in float32, at their place in the decoder: [batch, tokens, channels] -> same."""

    def __init__(self, decoder: Decoder, start: int, stop: int):
        super().__init__()
        first = copy.deepcopy(decoder.layers[stop - 1])  # the MLP and the norms of the last removed layer
        first.self_attn = copy.deepcopy(decoder.layers[start - 1].self_attn)
        self.layers = nn.ModuleList([first.float(), copy.deepcopy(decoder.layers[stop]).float()])
        self._decoder, self.places = [decoder], (start - 1, stop)  # in a list: the model is no submodule
        self.wide: dict[str, Wide | WideGain] = {}
        for place, (layer, wider) in enumerate(zip(self.layers, WIDER, strict=True)):
            for sublayer in (decoder.spec.attention, decoder.spec.mlp):
                for name in (*sublayer.readers, sublayer.writer):
                    linear = layer.get_submodule(f"{sublayer.module}.{name}")
                    wide = Wide(linear, *wider[sublayer.module], name == sublayer.writer, place == 0)
                    self._put(place, f"{sublayer.module}.{name}", wide)
                self._put(place, sublayer.norm, WideGain(getattr(layer, sublayer.norm), place == 0))
        for name, parameter in self.named_parameters():
            if "self_attn.q_norm" in name or "self_attn.k_norm" in name:
                parameter.requires_grad_(name.startswith("layers.0"))

    def _put(self, place: int, path: str, module: Wide | WideGain) -> None:
        owner, _, name = path.rpartition(".")
        setattr(self.layers[place].get_submodule(owner), name, module)
        self.wide[f"{place}.{path}"] = module

    def anneal(self, value: float) -> None:
        """Set the annealing value a of every activation."""
        for module in self.wide.values():
            if isinstance(module, Wide):
                module.anneal = value

    def forward(self, hidden: Tensor) -> Tensor:
        """Run both layers on the hidden states [batch, tokens, channels]."""
        decoder = self._decoder[0]
        with standing_in(decoder, dict(zip(self.places, self.layers, strict=True))):
            return decoder.run(hidden.float(), layers=self.places).to(hidden.dtype)

    @torch.no_grad()
    def merge(self) -> list[nn.Module]:
        """Return both layers as plain decoder layers."""
        for path, module in self.wide.items():
            place, _, name = path.partition(".")
            owner, _, name = name.rpartition(".")
            plain = module.linear if isinstance(module, Wide) else module.norm
            for kind, value in module.merged().items():
                plain.get_parameter(kind).data = value
            setattr(self.layers[int(place)].get_submodule(owner), name, plain)
        return list(self.layers)


class _Annealed(Distillation):
    """A distillation that sets a before its loss is asked for; values: of a, for one call after the other."""

    def __init__(self, layers: RecoveryLayers, values: Sequence[float], *args, **options):
        super().__init__(*args, **options)
        self._layers, self._values = layers, iter(values)

    def loss(self, samples: Sequence[int]) -> Tensor:
        self._layers.anneal(next(self._values))
        return super().loss(samples)


def annealing(steps: int) -> list[float]:
    """Return the annealing value a of each of ``steps`` steps."""
    warm, steady = int(steps * WARM), int(steps * STEADY)
    rising = steps - warm - steady
    down = [1 - step / max(warm - 1, 1) for step in range(warm)]
    up = [0.5 * (1 - math.cos(math.pi * step / max(rising - 1, 1))) for step in range(rising)]
    return down + up + [1.0] * steady


def recover(
    model: nn.Module, removed: Collection[int], sequences: Tensor, how: Fitting = PAPER, *, progress: bool = False
) -> dict:
    """Replace the block of layers ``removed`` by recovery layers and train them on ``sequences`` of tokens, in place.

    An interrupted training starts over. Returns the report of `common.training.fitting.fit`.

    Raises:
        UserError: an architecture whose layers are not built as Llama's, several blocks, or no layer on one side of the
            block.
    """
    decoder, blocks = Decoder(model), runs(removed)
    if not decoder.spec.like_llama:
        raise UserError(
            f"OverRep cannot widen layers of architecture {decoder.architecture!r}. They are not built as Llama's. Use "
            "another repair"
        )
    if len(blocks) != 1 or not 0 < blocks[0][0] < blocks[0][1] < decoder.num_layers:
        raise UserValueError(
            f"OverRep cannot replace layers {sorted(removed)}. It takes one contiguous block with a layer on each side. "
            "Choose a block of layers that spares the first and the last"
        )
    start, stop = blocks[0]
    layers = RecoveryLayers(decoder, start, stop)
    batches = [batch for epoch in range(how.epochs) for batch in how.batches(epoch, len(sequences))]
    values = [
        value
        for value, batch in zip(annealing(len(batches)), batches, strict=True)
        for _ in range(0, len(batch), how.batch_size)
    ]
    task = _Annealed(layers, values, decoder, {(start - 1, stop + 1): layers}, sequences, target="output")
    trained = {name: value for name, value in layers.named_parameters() if value.requires_grad}
    report = train(task, trained, how, identity={"networks": ["overrep"]}, progress=progress)
    for place, layer in zip(layers.places, layers.merge(), strict=True):
        decoder.layers[place].load_state_dict(layer.state_dict())
    remove_layers(model, range(start, stop))
    return report | {"replaced": [{"run": [start, stop], "position": start - 1}]}

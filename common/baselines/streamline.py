"""LLM-Streamline: a block of layers replaced by a small network that is trained to do their work.

Three variants. None: the block is removed, nothing replaces it (`common.models.surgery.remove_layers`). FFN: a
feed-forward network of the model's size, gated and without biases, random at first, without norm and without residual
connection, replaces the block (the LinearPatch paper's reading, whose parameter counts fit no other; LLM-Streamline's
example is a ReLU network of width 4C with biases). Layer: one decoder layer, initially the block's first, replaces the
block.

The default training is that of LinearPatch, with which its paper compares: the same data and rates. `OFFICIAL` is that of
LLM-Streamline's code (github.com/RUCKBReasoning/LLM-Streamline at adf50ba), whose first step has a rate of zero: here all
rates come one step earlier. In the league the layer trains at LinearPatch's rate for small models, 1e-3, which suits it
better than the code's 2e-4: with 7 layers of SmolLM2 removed the perplexity is 63 and not 71 (64 sequences; tried once,
without records). The code keeps the weights that do best on held-out text, evaluated after each of its epochs; there is
one epoch, so these are the last.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from common.calibration.massive_activations import massive
from common.hooks import register_patch
from common.models.decoder import Decoder
from common.models.surgery import remove_layers, replace_runs
from common.pruning.pipeline import Context
from common.pruning.recipe import register
from common.pruning.selection import runs
from common.pruning.trained_repair import TrainedRepair, note_training
from common.training.distillation import Distillation, Run, standing_in, train
from common.training.fitting import Fitting
from common.utils.errors import UserValueError

KIND = "streamline-ffn"
# The code's scheduler plans half as many steps as there are micro-steps, a hundredth of them to warm up, and is asked once
# in 16 micro-steps: it warms up over 0.08 of the optimizer's steps and then runs through the first 0.92 / 7.92 of its cosine
# from 2e-4 to 5e-5. (Here a whole half wave of that height: they are nowhere a hundredth apart.)
_WARM = 16 * 0.5 * 0.01
_REACHED = (1 - _WARM) / (16 * 0.5 - _WARM)
OFFICIAL = Fitting(
    learning_rate=2e-4,
    final_share=0.25 + 0.75 * (1 + math.cos(math.pi * _REACHED)) / 2,
    warmup_share=_WARM,
    weight_decay=1e-3,
    clip=5.0,
    batch_size=8,
    accumulate=16,
    order="shuffled",
)


@dataclass(frozen=True)
class StreamlineSettings:
    """Settings of the training of a replacement.

    target: 'output', mean squared error to the block's output; 'logits', KL to the original model's `top_k` most likely
    tokens, with which LinearPatch's paper reports NaN. seed: of the feed-forward network's initial weights.
    spare_massive: leave massive tokens (`common.calibration.massive_activations`) unchanged (extension).
    """

    target: str = "output"
    top_k: int = 100
    seed: int = 0
    spare_massive: bool = False
    fitting: Fitting = Fitting()


class FeedForward(nn.Module):
    """A feed-forward network ``down(activation(gate(x)) * up(x))`` without bias, [..., hidden] -> same, in its own dtype.

    spare_massive: states [batch, tokens, hidden] of massive tokens are returned unchanged. Sequences must begin with
    their first tokens; generation with a cache passes later tokens alone, and these count as ordinary.
    """

    kind = KIND

    def __init__(self, hidden: int, intermediate: int, activation: str = "silu", spare_massive: bool = False):
        super().__init__()
        self.options = {"hidden": hidden, "intermediate": intermediate, "activation": activation}
        self.options |= {"spare_massive": True} if spare_massive else {}
        self.spare_massive = spare_massive
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)
        self.activation = ACT2FN[activation]

    @classmethod
    def like(cls, config, seed: int = 0, spare_massive: bool = False) -> FeedForward:
        """Return a network of the size of the model's MLP, float32, initialised like the model: N(0, range^2)."""
        names = ("hidden_activation", "hidden_act", "activation_function")
        activation = next(value for name in names if (value := getattr(config, name, None)))
        features = getattr(config, "ffn_dim", None) or config.intermediate_size  # OPT's name
        network = cls(config.hidden_size, features, activation, spare_massive)
        deviation = getattr(config, "init_std", None) or config.initializer_range
        generator = torch.Generator().manual_seed(seed)
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=deviation, generator=generator)
        return network

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the network's output for hidden states [..., channels]."""
        inputs = hidden.to(self.gate_proj.weight.dtype)
        output = self.down_proj(self.activation(self.gate_proj(inputs)) * self.up_proj(inputs)).to(hidden.dtype)
        return torch.where(massive(hidden)[..., None], hidden, output) if self.spare_massive else output


def _load(tensors: dict[str, Tensor], options: dict) -> FeedForward:
    network = FeedForward(**options).to(next(iter(tensors.values())).dtype)
    network.load_state_dict(tensors)
    return network.requires_grad_(False)


register_patch(KIND, _load)


class _Layer(nn.Module):
    """A layer in float32 that runs where layer `position` of the decoder stands, with its mask and positions."""

    def __init__(self, decoder: Decoder, position: int):
        super().__init__()
        self.layer = copy.deepcopy(decoder.layers[position]).float()
        self._decoder, self._position = [decoder], position  # in a list: the model is no submodule

    def forward(self, hidden: Tensor) -> Tensor:
        decoder, position = self._decoder[0], self._position
        with standing_in(decoder, {position: self.layer}):
            return decoder.run(hidden.float(), layers=[position]).to(hidden.dtype)


def replace_with_ffn(
    model: nn.Module,
    removed: Collection[int],
    sequences: Tensor,
    settings: StreamlineSettings = StreamlineSettings(),
    *,
    folder: str | os.PathLike | None = None,
    progress: bool = False,
) -> dict:
    """Train a `FeedForward` for every maximal run of `removed`, and replace the run by it, in place.

    The network lies outside the model's state dict; `common.models.checkpoint` saves and loads it.

    ``sequences`` [samples, tokens] are token ids to train on. ``folder`` is for checkpoints, as in
    `common.training.fitting.fit`.

    Returns:
        The report of `common.training.fitting.fit`, with the runs and positions. A training that diverges is a result:
        the report says so, and the network is the last whose loss was finite.
    """
    networks = _networks(model, removed, settings.seed, settings.spare_massive)
    report = _train(model, networks, sequences, settings, folder, progress)
    return report | {"replaced": _inserted(model, networks)}


def insert_ffn(model: nn.Module, removed: Collection[int]) -> list[dict]:
    """Replace every maximal run of `removed` by an untrained `FeedForward`; return runs and positions.

    Sizes and times can be measured without training.
    """
    return _inserted(model, _networks(model, removed, seed=0))


def replace_with_layer(
    model: nn.Module,
    removed: Collection[int],
    sequences: Tensor,
    settings: StreamlineSettings = StreamlineSettings(),
    *,
    folder: str | os.PathLike | None = None,
    progress: bool = False,
) -> dict:
    """Replace the block `removed` by one decoder layer, initially its first, and train it towards the block's output.

    A block of n + 1 layers leaves the model n layers shorter, a plain model of its architecture. Trained in float32,
    then rounded once to the model's dtype. All arguments and the report are those of `replace_with_ffn`.

    Raises:
        UserError: the layers are no block of at least two.
    """
    blocks = runs(removed)
    if len(blocks) != 1 or len(removed) < 2:
        raise UserValueError(f"one layer can replace one block of two or more layers, not {sorted(removed)}")
    start, stop = blocks[0]
    decoder = Decoder(model)
    stand_in = _Layer(decoder, start)
    report = _train(model, {(start, stop): stand_in}, sequences, settings, folder, progress)
    decoder.layers[start].load_state_dict(stand_in.layer.state_dict())
    remove_layers(model, range(start + 1, stop))
    return report | {"replaced": [{"run": [start, stop], "position": start}]}


def _networks(model: nn.Module, removed: Collection[int], seed: int, spare: bool = False) -> dict[Run, FeedForward]:
    device = next(model.parameters()).device
    return {run: FeedForward.like(model.config, seed + i, spare).to(device) for i, run in enumerate(runs(removed))}


def _inserted(model: nn.Module, networks: dict[Run, FeedForward]) -> list[dict]:
    for network in networks.values():
        network.to(model.dtype).requires_grad_(False)
    positions = replace_runs(model, networks, KIND)
    return [{"run": list(run), "position": position} for run, position in zip(networks, positions)]


def _train(
    model: nn.Module,
    networks: dict[Run, nn.Module],
    sequences: Tensor,
    settings: StreamlineSettings,
    folder: str | os.PathLike | None,
    progress: bool,
) -> dict:
    task = Distillation(Decoder(model), networks, sequences, target=settings.target, k=settings.top_k)
    parameters = {
        f"{start}-{stop}.{name}": value
        for (start, stop), network in networks.items()
        for name, value in network.named_parameters()
    }
    return train(
        task,
        parameters,
        settings.fitting,
        identity={"networks": sorted({type(network).__name__ for network in networks.values()}), "seed": settings.seed}
        | ({"spare_massive": True} if settings.spare_massive else {}),
        folder=folder,
        progress=progress,
    )


@dataclass(frozen=True)
class _Streamline(TrainedRepair):
    """Base of both trained replacements; a recipe of the official code's fidelity trains by `OFFICIAL`."""

    def train(self, context: Context, method, names: Sequence[str], without: Sequence[str] = ()) -> None:
        """Replace the chosen layers by what `method` trains; names: of `StreamlineSettings`."""
        code = context.recipe.fidelity == "code"
        fitting = self.fitting(OFFICIAL if code else Fitting(), without=without)
        settings = StreamlineSettings(fitting=fitting, **self.stated(*names))
        options = {"folder": context.folder / "streamline", "progress": context.progress}
        report = method(context.model, context.removed, self.sequences(context), settings, **options)
        note_training(context, report)


@register("streamline-ffn")
@dataclass(frozen=True)
class StreamlineNetwork(_Streamline):
    """Replace the layers by a feed-forward network; without samples it stays untrained.

    seed: of its initial weights. spare_massive: see `StreamlineSettings`.
    """

    spare_massive: bool | None = None

    def apply(self, context: Context) -> None:
        """Replace the block by the network, and train it."""
        if self.samples is None:
            context.details["replaced"] = insert_ffn(context.model, context.removed)
            return
        names = ("target", "top_k", "seed", "spare_massive")
        self.train(context, replace_with_ffn, names, without=("seed",))


@register("streamline-layer")
@dataclass(frozen=True)
class StreamlineLayer(_Streamline):
    """Replace several layers by one: its selection takes one layer more than the model loses."""

    def apply(self, context: Context) -> None:
        """Replace the block by one layer, and train it."""
        self.train(context, replace_with_layer, ("target", "top_k"))

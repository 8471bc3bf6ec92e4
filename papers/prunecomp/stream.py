"""The residual stream of a model that loses layers one by one, on calibration tokens; layers run only when needed.

Prune&Comp's Algorithm 1 needs every layer's change and magnitude gain after each removal. A removal with its factor
changes only the scale before the pruning interface. So the states before it stay valid, and one iteration costs the
layers after it. The model keeps all its layers meanwhile: the remaining ones run in order, and a factor multiplies the
residual stream at its interface (Eq. 10), which is equivalent to fusing it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from common.calibration.statistics import magnitude_ratios
from common.console.progress import track
from common.models.decoder import Decoder, gained
from common.pruning.importance import fill_states, spacing
from common.utils.errors import UserValueError


@dataclass
class _Change:
    """Sums of one layer's token cosines and of its samples' magnitude ratios."""

    cosine: float = 0.0
    tokens: int = 0
    ratio: float = 0.0
    samples: int = 0


class Stream:
    """Inputs of all remaining layers on ``ids`` [samples, tokens], and each layer's change of them.

    The states are kept in host memory, in the model's dtype: one [samples, tokens, channels] per remaining layer. If
    they exceed `common.pruning.importance.STATE_BYTES`, every k-th is kept, and a removal runs up to k - 1 layers
    again.

    Attributes:
        layers: Remaining layers, by original index, in order.
        factors: The repair at each interface, by the original index of the layer that reads it (N is the final norm):
            alpha, a factor per channel [C] or a matrix [C, C].
    """

    def __init__(self, decoder: Decoder, ids: Tensor, *, batch_size: int = 8, progress: bool = False) -> None:
        if ids.ndim != 2 or not ids.numel():
            raise UserValueError(f"calibration tokens must be [samples, tokens], not {list(ids.shape)}")
        self.decoder, self.ids, self.progress = decoder, ids, progress
        self.batch_size = batch_size
        self.layers = list(range(decoder.num_layers))
        self.factors: dict[int, float | Tensor] = {}
        self._batches = ids.split(batch_size)
        self._every = spacing(decoder, ids)
        self._states: list[list[Tensor | None]] = [[] for _ in self._batches]
        self._changes: dict[int, _Change] = {}

    @torch.no_grad()
    def states(self, place: int | None = None) -> list[list[Tensor | None]]:
        """Return ``[batch][p]``: the input of the p-th remaining layer (at the end ``X[N]``), up to ``place``.

        States that are not kept are None.
        """
        place = len(self.layers) if place is None else place
        missing = [states for states in self._states if len(states) <= place]
        for states, batch in zip(self._states, self._batches, strict=True):
            if not states:
                states.append(self._gained(self.decoder.embed_tokens(batch), 0).cpu())
        first = min((len(states) - 1 for states in missing), default=place)
        steps = [(states, position) for states in missing for position in range(len(states) - 1, place)]
        if self.decoder.streamed:  # a layer is read from disk: all batches go through it before the next
            steps = [
                (states, position)
                for position in range(first, place)
                for states in missing
                if len(states) - 1 <= position
            ]
        before, hidden = None, None
        for states, position in track(steps, "running layers", unit="pass", leave=False, shown=self.progress):
            hidden = states[-1].to(self.decoder.device) if states is not before else hidden
            leaving = self.decoder.run(hidden, layers=[self.layers[position]])
            _add(self._changes.setdefault(self.layers[position], _Change()), hidden, leaving)
            hidden, before = self._gained(leaving, position + 1), states
            states.append(hidden.cpu())
            if position % self._every:
                states[position] = None
        return self._states

    def received(self, layer: int) -> list[Tensor]:
        """Return the input of one remaining layer, per batch."""
        place = self.layers.index(layer)
        states_by_batch = [states[: place + 1] for states in self.states(place)]
        for states in states_by_batch:
            fill_states(self.decoder, states, self.layers, self.factors)
        return [states[-1] for states in states_by_batch]

    def cosines(self) -> Tensor:
        """Return the mean token cosine between each remaining layer's input and output, float64 [layers] (Eq. 4)."""
        self.states()
        changes = [self._changes[layer] for layer in self.layers]
        return torch.tensor([change.cosine / change.tokens for change in changes], dtype=torch.float64)

    def factor(self, layer: int) -> float:
        """Return the magnitude factor alpha of one remaining layer in the current model (Eq. 9).

        No layer after it is run.
        """
        self.states(self.layers.index(layer) + 1)
        return self._changes[layer].ratio / self._changes[layer].samples

    def remove(self, layer: int, factor: float | Tensor = 1.0) -> None:
        """Remove ``layer``; the layer after it receives ``factor`` times the removed layer's input from now on."""
        place = self.layers.index(layer)
        for states in self._states:
            del states[place + 1 :]
            if len(states) == place + 1:
                fill_states(self.decoder, states, self.layers, self.factors)
        after = self.layers[place + 1] if place + 1 < len(self.layers) else self.decoder.num_layers
        self.layers.remove(layer)
        # its input carries what acts at the pruning interface before it; one behind it had something of its own
        gain = _product(factor, self.factors.pop(after, 1.0))
        if (before := self.factors.pop(layer, None)) is not None or not _is_one(gain):
            self.factors[after] = _product(1.0 if before is None else before, gain)
        for states in self._states:
            if len(states) == place + 1 and not _is_one(gain):
                states[place] = gained(states[place], gain)
        for changed_layer in [layer, *self.layers[place:]]:
            self._changes.pop(changed_layer, None)

    def products(self) -> dict[int, float]:
        """Return, by remaining layer, the product of all scalar factors at later interfaces.

        Fusing multiplies the layer's residual writers by it.
        """
        fused = {receiver: factor for receiver, factor in self.factors.items() if not isinstance(factor, Tensor)}
        return {layer: math.prod(f for receiver, f in fused.items() if receiver > layer) for layer in self.layers}

    def factor_by_position(self) -> dict[int, float | Tensor]:
        """Return the factors by position in the model without the removed layers.

        A factor before the final norm is left out: the norm cancels it.
        """
        return {self.layers.index(receiver): f for receiver, f in self.factors.items() if receiver in self.layers}

    def _gained(self, hidden: Tensor, place: int) -> Tensor:
        receiver = self.layers[place] if place < len(self.layers) else self.decoder.num_layers
        return gained(hidden, self.factors[receiver]) if receiver in self.factors else hidden


def _is_one(gain: float | Tensor) -> bool:
    return not isinstance(gain, Tensor) and gain == 1.0


def _product(first: float | Tensor, second: float | Tensor) -> float | Tensor:
    """Return what acts like ``first`` and then ``second``."""
    matrices = [isinstance(gain, Tensor) and gain.ndim == 2 for gain in (first, second)]
    if all(matrices):
        return first @ second
    if matrices[0]:
        return first * second  # a factor per channel scales the columns
    if matrices[1]:
        return first[:, None] * second if isinstance(first, Tensor) else first * second
    return first * second


def _add(change: _Change, entering: Tensor, leaving: Tensor) -> None:
    """Accumulate in float64 what one batch [batch, tokens, channels] says about a layer."""
    x, y = entering.to(leaving.device, torch.float32), leaving.float()
    tiny = torch.finfo(torch.float32).tiny
    dots = torch.linalg.vecdot(x, y)  # [batch, tokens]
    norms = torch.linalg.vector_norm(x, dim=-1) * torch.linalg.vector_norm(y, dim=-1)
    change.cosine += (dots / norms.clamp_min(tiny)).double().sum().item()
    change.tokens += dots.numel()
    before, after = x.abs().mean(1).double(), y.abs().mean(1).double()  # [batch, channels]
    change.ratio += magnitude_ratios(before, after).mean(1).sum().item()
    change.samples += len(x)

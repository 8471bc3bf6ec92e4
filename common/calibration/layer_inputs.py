"""Observe the matrices of a decoder layer whose output matrices write into the residual stream directly."""

from __future__ import annotations

from torch import Tensor

from common.models.architectures import Architecture
from common.models.decoder import Decoder

ATTENTION, MLP = "self_attn.o_proj", "mlp.down_proj"
GATE, UP = "mlp.gate_proj", "mlp.up_proj"


def paths(spec: Architecture) -> dict[str, str]:
    """Return an architecture's paths of Llama's matrices by name, without gate and up if it has no such pair."""
    attention, mlp = spec.matrices
    pair = {GATE: GATE, UP: UP} if spec.mlp.readers == ("gate_proj", "up_proj") else {}
    return {ATTENTION: attention, MLP: mlp} | pair


def multiplied(value: Tensor, name: str, factor: float) -> Tensor:
    """Return a matrix's input or output, times `Decoder.multiplier` if that matrix writes into the residual stream."""
    return value if factor == 1.0 or name in (GATE, UP) else value * factor


class Watched:
    """Recorder of the inputs of a layer's matrices, and of the residual stream between attention and MLP."""

    def __init__(self, decoder: Decoder, layer: int):
        self.layer, spec = decoder.layers[layer], decoder.spec
        self.paths, self.norm = paths(spec), spec.mlp.norm
        self.factor = decoder.multiplier
        self.read: dict[str, Tensor] = {}
        self.middle: Tensor | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Inputs of each matrix; those of o_proj and down_proj are multiplied like their outputs."""
        return {name: multiplied(value, name, self.factor) for name, value in self.read.items()}

    def __enter__(self) -> Watched:
        def reads(name: str):
            return lambda module, args: self.read.__setitem__(name, args[0])

        def middle(module, args) -> None:
            self.middle = args[0]

        hooks = {path: reads(name) for name, path in self.paths.items()} | {self.norm: middle}
        self._handles = [self.layer.get_submodule(path).register_forward_pre_hook(hook) for path, hook in hooks.items()]
        return self

    def __exit__(self, *_) -> None:
        for handle in self._handles:
            handle.remove()

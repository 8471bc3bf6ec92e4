"""What goes on inside a decoder layer whose output matrices write into the stream themselves."""

from __future__ import annotations

from torch import Tensor, nn

ATTENTION, MLP = "self_attn.o_proj", "mlp.down_proj"
GATE, UP = "mlp.gate_proj", "mlp.up_proj"


class Watched:
    """While open, keeps what goes into a layer's matrices, what gate and up give, and the stream after its attention."""

    def __init__(self, layer: nn.Module):
        self.layer = layer
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}

    def value(self, name: str, out: Tensor) -> Tensor:
        """What a matrix's target is compared with; ``out``: the stream after the layer."""
        return out if name == MLP else self.outputs[name]

    def __enter__(self) -> Watched:
        def reads(name: str):
            return lambda module, args: self.inputs.__setitem__(name, args[0])

        def gives(name: str):
            return lambda module, args, out: self.outputs.__setitem__(name, out)

        def middle(module, args) -> None:
            self.outputs[ATTENTION] = args[0]

        matrices = {name: self.layer.get_submodule(name) for name in (ATTENTION, MLP, GATE, UP)}
        self._handles = [
            *(matrix.register_forward_pre_hook(reads(name)) for name, matrix in matrices.items()),
            *(matrices[name].register_forward_hook(gives(name)) for name in (GATE, UP)),
            self.layer.post_attention_layernorm.register_forward_pre_hook(middle),
        ]
        return self

    def __exit__(self, *_) -> None:
        for handle in self._handles:
            handle.remove()

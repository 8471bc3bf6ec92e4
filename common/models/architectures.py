"""What differs between the supported architectures of Hugging Face models: where a layer's parts are, and what they write.

With `common.models.decoder`, which runs them, the only module that knows architectures. A new one is one entry of
`SUPPORTED`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from common.utils.errors import UserError, UserValueError

SHORTCUT = "{}_shortcut"  # of a half: the matrix [channels in, channels out] on the stream beside it (SliceGPT)


@dataclass(frozen=True)
class Half:
    """Attention or MLP of a decoder layer. To the stream x it adds ``module(norm(x))``, or ``post(module(norm(x)))``.

    readers, writer: the module's linear layers that read what the norm returns, and the one that makes what is added; none
    where experts hold them.
    """

    norm: str
    module: str
    readers: tuple[str, ...] = ()
    writer: str = ""
    post: str | None = None


_ATTENTION = Half("input_layernorm", "self_attn", ("q_proj", "k_proj", "v_proj"), "o_proj")
_MLP = Half("post_attention_layernorm", "mlp", ("gate_proj", "up_proj"), "down_proj")


@dataclass(frozen=True)
class Architecture:
    """What differs between model types. Paths are relative to a decoder layer.

    writers: modules whose parameters write into the residual stream.
    attention, mlp: a layer's halves, in the order in which they run.
    offset_gain: norms, the writers among them, multiply by `1 + weight`, so scaling by `a` means `w <- a(1 + w) - 1`.
    per_layer: config attributes that hold one entry per layer.
    """

    writers: tuple[str, ...]
    offset_gain: bool = False
    per_layer: tuple[str, ...] = ()
    attention: Half = _ATTENTION
    mlp: Half = _MLP

    @property
    def halves(self) -> dict[str, Half]:
        """Attention and MLP by name, as they follow one another."""
        return {"attention": self.attention, "mlp": self.mlp}


_PLAIN = ("self_attn.o_proj", "mlp.down_proj")

SUPPORTED: dict[str, Architecture] = {
    "llama": Architecture(_PLAIN),
    "mistral": Architecture(_PLAIN),
    "qwen2": Architecture(_PLAIN, per_layer=("layer_types",)),
    "qwen3": Architecture(_PLAIN, per_layer=("layer_types",)),
    # Gemma 2 normalises what o_proj and down_proj produce, so only the gains of the post-norms reach the stream.
    "gemma2": Architecture(
        ("post_attention_layernorm", "post_feedforward_layernorm"),
        offset_gain=True,
        per_layer=("layer_types",),
        attention=replace(_ATTENTION, post="post_attention_layernorm"),
        mlp=replace(_MLP, norm="pre_feedforward_layernorm", post="post_feedforward_layernorm"),
    ),
    # `mlp.experts.down_proj` is one 3-D parameter [experts, channels, features] of the module `mlp.experts`.
    "mixtral": Architecture(("self_attn.o_proj", "mlp.experts:down_proj"), mlp=Half("post_attention_layernorm", "mlp")),
}


def architecture_of(model: nn.Module) -> Architecture:
    """The entry for the model's type. An unknown type is refused by name, with the list of known ones."""
    model_type = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if model_type not in SUPPORTED:
        raise UserError(f"architecture {model_type!r} is not supported; supported: {', '.join(sorted(SUPPORTED))}")
    return SUPPORTED[model_type]


def layer_list(model: nn.Module) -> nn.ModuleList:
    """The model's decoder layers (the live list)."""
    architecture_of(model)
    return model.model.layers


def boundary_module(model: nn.Module, position: int) -> nn.Module:
    """The module that receives `X[position]`: layer `position`, or the final norm for `position == N`."""
    layers = layer_list(model)
    if not 0 <= position <= len(layers):
        raise UserValueError(f"no boundary X[{position}]: the model has {len(layers)} layers, so 0..{len(layers)}")
    return layers[position] if position < len(layers) else model.model.norm


def at_hand(part: nn.Module) -> nn.Module:
    """A layer, embedding or head with its weights in memory: those of a streamed model (`common.models.offload`) are
    read now.
    """
    if (fetch := vars(part).get("fetch")) is not None:
        fetch()
    return part


def absent(weight: Tensor) -> bool:
    """Whether a weight is not in memory: offloaded, or of a part of a streamed model that is not at hand."""
    return weight.is_meta or (
        weight.numel() > 1 and not any(weight.stride())
    )  # one number for all: `common.models.offload`


def branch(layer: nn.Module, half: Half, hidden: Tensor, **kwargs) -> Tensor:
    """What half a layer adds to the stream ``hidden`` [batch, tokens, channels]; kwargs are for attention alone."""
    module = layer.get_submodule(half.module)
    added = module(layer.get_submodule(half.norm)(hidden), **kwargs)
    added = added[0] if isinstance(added, tuple) else added  # attention returns its weights too
    return added if half.post is None else layer.get_submodule(half.post)(added)


def check_one_basis(model: nn.Module) -> None:
    """Refuse what takes the stream for one space in a model whose layers each have a basis of their own (SliceGPT)."""
    if any(hasattr(layer, SHORTCUT.format("attention")) for layer in layer_list(model)):
        raise UserValueError(
            "each layer of a model sliced by SliceGPT has a basis of its own: no layer can be removed and no patch inserted; "
            "do that before slicing"
        )

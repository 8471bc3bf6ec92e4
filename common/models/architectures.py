"""List the differences between the supported architectures: the paths of a layer's parts, and those that write.

With `common.models.decoder`, which runs them, the only module that knows architectures. A new one is one entry of
`SUPPORTED`.
"""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from common.utils.errors import UserError, UserValueError

# SliceGPT's matrix [channels in, channels out] on the residual stream beside a sub-layer.
SHORTCUT = "{}_shortcut"


@dataclass(frozen=True)
class Sublayer:
    """A sub-layer, attention or MLP, of a decoder layer. It adds ``module(norm(x))`` or ``post(module(norm(x)))`` to x.

    Attributes:
        norm: Path of the norm before the module; '' if the module reads the residual stream itself.
        module: Path of the module.
        readers: Linear layers of the module that read the norm's output; () if experts hold them.
        writer: Linear layer that computes the module's output; '' if experts hold it.
        post: Path of the norm after the module; '' for none.
        returns_pair: Whether the layer unpacks what the module returns, its output and something else.
    """

    norm: str
    module: str
    readers: tuple[str, ...] = ()
    writer: str = ""
    post: str | None = None
    returns_pair: bool = False


_ATTENTION = Sublayer("input_layernorm", "self_attn", ("q_proj", "k_proj", "v_proj"), "o_proj")
_MLP = Sublayer("post_attention_layernorm", "mlp", ("gate_proj", "up_proj"), "down_proj")
_EXPERTS = Sublayer("post_attention_layernorm", "mlp")


@dataclass(frozen=True)
class Architecture:
    """Facts that differ between model types.

    Paths are relative to a decoder layer, except body, embed, norm, head and positions, which are relative to the
    model.

    Attributes:
        writers: Modules whose parameters write into the residual stream; ``module:parameter`` names that parameter
            alone. A layer may lack some of them (a mixture's first layers may be dense).
        offset_gain: Norms, the writers among them, multiply by `1 + weight`, so scaling by `a` means `w <- a(1 + w) -
            1`.
        layer_types: Whether the config's ``layer_types`` says which layers have sliding attention.
        sliding: Whether the config's ``sliding_window`` gives it to all layers; other types ignore that field.
        attention: The layer's attention.
        mlp: The layer's MLP, which runs after attention.
        parallel: Both sub-layers read the residual stream as it enters the layer.
        multiplier: Config attribute that multiplies each sub-layer's contribution; '' for none.
        inseparable: Reason why attention and MLP cannot be separated or removed; '' if they can.
        experts: Names in files of the expert matrices that memory holds stacked: folder, gate, up, down. () if files
            and memory agree.
        renamed: Pairs of a prefix of parameter names in memory and its replacement in files.
        body: The module with the layers.
        embed: Token embedding in the body.
        norm: Final norm in the body.
        head: Output head.
        positions: Position embedding in the body, which also writes into the residual stream; '' for none.
    """

    writers: tuple[str, ...]
    offset_gain: bool = False
    layer_types: bool = False
    sliding: bool = False
    attention: Sublayer = _ATTENTION
    mlp: Sublayer = _MLP
    parallel: bool = False
    multiplier: str = ""
    inseparable: str = ""
    experts: tuple[str, str, str, str] | tuple[()] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    body: str = "model"
    embed: str = "embed_tokens"
    norm: str = "norm"
    head: str = "lm_head"
    positions: str = ""

    @property
    def sublayers(self) -> dict[str, Sublayer]:
        """Attention and MLP by name, in order of execution."""
        return {"attention": self.attention, "mlp": self.mlp}

    @property
    def matrices(self) -> tuple[str, str] | None:
        """Return the paths of the two linear layers whose outputs are added to the residual stream unchanged.

        They exist only where attention runs first and the MLP reads the state after it; otherwise None.
        """
        paths = tuple(f"{sublayer.module}.{sublayer.writer}" for sublayer in (self.attention, self.mlp))
        return paths if paths == self.writers and not self.parallel and not self.inseparable else None

    @property
    def like_llama(self) -> bool:
        """Return whether layers are built and named as Llama's are, down to single heads and channels."""
        return replace(self, layer_types=False, sliding=False) == Architecture(_PLAIN)

    @property
    def narrows(self) -> bool:
        """Return whether single heads and channels of a layer can be removed (`common.models.layers.widths`)."""
        named_as_llama = (self.attention.readers, self.attention.writer) == (_ATTENTION.readers, _ATTENTION.writer)
        inner = self.mlp.readers == _MLP.readers or self.experts[:1] == ("block_sparse_moe.",)
        return named_as_llama and inner and bool(self.attention.norm) and not self.inseparable


_PLAIN = ("self_attn.o_proj", "mlp.down_proj")
_POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_LINEAR = "some of its layers have linear attention, which keeps a state of its own in the cache"
# Gemma 2 normalises what o_proj and down_proj produce, so only the gains of the post-norms reach the residual stream.
_GEMMA = Architecture(
    _POST_NORMS,
    offset_gain=True,
    layer_types=True,
    attention=replace(_ATTENTION, post=_POST_NORMS[0]),
    mlp=replace(_MLP, norm="pre_feedforward_layernorm", post=_POST_NORMS[1]),
)
# OLMo 2 normalises behind its sub-layers alone: they read the residual stream itself.
_OLMO = replace(
    _GEMMA,
    offset_gain=False,
    layer_types=False,
    attention=replace(_GEMMA.attention, norm=""),
    mlp=replace(_GEMMA.mlp, norm=""),
)
# Each expert's matrices are one 3-D parameter [experts, channels, features] of the module `mlp.experts`.
_MIXTURE = Architecture(
    ("self_attn.o_proj", "mlp.down_proj", "mlp.experts:down_proj"),
    mlp=_EXPERTS,
    experts=("mlp.", "gate_proj", "up_proj", "down_proj"),
)
# Every token goes through the shared experts, which are one MLP, too.
_SHARED = replace(_MIXTURE, writers=(*_MIXTURE.writers, "mlp.shared_experts.down_proj"))
_DEEPSEEK = replace(
    _SHARED,
    attention=Sublayer("input_layernorm", "self_attn", ("q_proj", "kv_a_proj_with_mqa"), "o_proj"),
)

LISTED = "docs/models.md lists those that are"  # said of an architecture that is not supported
SUPPORTED: dict[str, Architecture] = {
    "llama": Architecture(_PLAIN),
    "mistral": Architecture(_PLAIN, sliding=True),
    "qwen2": Architecture(_PLAIN, layer_types=True),
    "qwen3": Architecture(_PLAIN, layer_types=True),
    "smollm3": Architecture(_PLAIN, layer_types=True),
    "gemma": Architecture(_PLAIN, offset_gain=True),
    "granite": Architecture(_PLAIN, multiplier="residual_multiplier"),
    "phi3": Architecture(
        _PLAIN,
        sliding=True,
        attention=replace(_ATTENTION, readers=("qkv_proj",)),
        mlp=replace(_MLP, readers=("gate_up_proj",)),
    ),
    "starcoder2": Architecture(
        ("self_attn.o_proj", "mlp.c_proj"),
        sliding=True,
        mlp=Sublayer("post_attention_layernorm", "mlp", ("c_fc",), "c_proj"),
    ),
    "apertus": Architecture(
        _PLAIN,
        attention=replace(_ATTENTION, norm="attention_layernorm"),
        mlp=Sublayer("feedforward_layernorm", "mlp", ("up_proj",), "down_proj"),
    ),
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "olmo2": _OLMO,
    "olmo3": replace(_OLMO, layer_types=True),
    "exaone4": replace(_OLMO, layer_types=True),
    "glm": Architecture(_PLAIN, mlp=replace(_MLP, readers=("gate_up_proj",))),
    "glm4": Architecture(
        ("post_self_attn_layernorm", "post_mlp_layernorm"),
        attention=replace(_ATTENTION, post="post_self_attn_layernorm"),
        mlp=replace(_MLP, readers=("gate_up_proj",), post="post_mlp_layernorm"),
    ),
    "cohere2": Architecture(_PLAIN, layer_types=True, mlp=replace(_MLP, norm="input_layernorm"), parallel=True),
    "mixtral": replace(
        _MIXTURE,
        writers=("self_attn.o_proj", "mlp.experts:down_proj"),
        sliding=True,
        experts=("block_sparse_moe.", "w1", "w3", "w2"),
        renamed=(("mlp.gate.", "block_sparse_moe.gate."),),
    ),
    "granitemoe": Architecture(
        ("self_attn.o_proj", "block_sparse_moe.experts:down_proj"),
        mlp=replace(_EXPERTS, module="block_sparse_moe"),
        multiplier="residual_multiplier",
        renamed=(
            ("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
            ("block_sparse_moe.experts.down_proj", "block_sparse_moe.output_linear.weight"),
            ("block_sparse_moe.router.", "block_sparse_moe.router.layer."),
        ),
    ),
    "qwen2_moe": replace(_MIXTURE, writers=(*_MIXTURE.writers, "mlp.shared_expert.down_proj"), layer_types=True),
    "qwen3_moe": replace(_MIXTURE, sliding=True),
    "hunyuan_v1_moe": replace(
        _MIXTURE, writers=("self_attn.o_proj", "mlp.experts:down_proj", "mlp.shared_mlp.down_proj")
    ),
    "ernie4_5_moe": replace(_SHARED, renamed=(("mlp.gate.moe_statics.", "mlp.moe_statics."),)),
    "olmoe": _MIXTURE,
    "glm4_moe": _SHARED,
    "dots1": replace(_SHARED, layer_types=True),
    "gpt_oss": replace(
        _MIXTURE,
        writers=("self_attn.o_proj", "mlp.experts:down_proj", "mlp.experts:down_proj_bias"),
        layer_types=True,
        mlp=replace(_EXPERTS, returns_pair=True),
        experts=(),
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "qwen3_next": replace(
        _MIXTURE,
        writers=(*_MIXTURE.writers, "linear_attn.out_proj", "mlp.shared_expert.down_proj"),
        offset_gain=True,
        layer_types=True,
        inseparable=_LINEAR,
    ),
    "qwen3_5_text": Architecture(
        ("self_attn.o_proj", "linear_attn.out_proj", "mlp.down_proj"),
        offset_gain=True,
        layer_types=True,
        inseparable=_LINEAR,
    ),
    "gpt_neox": Architecture(
        ("attention.dense", "mlp.dense_4h_to_h"),
        attention=Sublayer("input_layernorm", "attention", ("query_key_value",), "dense"),
        mlp=Sublayer("post_attention_layernorm", "mlp", ("dense_h_to_4h",), "dense_4h_to_h"),
        parallel=True,
        body="gpt_neox",
        embed="embed_in",
        norm="final_layer_norm",
    ),
    "opt": Architecture(
        ("self_attn.out_proj", "fc2"),
        attention=Sublayer("self_attn_layer_norm", "self_attn", ("q_proj", "k_proj", "v_proj"), "out_proj"),
        mlp=Sublayer("final_layer_norm", "", ("fc1",), "fc2"),
        inseparable="its MLP is no module of its own",
        body="model.decoder",
        norm="final_layer_norm",
        positions="embed_positions",
    ),
}


# Those of `SUPPORTED` that `common.models.unlisted` added in this process: no test has seen them.
LEARNT: set[str] = set()


def architecture_of(model: nn.Module) -> Architecture:
    """Return the entry for the model's type.

    Raises:
        UserError: an unknown type; the message lists the known ones.
    """
    model_type = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if model_type not in SUPPORTED:
        raise UserError(f"architecture {model_type!r} is not supported; supported: {', '.join(sorted(SUPPORTED))}")
    return SUPPORTED[model_type]


def layer_list(model: nn.Module) -> nn.ModuleList:
    """Return the model's decoder layers (the live list)."""
    return body(model).layers


def body(model: nn.Module) -> nn.Module:
    """Return the module that holds the decoder layers."""
    return model.get_submodule(architecture_of(model).body)


def embedding(model: nn.Module) -> nn.Module:
    """Return the token embedding."""
    return body(model).get_submodule(architecture_of(model).embed)


def final_norm(model: nn.Module) -> nn.Module:
    """Return the norm behind the last layer."""
    return body(model).get_submodule(architecture_of(model).norm)


def head(model: nn.Module) -> nn.Module:
    """Return the head: channels to vocabulary."""
    return model.get_submodule(architecture_of(model).head)


def experts_option(config) -> str | None:
    """Return the name of the config's field for the number of experts per layer; None for a model without experts."""
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    return next((name for name in names if getattr(config, name, None)), None)


def check_separable(model: nn.Module, what: str) -> None:
    """Refuse work on attention and MLP apart if the architecture cannot separate them.

    Raises:
        UserError: the message names the reason.
    """
    spec = architecture_of(model)
    why = spec.inseparable or ("its attention and MLP run side by side" if spec.parallel else "")
    if why:
        raise UserError(
            f"{what} cannot be done for architecture {model.config.model_type!r}: {why}. Use another method"
        )


def boundary_module(model: nn.Module, position: int) -> nn.Module:
    """Return the module that receives `X[position]`: layer `position`, or the final norm for `position == N`."""
    layers = layer_list(model)
    if not 0 <= position <= len(layers):
        raise UserValueError(f"no boundary X[{position}]: the model has {len(layers)} layers, so 0..{len(layers)}")
    return layers[position] if position < len(layers) else final_norm(model)


def at_hand(part: nn.Module) -> nn.Module:
    """Return a layer, embedding or head with its weights in memory; weights of an offloaded model are read now."""
    if (fetch := vars(part).get("fetch")) is not None:
        fetch()
    return part


def absent(weight: Tensor) -> bool:
    """Return whether a weight is not in memory: offloaded, or of a part of a streamed model that is not read."""
    one_for_all = weight.numel() > 1 and not any(weight.stride())  # see `common.models.offload`
    return weight.is_meta or one_for_all


def branch(layer: nn.Module, sublayer: Sublayer, hidden: Tensor, **kwargs) -> Tensor:
    """Compute a sub-layer's contribution to the residual stream ``hidden`` [batch, tokens, channels].

    ``kwargs`` are attention's arguments.
    """
    added = layer.get_submodule(sublayer.module)(normed(layer, sublayer, hidden), **kwargs)
    added = added[0] if isinstance(added, tuple) else added  # attention returns its weights too
    return added if sublayer.post is None else layer.get_submodule(sublayer.post)(added)


def normed(layer: nn.Module, sublayer: Sublayer, hidden: Tensor) -> Tensor:
    """Return what a sub-layer's module reads of the residual stream ``hidden`` [..., channels]."""
    return layer.get_submodule(sublayer.norm)(hidden) if sublayer.norm else hidden


def check_one_basis(model: nn.Module) -> None:
    """Refuse a model whose layers have different bases of the residual stream (SliceGPT)."""
    if any(hasattr(layer, SHORTCUT.format("attention")) for layer in layer_list(model)):
        raise UserValueError(
            "each layer of a model sliced by SliceGPT has a basis of its own: no layer can be removed and no patch inserted; "
            "do that before slicing"
        )

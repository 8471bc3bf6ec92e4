"""Remove decoder layers in place, so that a plain, consistent Hugging Face model remains.

Four things must change together (leaving one out fails silently, e.g. wrong cached decoding or random layers after a
reload): the list of layers, every `layer_idx`, `num_hidden_layers`, and the config lists with one entry per layer.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from common.hooks import attach_patch, patch_hooks, patches, take_patch_hooks
from common.models.architectures import body, boundary_module, check_one_basis, embedding, head, layer_list
from common.models.removal import check_count, check_layers
from common.utils.errors import UserError, UserValueError

# The linear layers whose biases a config promises with one flag.
_BIASED = {
    "mlp_bias": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "attention_bias": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
}


def remove_layers(model: nn.Module, indices: Iterable[int]) -> None:
    """Remove the decoder layers at `indices` (0-based, present positions), in place.

    The model generates with a cache, saves and reloads as usual afterwards. Each remaining layer keeps its attention
    type. A patch before a removed layer acts before the next remaining layer afterwards.

    Raises:
        UserError: (a ValueError) a number of layers outside 1..N-2, or repeated or non-existing indices.
    """
    check_one_basis(model)
    layers = layer_list(model)
    removed = _validated(indices, len(layers))
    remaining = [index for index in range(len(layers)) if index not in removed]
    _check_kinds(model.config, remaining)
    _move_patches(model, removed, remaining)
    body(model).layers = nn.ModuleList([layers[index] for index in remaining])
    for position, layer in enumerate(body(model).layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = position
    slice_config(model.config, remaining)


@contextmanager
def without_layers(model: nn.Module, indices: Iterable[int]) -> Iterator[None]:
    """Run the model without the layers at `indices` (present positions) while the context is open.

    Only passes without a cache are supported. Weights and `layer_idx` do not change, and the model is restored
    afterwards. A patch acts where `remove_layers` would leave it.

    Raises:
        UserError: as `remove_layers`.
    """
    layers, config = layer_list(model), model.config
    check_one_basis(model)
    removed = _validated(indices, len(layers))
    remaining = [index for index in range(len(layers)) if index not in removed]
    before = dict(vars(config))
    receivers = [boundary_module(model, position) for position in range(len(layers) + 1)]
    hooks = [patch_hooks(receiver) for receiver in receivers]
    try:
        _move_patches(model, removed, remaining)
        body(model).layers = nn.ModuleList([layers[index] for index in remaining])
        slice_config(config, remaining)
        yield
    finally:
        body(model).layers = layers
        vars(config).update(before)
        for receiver, own in zip(receivers, hooks, strict=True):
            if patch_hooks(receiver) != own:
                take_patch_hooks(receiver)
                for hook in own:
                    receiver.register_forward_pre_hook(hook)


def replace_runs(model: nn.Module, modules: Mapping[tuple[int, int], nn.Module], kind: str | None = None) -> list[int]:
    """Replace every run ``[start, stop)`` of layers by its module, in place.

    Args:
        model: The model; it is changed.
        modules: Module by run.
        kind: Kind of the patches that the modules become (`common.hooks.attach_patch`); default ``module.kind``.

    Returns:
        Their positions in the pruned model, in the order of ``modules``.

    Raises:
        UserError: as `remove_layers` and `check_unpatched`.
    """
    runs = sorted(modules)
    check_unpatched(model, runs)
    remove_layers(model, [layer for run in runs for layer in range(*run)])
    removed_before, positions = 0, {}
    for start, stop in runs:
        positions[start, stop] = attach_patch(model, start - removed_before, modules[start, stop], kind).position
        removed_before += stop - start
    return [positions[run] for run in modules]


def check_unpatched(model: nn.Module, runs: Iterable[tuple[int, int]]) -> None:
    """Refuse to replace runs ``[start, stop)`` of layers at whose boundaries a patch already acts.

    A module fitted from the states before a patch includes the patch's effect, and the patch would act once more after
    it.

    Raises:
        UserError: the message names the patch and the run.
    """
    positions = {patch.position for patch in patches(model)}
    for start, stop in runs:
        if met := sorted(positions & {*range(start, stop + 1)}):
            raise UserError(
                f"the model carries a patch before layer {met[0]}, where layers {start} to {stop - 1} are to be "
                "removed; prune the model that the patch was made for, all layers at once"
            )


def untie_embeddings(model: nn.Module) -> None:
    """Give the head a separate copy of the embedding, in place; without effect if they are already separate.

    Both the parameter and the config flag change. With the flag alone the head is not saved and reloads at random; with
    the parameter alone the next `tie_weights()` undoes it.
    """
    own, tokens = head(model), embedding(model)
    if own.weight is tokens.weight:
        own.weight = nn.Parameter(tokens.weight.detach().clone(), requires_grad=tokens.weight.requires_grad)
    model.config.tie_word_embeddings = False


def add_biases(model: nn.Module, flag: str) -> None:
    """Give linear layers the biases that a config's ``flag`` promises, zeros where there were none, in place.

    flag: ``mlp_bias`` (gate_proj, up_proj, down_proj) or ``attention_bias`` (q_proj, k_proj, v_proj, o_proj). It
    applies to every layer, because the config has one flag for all. The model's outputs do not change.

    Raises:
        UserError: the architecture's config has no such flag.
    """
    if not hasattr(model.config, flag):
        raise UserError(
            f"architecture {model.config.model_type!r} has no {flag} in its config; leave the intercept out"
        )
    for layer in layer_list(model):
        for path in _BIASED[flag]:
            linear = layer.get_submodule(path)
            if linear.bias is None:
                linear.bias = nn.Parameter(linear.weight.new_zeros(len(linear.weight)), linear.weight.requires_grad)
    setattr(model.config, flag, True)


def _validated(indices: Iterable[int], layers: int) -> set[int]:
    """Return `indices` as a set, checked against a model of so many layers."""
    removed = [int(index) for index in indices]
    check_count(len(removed), layers)
    check_layers(removed, layers)
    return set(removed)


def _check_kinds(config, remaining: list[int]) -> None:
    """Refuse to leave linear attention alone, for the cache counts tokens in other layers, and what no config could say."""
    if getattr(config, "moe_layer_interval", 1) != 1:  # ERNIE
        raise UserValueError(
            "cannot remove layers: those with experts would no longer stand at an interval, and by the config's "
            f"moe_layer_interval {config.moe_layer_interval} they must. Use a model in which it is 1"
        )
    kinds = getattr(config, "layer_types", None) or []
    attending = [index for index, kind in enumerate(kinds) if kind != "linear_attention"]
    if attending and not set(attending) & set(remaining):
        raise UserValueError(
            f"cannot remove layers {attending}: only layers with linear attention would be left, and the model could not "
            "generate. Keep one of them: name the layers to remove (--layers), or remove fewer"
        )


def _move_patches(model: nn.Module, removed: set[int], remaining: list[int]) -> None:
    """Hand the patches of removed layers to the next remaining module, ahead of the patches it already has."""
    total = len(removed) + len(remaining)
    for index in sorted(removed, reverse=True):
        target = boundary_module(model, min((k for k in remaining if k > index), default=total))
        for hook in reversed(take_patch_hooks(boundary_module(model, index))):
            target.register_forward_pre_hook(hook, prepend=True)


def slice_config(config, remaining: list[int]) -> None:
    """Restrict the config to the layers `remaining` (previous positions).

    Lists with one entry per layer are recognised by their length, whatever their names. Fields that count or select
    layers by position are updated, or become such a list.
    """
    layers = config.num_hidden_layers
    if getattr(config, "decoder_sparse_step", None) is not None:  # Qwen's mixtures: which layers have experts
        step, dense = config.decoder_sparse_step, config.mlp_only_layers or []
        mixed = [index not in dense and (index + 1) % step == 0 for index in range(layers)]
        config.mlp_only_layers = [place for place, index in enumerate(remaining) if not mixed[index]]
        config.decoder_sparse_step = 1
    for name, values in list(vars(config).items()):
        if not isinstance(values, list | tuple) or name.endswith(_NOT_LAYERS):
            continue
        if len(values) == layers or (name in _BY_LAYER and len(values) > layers):
            setattr(config, name, type(values)(values[index] for index in remaining))
    if (last := getattr(config, "moe_layer_end_index", None)) is not None:  # ERNIE, where -1 means the last layer
        until = sum(index <= last for index in remaining)
        config.moe_layer_end_index = until - 1 if until else layers
        config.moe_layer_start_index = config.moe_layer_start_index if until else layers
    for name in _FIRST:
        threshold = getattr(config, name, None)
        if threshold is not None:
            setattr(config, name, sum(index < threshold for index in remaining))
    config.num_hidden_layers = len(remaining)


# Lists by layer that transformers accepts longer than the model is deep.
_BY_LAYER = ("no_rope_layers", "moe_topk", "num_experts", "num_shared_expert", "moe_intermediate_size")
# Lists that are not by layer, should they be as long.
_NOT_LAYERS = ("token_id", "token_ids", "mlp_only_layers", "architectures", "suppress_tokens", "losses")
# So many of the first layers: with full attention (Qwen), without experts (DeepSeek, ERNIE).
_FIRST = ("max_window_layers", "first_k_dense_replace", "moe_layer_start_index")

"""Architectures that `common.models.architectures` does not list, but that are built like Llama.

`layout` checks a model without weights, `check` runs the loaded model on a few tokens. Both refusals name the
difference.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from common.models.architectures import LEARNT, LISTED, SUPPORTED, Sublayer, embedding, final_norm, layer_list
from common.models.decoder import Decoder
from common.utils.errors import UserError, first_of

log = logging.getLogger(__name__)

_OUTSIDE = {"embed_tokens", "layers", "norm", "rotary_emb"}
_INSIDE = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_LLAMA = SUPPORTED["llama"]
_TOKENS, _ROWS = 12, 2


def layout(model: nn.Module) -> list[str]:
    """Return the differences from Llama's layout; without any, the model's type is supported from then on."""
    kind, body = model.config.model_type, getattr(model, "model", None)
    layers = getattr(body, "layers", None)
    if not isinstance(layers, nn.ModuleList) or len(layers) != getattr(model.config, "num_hidden_layers", None):
        return ["it has no list model.layers of num_hidden_layers decoder layers"]
    differences = []
    if not isinstance(getattr(model, "lm_head", None), nn.Linear):
        differences.append("it has no linear lm_head")
    if differing := sorted({name for name, _ in body.named_children()} ^ _OUTSIDE):
        differences.append(f"model differs in {first_of(differing, 4)}")
    inside = {name for layer in layers for name in {name for name, _ in layer.named_children()} ^ _INSIDE}
    if inside:
        differences.append(f"its layers differ in {first_of(sorted(inside), 4)}")
        return differences
    for number, layer in enumerate(layers):
        modules = dict(layer.named_modules())
        if missing := [path for path in _LLAMA.writers if not isinstance(modules.get(path), nn.Linear)]:
            differences.append(f"{missing[0]} of layer {number} is no linear module")
            break
        if own := [name for name, _ in layer.named_parameters(recurse=False)]:
            differences.append(f"layer {number} has a parameter of its own, {own[0]}")
            break
    if by_index := _by_index(layers, getattr(model.config, "layer_types", None)):
        differences.append(f"{by_index} depends on the layer's index, which changes where layers are removed before it")
    if not differences:
        SUPPORTED[kind] = replace(
            _LLAMA,
            layer_types=getattr(model.config, "layer_types", None) is not None,
            attention=_as_in(layers[0], _LLAMA.attention),
            mlp=_as_in(layers[0], _LLAMA.mlp),
        )
        LEARNT.add(kind)
    return differences


def _by_index(layers: nn.ModuleList, layer_types: Sequence[str] | None) -> str:
    """Return the first number that differs between layers of one type, as DiffLlama's lambda_init; '' without any."""
    numbers_by_type: dict[str, dict[str, float]] = {}
    for place, layer in enumerate(layers):
        kind = layer_types[place] if layer_types else ""
        numbers = {
            f"{path}.{name}".removeprefix("."): value
            for path, module in layer.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, float)
        }
        expected = numbers_by_type.setdefault(kind, numbers)
        if differing := sorted(name for name in numbers.keys() & expected.keys() if numbers[name] != expected[name]):
            return differing[0]
    return ""


def _as_in(layer: nn.Module, sublayer: Sublayer) -> Sublayer:
    """Return Llama's sub-layer, without reading matrices if this layer lacks one of them."""
    module = layer.get_submodule(sublayer.module)
    has_all = all(isinstance(getattr(module, name, None), nn.Linear) for name in sublayer.readers)
    return sublayer if has_all else replace(sublayer, readers=())


@torch.no_grad()
def check(model: nn.Module) -> None:
    """Refuse a model of a learnt architecture whose outputs differ from those of the decoder view.

    Raises:
        UserError: the message names the difference. The architecture is no longer supported then.
    """
    kind = model.config.model_type
    if kind not in LEARNT:
        return
    try:
        differs = _difference(model)
    except (AttributeError, TypeError, RuntimeError, KeyError, AssertionError) as error:
        differs = f"its parts cannot be called one by one ({type(error).__name__}: {error})"
    if differs:
        del SUPPORTED[kind]
        LEARNT.discard(kind)
        raise UserError(f"architecture {kind!r} is not supported: {differs}. {LISTED}")
    log.warning(
        "architecture %r is not among those that this project tests. It is built as Llama is, and gives the same logits "
        "layer by layer as in one pass",
        kind,
    )


def _difference(model: nn.Module) -> str:
    """Return what differs on random tokens; '' where nothing does."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (_ROWS, _TOKENS), generator=generator)
    decoder, norm = Decoder(model), final_norm(model)
    ids = ids.to(embedding(model).weight.device)
    expected = model(ids, use_cache=False, output_hidden_states=True)
    hidden = decoder.embed_tokens(ids)
    if not torch.equal(hidden, expected.hidden_states[0]):
        return "what enters its first layer is not the embedding alone"
    if not torch.equal(decoder.logits(decoder.run(hidden)), expected.logits):
        return "layer by layer it gives other logits than in one pass"
    for layer in (0, len(layer_list(model)) - 1):
        after = decoder.run(hidden, layer, layer + 1)
        middle = hidden + decoder.added(hidden, layer, "attention")
        sum_ = middle + decoder.added(middle, layer, "mlp")
        if (sum_ - after).float().norm() > 0.02 * (after - hidden).float().norm():
            return f"layer {layer} is not its input plus attention plus MLP"
        hidden = after
    before = norm(hidden)
    weight = norm.weight.data
    norm.weight.data = 2 * weight
    doubled = norm(hidden)
    norm.weight.data = weight
    return "" if torch.equal(doubled, 2 * before) else "its final norm does not multiply by its weight"

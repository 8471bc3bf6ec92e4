"""SliceGPT (Ashkboos et al. 2024): remove the residual stream's directions of least variance, and shrink every matrix.

RMSNorm is invariant to a rotation of the residual stream once its gains are in the matrices that read it. So each
sub-layer may have a separate basis Q: readers become W Q, the writer Q'^T W, and the residual stream beside it passes
through the shortcut Q^T Q'. Q are the principal directions of the calibration residual stream, of its uncentred second
moments, in float64. The first `width` of them are kept everywhere but after the last layer, whose final norm and head
are not changed. Each sub-layer is run on the actual output of the sliced ones before it.

The norms keep dividing by the original width C, as in the paper: x / sqrt(|x|^2 / C + e) is an RMSNorm over w channels
with e C / w instead of e, times sqrt(C / w), which goes into the readers.

Deviations from the official code (github.com/microsoft/TransformerCompression at 6b12cde), none of which changes the
function computed in exact arithmetic but the last two: no random rotation within the kept directions; no damping (it
moves no direction); the head is not rotated; e is the model's, not 1e-5; the mean of the embedding is subtracted only
with ``centre``: the paper needs that for LayerNorm, the official code does it to RMSNorm models too, which changes
them.

A sliced model is no plain checkpoint: `common.models.checkpoint` saves and loads it. Norms after attention and MLP
(Gemma 2) do not commute with rotations, and experts (Mixtral) are not covered: both are refused by name.
"""

from functools import cache

import torch
from torch import Tensor, nn

from common.console.progress import track
from common.hooks import refuse_patches
from common.models import offload
from common.models.architectures import (
    LEARNT,
    SHORTCUT,
    SUPPORTED,
    Architecture,
    Sublayer,
    architecture_of,
    branch,
    check_one_basis,
    layer_list,
)
from common.models.decoder import Decoder
from common.models.layers.structure import register_structure
from common.models.surgery import untie_embeddings
from common.utils.errors import UserError, UserValueError

STEP = 8  # widths are multiples of it


def parameters(model: nn.Module, width: int) -> int:
    """Return the number of parameters of a model whose residual stream is sliced to ``width`` channels.

    The head is untied, and shortcuts count.
    """
    spec, decoder = _check(model, width), Decoder(model)
    channels, embed = decoder.hidden_size, decoder.embed.weight.numel()
    total = sum(p.numel() for p in model.parameters()) + embed * decoder.tied
    total -= embed - embed * width // channels
    dropped = channels - width
    for number, layer in enumerate(decoder.layers):
        for name, sublayer in spec.sublayers.items():
            module = layer.get_submodule(sublayer.module)
            last = name == "mlp" and number == decoder.num_layers - 1
            total -= dropped * (1 + sum(getattr(module, reader).out_features for reader in sublayer.readers))
            writer = getattr(module, sublayer.writer)
            total -= 0 if last else dropped * (writer.in_features + (writer.bias is not None))
            total += width * (channels if last else width)
    return total


def width_of_ratio(model: nn.Module, ratio: float) -> int:
    """Return the width, a multiple of eight, that removes the share of parameters nearest to ``ratio``."""
    dense = sum(p.numel() for p in model.parameters())
    widths = range(STEP, model.config.hidden_size + 1, STEP)
    return min(widths, key=lambda width: abs(1 - parameters(model, width) / dense - ratio))


class _Sliced:
    """Mixed into a decoder layer's class: the residual stream beside each sub-layer passes through that one's shortcut."""

    def forward(self, hidden_states: Tensor, **kwargs) -> Tensor:
        for name, sublayer in self.sublayers.items():
            added = branch(self, sublayer, hidden_states, **(kwargs if name == "attention" else {}))
            hidden_states = hidden_states @ getattr(self, SHORTCUT.format(name)) + added
        return hidden_states


@cache
def _sliced_class(plain: type, spec: Architecture) -> type:
    return type(plain.__name__, (_Sliced, plain), {"__module__": plain.__module__, "sublayers": spec.sublayers})


@torch.no_grad()
def slice_stream(
    model: nn.Module, ids: Tensor, width: int, *, centre: bool = False, batch_size: int = 8, progress: bool = False
) -> None:
    """Slice the residual stream to ``width`` channels, in place, by its principal directions on ``ids`` [samples, tokens].

    The head is untied from the embedding. The residual stream of all samples at one boundary stays in host memory.
    ``centre``: subtract the embedding's mean first (official code).

    Raises:
        UserError: an architecture that cannot be sliced, a model with patches, or a width outside 1..C.
    """
    spec, decoder = _check(model, width), Decoder(model)
    untie_embeddings(model)
    embed = decoder.embed
    if centre:
        embed.weight -= embed.weight.double().mean(1, keepdim=True).to(embed.weight.dtype)
    states = [decoder.embed_tokens(batch).cpu() for batch in ids.split(batch_size)]
    basis = principal(states, width, decoder.device)
    full = torch.eye(decoder.hidden_size, dtype=torch.float64, device=decoder.device)
    _set(embed, "weight", embed.weight.double() @ basis)
    embed.embedding_dim = width
    for number in track(range(decoder.num_layers), "SliceGPT", unit="layer", shown=progress):
        layer = decoder.layers[number]
        for name, sublayer in spec.sublayers.items():
            _read_in(layer, sublayer, basis)
            for index, state in enumerate(states):
                entering = (state.to(decoder.device).double() @ basis).to(state.dtype)
                leaving = entering.double() @ basis.T + decoder.added(entering, number, name).double()
                states[index] = leaving.to(state.dtype).cpu()
            last = name == "mlp" and number == decoder.num_layers - 1
            following = full if last else principal(states, width, decoder.device)
            _write_in(layer, sublayer, following)
            setattr(
                layer, SHORTCUT.format(name), nn.Parameter((basis.T @ following).to(model.dtype), requires_grad=False)
            )
            basis = following
        layer.__class__ = _sliced_class(type(layer), spec)


def principal(states: list[Tensor], count: int, device: torch.device) -> Tensor:
    """Return the directions of largest second moment over all tokens: orthonormal columns [channels, count], float64."""
    gram = 0.0
    for state in states:
        rows = state.to(device).flatten(0, -2).double()
        gram = gram + rows.T @ rows
    return torch.linalg.eigh(gram).eigenvectors.flip(1)[:, :count].contiguous()


def _check(model: nn.Module, width: int) -> Architecture:
    offload.refuse(model, "SliceGPT")
    spec = architecture_of(model)
    check_one_basis(model)
    if not _sliceable(spec):
        supported = ", ".join(sorted(name for name, other in SUPPORTED.items() if _sliceable(other)))
        raise UserError(
            f"SliceGPT cannot slice architecture {model.config.model_type!r}: it takes layers without norms behind attention "
            f"and MLP and without experts; supported: {supported}"
        )
    refuse_patches(model, "SliceGPT")  # they act on the residual stream as it was
    if not 0 < width <= model.config.hidden_size:
        raise UserValueError(f"SliceGPT leaves 1..{model.config.hidden_size} channels of this model, not {width}")
    return spec


def _sliceable(spec: Architecture) -> bool:
    return spec.like_llama and not any(SUPPORTED[kind] is spec for kind in LEARNT)


def _read_in(layer: nn.Module, sublayer: Sublayer, basis: Tensor) -> None:
    """Let a sub-layer read the residual stream in this basis [channels, w], the gains of its norm folded into its readers."""
    norm, (channels, width) = getattr(layer, sublayer.norm), basis.shape
    folded = norm.weight.double()[:, None] * basis * (channels / width) ** 0.5
    for name in sublayer.readers:
        reader = getattr(getattr(layer, sublayer.module), name)
        _set(reader, "weight", reader.weight.double() @ folded)
        reader.in_features = width
    _set(norm, "weight", torch.ones(width, device=basis.device))
    norm.variance_epsilon *= channels / width


def _write_in(layer: nn.Module, sublayer: Sublayer, basis: Tensor) -> None:
    """Let a sub-layer write into the residual stream in this basis [channels, w]."""
    writer = getattr(getattr(layer, sublayer.module), sublayer.writer)
    _set(writer, "weight", basis.T @ writer.weight.double())
    if writer.bias is not None:
        _set(writer, "bias", writer.bias.double() @ basis)
    writer.out_features = basis.shape[1]


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    """Give a parameter another value and shape; its dtype and whether it is trained stay."""
    before = getattr(module, name)
    setattr(module, name, nn.Parameter(value.to(before.dtype).contiguous(), requires_grad=before.requires_grad))


def _describe(model: nn.Module) -> dict | None:
    layer = layer_list(model)[0]
    return {"width": layer.attention_shortcut.shape[0]} if isinstance(layer, _Sliced) else None


def _build(model: nn.Module, description: dict) -> None:
    """Give a model the shapes, classes and norms' constants of a sliced one; its weights are loaded afterwards."""
    spec, width, channels = architecture_of(model), description["width"], model.config.hidden_size
    layers, device = model.model.layers, model.model.embed_tokens.weight.device
    narrow, full = (torch.zeros(channels, size, dtype=torch.float64, device=device) for size in (width, channels))
    _set(model.model.embed_tokens, "weight", model.model.embed_tokens.weight[:, :width])
    model.model.embed_tokens.embedding_dim = width
    for number, layer in enumerate(layers):
        for name, sublayer in spec.sublayers.items():
            leaving = full if name == "mlp" and number == len(layers) - 1 else narrow
            _read_in(layer, sublayer, narrow)
            _write_in(layer, sublayer, leaving)
            shortcut = torch.zeros(width, leaving.shape[1], dtype=model.dtype, device=device)
            setattr(layer, SHORTCUT.format(name), nn.Parameter(shortcut, requires_grad=False))
        layer.__class__ = _sliced_class(type(layer), spec)


register_structure(
    "slicegpt", _describe, _build, "its residual stream is sliced, with shortcut matrices beside attention and MLP"
)

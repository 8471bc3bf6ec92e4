"""Give every supported Hugging Face causal language model the same view.

`common.models.architectures` lists the differences.

Layers are 0-based. `X[l]` is the residual stream entering layer `l`, `[batch, tokens, channels]`; `X[N]` is the output
of the last layer *before* the final norm. Layers are called as modules, so hooks on them (patches included) take
effect: `run` returns `X[stop]` as layer `stop - 1` left it, and a patch at `stop` acts once layer `stop` is called. A
patch at `N` is on the final norm and acts in `logits`.

`run` shares masks and rotary embeddings between calls on the same batch shape, is differentiable, and may start
anywhere: `decoder.run(decoder.run(x, 0, k), k, N)` is `decoder.run(x, 0, N)` to the last bit.
"""

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.models.architectures import (
    LEARNT,
    architecture_of,
    at_hand,
    body,
    branch,
    check_separable,
    embedding,
    final_norm,
    head,
)
from common.utils.errors import UserValueError

FULL, SLIDING = "full_attention", "sliding_attention"
_ROWS = 4_096  # of a parameter that are scaled at once
_KEPT_CONTEXTS = 4  # batch shapes whose masks are remembered; more would hold memory for nothing


@dataclass(frozen=True)
class ResidualWriter:
    """One parameter that writes into the residual stream (or, the final norm's gain, into the head).

    ``name`` is its path in the layer, ``parameter`` its name in the module. ``layer`` is None for embedding and norm.
    """

    name: str
    module: nn.Module
    parameter: str
    offset_gain: bool = False
    layer: nn.Module | None = None

    @property
    def tensor(self) -> nn.Parameter:
        """Return the weight, read from disk first where it is offloaded."""
        at_hand(self.module if self.layer is None else self.layer)
        return getattr(self.module, self.parameter)

    def scaled(self, values: Tensor, factor: float) -> Tensor:
        """Return `values` of this parameter changed so that its contribution is `factor` times as large."""
        return factor * (1 + values) - 1 if self.offset_gain else factor * values

    @torch.no_grad()
    def scale_(self, factor: float) -> None:
        """Make this writer's contribution `factor` times as large, in place; computed in float32, rounded once.

        It works on some rows at a time, because an embedding's float32 copy takes as much memory as several layers.
        """
        for part in self.tensor.split(_ROWS):
            wide = part.to(torch.promote_types(part.dtype, torch.float32))
            part.copy_(self.scaled(wide, factor))


@dataclass(frozen=True)
class ForwardContext:
    """Arguments of every layer besides the residual stream, for one batch shape and one padding mask."""

    key: tuple
    padding: Tensor | None
    calls: list[dict]


class Decoder:
    """A view of a model as embedding, decoder layers and head. It holds no weights and follows later surgery.

    ``spec`` are the facts of its architecture. ``executions`` counts the layer calls made through `run` (one per layer
    and batch).
    """

    def __init__(self, model: nn.Module):
        self.spec = architecture_of(model)
        self.model = model
        self.architecture: str = model.config.model_type
        self.executions = 0
        self._contexts: list[ForwardContext] = []

    @property
    def config(self):
        """Return the model's configuration."""
        return self.model.config

    @property
    def layers(self) -> nn.ModuleList:
        """Return the decoder layers that are left."""
        return body(self.model).layers

    @property
    def num_layers(self) -> int:
        """Return the number of layers that are left."""
        return len(self.layers)

    @property
    def hidden_size(self) -> int:
        """Return the number of channels of the residual stream."""
        return self.config.hidden_size

    @property
    def embed(self) -> nn.Module:
        """Return the token embedding."""
        return embedding(self.model)

    @property
    def norm(self) -> nn.Module:
        """Return the final norm."""
        return final_norm(self.model)

    @property
    def lm_head(self) -> nn.Module:
        """Return the language-model head."""
        return head(self.model)

    @property
    def multiplier(self) -> float:
        """Return the number that multiplies attention's and MLP's output before it is added (Granite)."""
        return getattr(self.config, self.spec.multiplier) if self.spec.multiplier else 1.0

    @property
    def tied(self) -> bool:
        """Return whether head and embedding are one tensor."""
        return self.lm_head.weight is self.embed.weight

    @property
    def device(self) -> torch.device:
        """Return the device of the embedding."""
        return self.embed.weight.device

    @property
    def streamed(self) -> bool:
        """Return whether layers are read from disk when called; then run all batches through one layer before the next."""
        return hasattr(self.model, "streamed")

    @property
    def attends(self) -> bool:
        """Return whether every layer is known to accept a custom attention mask (linear attention does not)."""
        kinds = {self.layer_type(layer) for layer in range(self.num_layers)}
        return self.architecture not in LEARNT and kinds <= {FULL, SLIDING}

    def embed_tokens(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embed `ids` [batch, tokens]: return `X[0]` [batch, tokens, channels] (Gemma: already times sqrt(channels)).

        ``positions`` [batch, tokens] are the tokens' positions if they are not consecutive; used by position
        embeddings.
        """
        hidden = self.embed(ids.to(self.device))
        factor = getattr(self.config, "embedding_multiplier", None)
        hidden = hidden if factor is None else hidden * factor
        if not self.spec.positions:
            return hidden
        places = torch.arange(ids.shape[1])[None] if positions is None else positions
        return hidden + body(self.model).get_submodule(self.spec.positions)(None, position_ids=places.to(self.device))

    def layer_type(self, layer: int) -> str:
        """Return which mask layer `layer` uses: 'full_attention', 'sliding_attention' or 'linear_attention'."""
        if self.spec.layer_types:
            return self.config.layer_types[layer]
        return SLIDING if self.spec.sliding and self.config.sliding_window is not None else FULL

    def run(
        self,
        hidden: Tensor,
        start: int = 0,
        stop: int | None = None,
        attention_mask: Tensor | None = None,
        layers: Sequence[int] | None = None,
        gains: Mapping[int, float | Tensor] | None = None,
        context: ForwardContext | None = None,
    ) -> Tensor:
        """Run layers `[start, stop)` on `hidden` = `X[start]` and return `X[stop]`, both [batch, tokens, channels].

        Args:
            hidden: The residual stream before layer ``start``.
            start: First layer.
            stop: Layer after the last one; None for all.
            attention_mask: [batch, tokens], 1 for tokens and 0 for padding; None for no padding.
            layers: Run exactly these layers, in this order, instead of the range, to try a pruned model without a copy.
            gains: `gains[l]` multiplies the residual stream before layer `l`, see `gained`.
            context: Custom positions and masks, see `placed`.
        """
        stop = self.num_layers if stop is None else stop
        order = list(range(start, stop)) if layers is None else list(layers)
        if any(not 0 <= layer < self.num_layers for layer in order) or (layers is None and start > stop):
            raise UserValueError(f"cannot run layers {order or [start, stop]}: the model has 0..{self.num_layers - 1}")
        context = context or self._context(hidden, attention_mask)
        for layer in order:
            if gains and layer in gains:
                hidden = gained(hidden, gains[layer])
            hidden = self.layers[layer](hidden, **context.calls[layer])
            self.executions += 1
        return hidden

    def added(self, hidden: Tensor, layer: int, sublayer: str, attention_mask: Tensor | None = None) -> Tensor:
        """Compute the contribution of 'attention' or 'mlp' of a layer to the residual stream ``hidden``.

        ``hidden`` and the contribution are [batch, tokens, channels].
        """
        if self.spec.inseparable:
            check_separable(self.model, "what a sub-layer adds")
        arguments = self._context(hidden, attention_mask).calls[layer] if sublayer == "attention" else {}
        return branch(at_hand(self.layers[layer]), self.spec.sublayers[sublayer], hidden, **arguments) * self.multiplier

    def placed(self, hidden: Tensor, positions: Tensor, masks: Mapping[str, Tensor]) -> ForwardContext:
        """Return a context for `run` on sequences whose tokens are at ``positions`` [batch, tokens], not consecutive.

        ``hidden`` has the shape, type and device of their states. ``masks`` holds, for each `layer_type` of the model,
        the tensor [batch, 1, tokens, tokens] that is added to the scores of attention.
        """
        calls = self._calls(hidden, None, positions.to(hidden.device))
        return ForwardContext(
            (), None, [arguments | {"attention_mask": masks[self.layer_type(i)]} for i, arguments in enumerate(calls)]
        )

    def padded(self, hidden: Tensor, padding: Tensor) -> ForwardContext:
        """Return a context for `run` on rows whose tokens have the positions that they have without ``padding``.

        ``hidden`` as in `placed`; ``padding`` [batch, tokens] is 1 for tokens and 0 for padding. With most rotary
        embeddings a shift of all positions changes nothing. It does in Hunyuan, which scales queries and keys by channel
        after them.
        """
        padding = padding.to(hidden.device)
        return ForwardContext((), None, self._calls(hidden, padding, unpadded_positions(padding)))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [batch, tokens, vocabulary] from `X[N]` [batch, tokens, channels]: final norm, head, soft cap."""
        return self.head(self.norm(hidden))

    def head(self, normed: Tensor) -> Tensor:
        """Return logits [..., vocabulary] from the final norm's output [..., channels]: head, its factor, soft cap."""
        logits = self.lm_head(normed)
        if (factor := getattr(self.config, "logit_scale", None)) is not None:  # Cohere
            logits = logits * factor
        if (divisor := getattr(self.config, "logits_scaling", None)) is not None:  # Granite
            logits = logits / divisor
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def residual_writers(self, layer: int) -> list[ResidualWriter]:
        """Return every parameter (weights, then their biases) with which layer `layer` writes into the residual stream."""
        writers, attention = [], getattr(self.layers[layer], self.spec.attention.module, None)
        # It has no projection of its own: `common.models.layers.sublayers`.
        if getattr(attention, "state", None) == "linear":
            writers += [
                ResidualWriter(f"self_attn.{name}", attention, name, False, self.layers[layer])
                for name in ("weight", "bias")
            ]
        for path in self.spec.writers:
            module_path, _, parameter = path.partition(":")
            try:
                module = self.layers[layer].get_submodule(module_path)
            except AttributeError:
                continue  # that sub-layer is removed, or a linear map (`common.models.layers.sublayers`)
            offset = self.spec.offset_gain and "norm" in module_path
            for name in (parameter,) if parameter else ("weight", "bias"):
                if getattr(module, name, None) is not None:
                    writers.append(ResidualWriter(f"{module_path}.{name}", module, name, offset, self.layers[layer]))
        return writers

    def embedding_writers(self) -> list[ResidualWriter]:
        """Return the embeddings of tokens and positions. When `tied`, scaling scales the logits too: see `final_gains`."""
        writers = [ResidualWriter("embed_tokens.weight", self.embed, "weight")]
        if self.spec.positions:
            positions = body(self.model).get_submodule(self.spec.positions)
            writers.append(ResidualWriter(f"{self.spec.positions}.weight", positions, "weight"))
        return writers

    def final_gains(self) -> list[ResidualWriter]:
        """Return the gain of the final norm, and its bias.

        Scaled by `a`, they scale the head's input, and the logits, by `a`.
        """
        names = [name for name in ("weight", "bias") if getattr(self.norm, name, None) is not None]
        offset = self.spec.offset_gain
        return [ResidualWriter(f"norm.{name}", self.norm, name, offset and name == "weight") for name in names]

    def _context(self, hidden: Tensor, padding: Tensor | None) -> ForwardContext:
        """Positions, rotary embedding and masks for this batch shape and padding, built once and then shared."""
        key = (
            *hidden.shape[:2],
            hidden.dtype,
            hidden.device,
            self.config._attn_implementation,
            tuple(map(id, self.layers)),
            # tensors made in inference mode cannot take part in a later backward pass
            torch.is_inference_mode_enabled(),
        )
        for context in self._contexts:
            if context.key == key and _same_mask(context.padding, padding):
                return context
        mask = None if padding is None else padding.detach().to(hidden.device).clone()
        context = ForwardContext(key, mask, self._calls(hidden, mask))
        self._contexts = [context, *self._contexts[: _KEPT_CONTEXTS - 1]]
        return context

    def _calls(self, hidden: Tensor, padding: Tensor | None, positions: Tensor | None = None) -> list[dict]:
        """Return what Hugging Face's own forward pass gives each layer: masks, rotary embeddings, positions.

        It runs on a copy of the body whose layers only take notes, so the model is not touched and threads may call it.
        """
        inner, calls = body(self.model), []
        notes = copy.copy(inner)
        takers = nn.ModuleList(_Recorder(layer, calls) for layer in self.layers)
        vars(notes)["_modules"] = {**inner._modules, "layers": takers}
        takers[-1].last = True
        try:
            inspect.unwrap(type(inner).forward)(
                notes, inputs_embeds=hidden, attention_mask=padding, position_ids=positions, use_cache=False
            )
        except _AllRecorded:
            return calls
        raise AssertionError(f"{type(inner).__name__} does not call its layers")


class _AllRecorded(Exception):
    """Ends a pass once the last layer was called."""


class _Recorder(nn.Module):
    """Take a layer's place and record the arguments of each call; other attributes are the layer's."""

    def __init__(self, layer: nn.Module, calls: list[dict]):
        super().__init__()
        vars(self).update(layer=layer, calls=calls, last=False)

    def __getattr__(self, name: str):
        return getattr(vars(self)["layer"], name)

    def forward(self, hidden: Tensor, **arguments) -> Tensor:
        self.calls.append(arguments)
        if self.last:
            raise _AllRecorded
        return hidden


def rope_switch(config) -> int | None:
    """Return the sequence length above which a model has other rotary frequencies (longrope); None for other models."""
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [part for part in (rope, *rope.values()) if isinstance(part, dict) and part.get("rope_type") == "longrope"]
    return min((part["original_max_position_embeddings"] for part in parts), default=None)


def unpadded_positions(padding: Tensor) -> Tensor:
    """Return the positions of tokens where ``padding`` [batch, tokens] is 1, as if the rest were not there."""
    return (padding.long().cumsum(1) - 1).clamp(min=0)


def gained(hidden: Tensor, gain: float | Tensor) -> Tensor:
    """Multiply [..., channels] by a factor, a factor per channel [C], or a matrix [C, C] from the right (float32)."""
    if isinstance(gain, Tensor) and gain.ndim == 2:
        return (hidden.float() @ gain.to(hidden.device, torch.float32)).to(hidden.dtype)
    return hidden * (gain.to(hidden) if isinstance(gain, Tensor) else gain)


def _same_mask(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and torch.equal(a, b.to(a.device, a.dtype))

"""Hidden states of the first layers, kept between evaluations of models that share them.

A pruned model equals its original up to the first change: on the same batch, `X[k]` is the same tensor, bit for bit,
for every `k` below it. Tables score many models that differ only after their interface, on the same items, one after
another in one process. So states are kept (`common.forward.hidden_state_files`) under a digest of the batch and of
everything that makes them (embedding, the layers before, configuration), and an evaluation starts at the deepest state
it shares.

The store needs no notice of changes: it compares weights, so a model changed in place simply shares less. Anything that
a digest of weights does not cover ends the shared part: a layer with hooks (patches), a replaced `forward`, a module
that is not of torch or transformers (adapters, quantised matrices).
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor, nn

from common.forward.hidden_state_files import StateFiles
from common.forward.parallel_batches import side_by_side
from common.forward.spill_buffer import Held
from common.models import half_precision
from common.models.decoder import Decoder
from common.utils import cache

# Larger models are not digested: their states would hardly fit, and reading all weights is not free.
MAX_WEIGHTS = 8_000_000_000
# What differs between a model and its pruned copy though their first layers are the same; `layer_type` is added by layer.
_OWN_PER_MODEL = ("num_hidden_layers", "layer_types", "max_window_layers", "_name_or_path")

STORE = StateFiles()

Item = TypeVar("Item")


class Body:
    """A model's body (embedding, layers, final norm) that starts at the deepest state in the store.

    Create one for each evaluation: the weights are digested on construction. Threads may call it at once.

    Attributes:
        layers_saved: Layer calls that a stored state saved.
        layers_run: Layer calls made.
    """

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.chain = weights_chain(decoder) if STORE.limit else {}
        self.stored_depths = sorted(STORE.begin(self.chain, decoder.num_layers)) if self.chain else []
        self.layers_saved = 0
        self.layers_run = 0
        self._counting = Lock()
        self._ahead: dict[str, Tensor] | None = None  # states of a streamed model, by batch

    def __call__(
        self, ids: Tensor, positions: Tensor | None = None, masks: Mapping[str, Tensor] | None = None, *facts: Tensor
    ) -> Tensor:
        """Return the final norm's output for `ids` [batch, tokens], on the CPU: [batch, tokens, channels].

        positions, masks: see `Decoder.placed`; without them plain sequences. facts: tensors on the CPU that say all about
        the masks.
        """
        decoder, start, hidden, batch = self.decoder, 0, None, ""
        if self._ahead is not None:
            return decoder.norm(self._ahead[_key(ids, positions, facts)].to(decoder.device))
        if self.chain:
            batch = _key(ids, positions, facts)
            start, hidden = STORE.deepest(self.chain, batch)
        with self._counting:
            self.layers_saved += start
            self.layers_run += decoder.num_layers - start
        hidden = decoder.embed_tokens(ids, positions) if hidden is None else hidden
        context = None if masks is None else decoder.placed(hidden, positions, masks)
        for stop in [depth for depth in self.stored_depths if depth > start]:
            hidden = decoder.run(hidden, start, stop, context=context)
            STORE.put(self.chain[stop], batch, hidden)
            start = stop
        return decoder.norm(decoder.run(hidden, start, context=context))

    def ahead(self, items: Sequence[Item], arguments: Callable[[Item], tuple]) -> None:
        """Run all batches of a streamed model through the embedding and then layer by layer; other models are not run.

        ``arguments`` gives the arguments with which this body will be called for an item; positions and masks are None
        for plain sequences. The calls then only look up the results.
        """
        decoder = self.decoder
        if not decoder.streamed:
            return
        states, distinct, pool = {}, {}, Held(cache.folder(), decoder.model.streamed.states)
        with torch.inference_mode():
            for item in items:
                ids, positions, _, *facts = arguments(item)
                if (key := _key(ids, positions, facts)) not in distinct:
                    distinct[key], states[key] = item, pool.keep(decoder.embed_tokens(ids, positions))

        @torch.inference_mode()
        def step(key: str, layer: int) -> None:
            _, positions, masks, *_ = arguments(distinct[key])
            hidden = states[key].to(decoder.device)
            context = None if masks is None else decoder.placed(hidden, positions, masks)
            states[key] = pool.keep(decoder.run(hidden, layer, layer + 1, context=context))

        for layer in range(decoder.num_layers):
            with side_by_side(partial(step, layer=layer), list(distinct), decoder.device) as results:
                self.layers_run += sum(1 for _ in results)
        self._ahead = states


def weights_chain(decoder: Decoder) -> dict[int, str]:
    """Return {k: digest of everything that determines X[k]}, for k = 1, 2, ... up to the first part that no digest covers.

    Empty for models of more than `MAX_WEIGHTS` bytes and off the CPU.
    """
    size = sum(p.numel() * p.element_size() for p in decoder.model.parameters())
    if decoder.device.type != "cpu" or size > MAX_WEIGHTS or not _plain(decoder.embed):
        return {}
    settings = {name: value for name, value in decoder.config.to_dict().items() if name not in _OWN_PER_MODEL}
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((sorted(settings.items(), key=str), decoder.config._attn_implementation)).encode())
    for writer in decoder.embedding_writers():
        _add(digest, writer.module)
    chain = {}
    for depth in range(1, decoder.num_layers):
        layer = decoder.layers[depth - 1]
        if not _plain(layer):
            break
        digest.update(decoder.layer_type(depth - 1).encode())
        _add(digest, layer)
        chain[depth] = digest.hexdigest()
    return chain


def _key(ids: Tensor, positions: Tensor | None, facts: Sequence[Tensor]) -> str:
    """Return a digest of a batch."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (ids, *(() if positions is None else (positions, *facts))):
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _plain(module: nn.Module) -> bool:
    """Return whether the modules' parameters and text say all about what it computes."""
    return all(
        type(part).__module__.startswith(("torch.nn.", "transformers.", half_precision.__name__))
        and not part._forward_hooks
        and not part._forward_pre_hooks
        and "forward" not in vars(part)
        for part in module.modules()
    )


def _add(digest, module: nn.Module) -> None:
    digest.update(repr(module).encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy())

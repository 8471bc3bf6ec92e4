"""Hidden states of the first layers, kept between evaluations of models that share them.

A pruned model is its original up to the first change: on the same batch, `X[k]` is the same tensor, to the bit, for every
`k` below it. Tables score many models that differ only behind their cut, on the same items, one after another in one
process. So the states at evenly spaced boundaries (`stride`) are kept, under a digest of the batch and of everything that
makes them (embedding, the layers before, configuration), and an evaluation starts at the deepest state it shares.

Nothing is told to the store: it compares weights, so a model changed in place simply shares less. Whatever a digest of
weights does not cover ends the shared part: a layer with hooks (patches), a replaced `forward`, a module that is not of
torch or transformers (adapters, quantised matrices).
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from common.decoder import Decoder
from common.hooks import capture

# Above so many layers every fourth boundary is kept in place of every second, or the states of full test sets would not fit.
DEEP = 20
# The most bytes of states kept, as a share of the machine's memory; the least recently used go first.
SHARE = 0.4
# Larger models are not digested: their states would not fit, and reading all weights is not free.
MAX_WEIGHTS = 1_000_000_000
# What differs between a model and its pruned copy though their first layers are the same; `layer_type` is added by layer.
_OWN_PER_MODEL = ("num_hidden_layers", "layer_types", "max_window_layers", "_name_or_path")


class PrefixStore:
    """States [batch, tokens, channels] by digest, at most `limit` bytes of them; `hits` counts those handed out."""

    def __init__(self, limit: int | None = None):
        self.limit = round(SHARE * _memory()) if limit is None else limit
        self.bytes = 0
        self.hits = 0
        self._states: OrderedDict[str, Tensor] = OrderedDict()

    def deepest(self, chain: dict[int, str], batch: str) -> tuple[int, Tensor | None]:
        """The deepest boundary whose state is known for this batch, with that state; (0, None) when none is."""
        for depth in sorted(chain, reverse=True):
            if (key := chain[depth] + batch) in self._states:
                self.hits += 1
                for shallower in sorted(chain):  # the whole line stays fresh: the next model may part earlier
                    if shallower <= depth and chain[shallower] + batch in self._states:
                        self._states.move_to_end(chain[shallower] + batch)
                return depth, self._states[key]
        return 0, None

    def put(self, key: str, state: Tensor) -> None:
        size = state.numel() * state.element_size()
        if key in self._states or size > self.limit:
            return
        self._states[key] = state.clone()
        self.bytes += size
        while self.bytes > self.limit:
            _, oldest = self._states.popitem(last=False)
            self.bytes -= oldest.numel() * oldest.element_size()

    @contextmanager
    def recording(self, decoder: Decoder, chain: dict[int, str], batch: str, start: int) -> Iterator[None]:
        """While open, a forward pass that starts at layer `start` leaves its states here."""
        # a patch on the receiving layer acts before the state could be seen there: what is seen is not X[depth] any more
        depths = [depth for depth in chain if depth > start and not decoder.layers[depth]._forward_pre_hooks]
        with capture(decoder.model, depths, lambda depth, state: self.put(chain[depth] + batch, state)):
            yield


def stride(layers: int) -> int:
    """How far apart the boundaries of a model with so many layers are; most pruned models have their original's."""
    return 4 if layers > DEEP else 2


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def weights_chain(decoder: Decoder) -> dict[int, str]:
    """{k: digest of all that makes X[k]}, for every `stride`-th boundary before anything that a digest cannot cover.

    Empty for models of more than `MAX_WEIGHTS` bytes and off the CPU.
    """
    size = sum(p.numel() * p.element_size() for p in decoder.model.parameters())
    if decoder.device.type != "cpu" or size > MAX_WEIGHTS or not _plain(decoder.embed):
        return {}
    settings = {name: value for name, value in decoder.config.to_dict().items() if name not in _OWN_PER_MODEL}
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((sorted(settings.items(), key=str), decoder.config._attn_implementation)).encode())
    _add(digest, decoder.embed)
    chain, step = {}, stride(decoder.num_layers)
    for depth in range(1, decoder.num_layers):
        layer = decoder.layers[depth - 1]
        if not _plain(layer):
            break
        digest.update(decoder.layer_type(depth - 1).encode())
        _add(digest, layer)
        if depth % step == 0:
            chain[depth] = digest.hexdigest()
    return chain


def batch_digest(*tensors: Tensor) -> str:
    """A digest of what is fed: ids, positions, mask."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def only_from(decoder: Decoder, start: int) -> Iterator[None]:
    """While open, the model consists of its layers from `start` on; feed it X[start] as `inputs_embeds`, without cache."""
    body, config = decoder.model.model, decoder.config
    layers, kinds = body.layers, getattr(config, "layer_types", None)
    try:
        if start:
            body.layers = nn.ModuleList(list(layers)[start:])
            if kinds is not None:
                config.layer_types = kinds[start:]
        yield
    finally:
        body.layers = layers
        if kinds is not None:
            config.layer_types = kinds


def _plain(module: nn.Module) -> bool:
    """Whether the modules' parameters and text say all about what it computes."""
    return all(
        type(part).__module__.startswith(("torch.nn.", "transformers."))
        and not part._forward_hooks
        and not part._forward_pre_hooks
        and "forward" not in vars(part)
        for part in module.modules()
    )


def _add(digest, module: nn.Module) -> None:
    digest.update(repr(module).encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())


STORE = PrefixStore()

"""The residual stream of a model on its calibration tokens, cached between the recipes of one process.

All selections and repairs of a table begin with the same pass of the original model over the same text. Inside
`remembering()` a layer's output for a batch is kept under a digest of the batch and of all weights that lead to it
(`common.forward.prefix_cache.weights_chain`), so the next recipe looks it up, bit for bit. As with the evaluations'
store no invalidation is needed: a changed layer has another digest, and anything that a digest does not cover is
computed.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from torch import Tensor

from common.forward.prefix_cache import batch_digest, weights_chain
from common.models.decoder import Decoder

# Bytes of host memory; the states used longest ago go first.
LIMIT = min(4 * 2**30, psutil.virtual_memory().total // 8)

_STATES: OrderedDict[tuple[str, str], Tensor] = OrderedDict()
_on = False


@contextmanager
def remembering() -> Iterator[None]:
    """Let `CachedHiddenStates` reuse states of this process while the context is open.

    States stay in memory, up to `LIMIT` bytes, until the process ends.
    """
    global _on
    before, _on = _on, True
    try:
        yield
    finally:
        _on = before


class CachedHiddenStates:
    """A pass through an unchanged model that reuses states of earlier passes.

    The weights are digested on construction; later changes to them are not noticed. Nothing is cached for models on a
    GPU, for streamed models and for objects that imitate a decoder: `following` then runs the layer.
    """

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        plain = isinstance(decoder, Decoder) and not decoder.streamed
        self.chain = weights_chain(decoder) if _on and plain else {}

    def following(self, ids: Tensor, hidden: Tensor, layer: int) -> Tensor:
        """Return X[layer + 1] of the batch ``ids`` [batch, tokens], run on its X[layer] ``hidden`` or from the cache.

        Both states are [batch, tokens, channels].
        """
        if layer + 1 not in self.chain:
            return self.decoder.run(hidden, layer, layer + 1)
        key = (self.chain[layer + 1], batch_digest(ids.cpu()))
        if key not in _STATES:
            _STATES[key] = self.decoder.run(hidden, layer, layer + 1)
            while sum(state.nbytes for state in _STATES.values()) > LIMIT and len(_STATES) > 1:
                _STATES.popitem(last=False)
        _STATES.move_to_end(key)
        return _STATES[key]

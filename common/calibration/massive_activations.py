"""The massive activation of a sequence's first token: the layer that writes it.

In most LLMs one layer raises the norm of the first token's state by a factor of a hundred and more. It stays so until
the last layers, and attention without a better target rests on that token (Sun et al., arXiv 2402.17762; one layer
writes it: 2605.08504). A pruned model without that layer lacks the massive activation, even if a cosine averaged over
tokens rates the pruning interface well.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from common.models.architectures import layer_list

TIMES = 10.0  # the median token's norm, from which on the first token's is massive


def massive(hidden: Tensor) -> Tensor:
    """Return a mask [batch, tokens] of the massive tokens of sequences [batch, tokens, channels].

    A token is massive if its norm is above TIMES the median norm of its sequence. A sequence of one token has no
    massive token, because there is no other to compare with, even if the same first token is massive in a longer
    sequence.
    """
    norms = hidden.detach().float().norm(dim=-1)
    return norms > TIMES * norms.median(dim=1, keepdim=True).values


class Norms:
    """Mean norms over sequences at the inputs of N layers: of first tokens, and of each sequence's median token."""

    def __init__(self, layers: int):
        self._norms: list[list[Tensor]] = [[] for _ in range(layers)]  # batches may pass side by side

    def add(self, layer: int, hidden: Tensor) -> None:
        """Add the input ``hidden`` [batch, tokens, channels] of a layer; sequences must be complete."""
        norms = hidden.detach().float().norm(dim=-1)
        self._norms[layer].append(torch.stack([norms[:, 0], norms.median(dim=1).values]).cpu())

    @property
    def first(self) -> list[float]:
        """Mean norm of first tokens at every layer's input."""
        return [torch.cat(parts, 1)[0].mean().item() for parts in self._norms]

    @property
    def median(self) -> list[float]:
        """Mean norm of the median token at every layer's input."""
        return [torch.cat(parts, 1)[1].mean().item() for parts in self._norms]

    def massive_at(self, layer: int) -> bool:
        """Return whether first tokens are massive at a layer's input, compared with a sequence's median token."""
        return self.first[layer] > TIMES * self.median[layer]

    @property
    def writer(self) -> int | None:
        """The layer that raises the norm of first tokens most, or None if they are not massive after it.

        The output of the last layer is not considered.
        """
        first = self.first
        layer = max(range(len(first) - 1), key=lambda layer: first[layer + 1] - first[layer])
        return layer if self.massive_at(layer + 1) else None


@contextmanager
def watched(model: nn.Module) -> Iterator[Norms]:
    """Collect the norms of the inputs of all layers while the context is open; yield them.

    Every layer must run at least once before the norms are read.
    """
    layers = layer_list(model)
    norms = Norms(len(layers))
    with ExitStack() as stack:
        for number, layer in enumerate(layers):  # a patch on a layer acts before
            hook = layer.register_forward_pre_hook(lambda _layer, args, number=number: norms.add(number, args[0]))
            stack.enter_context(hook)
        yield norms

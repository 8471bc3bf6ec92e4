"""The massive activation of a sequence's first token: which layer writes it.

In most LLMs one layer raises the norm of the first token's state a hundredfold and more; it then stays so until the last
layers, and attention that has nothing to look for rests on it (Sun et al., arXiv 2402.17762; that one layer writes it:
2605.08504). A pruned model without that layer has to do without, whatever a cosine averaged over tokens says of the pruning
interface.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from common.hooks import capture
from common.models.architectures import layer_list

TIMES = 10.0  # the median token's norm, from which on the first token's is massive


def massive(hidden: Tensor) -> Tensor:
    """Return which tokens of sequences [batch, tokens, channels] are massive, [batch, tokens]: TIMES the median norm.

    A sequence of one token has no other to be measured by: none is there, not even a first token that is in a longer one.
    """
    norms = hidden.detach().float().norm(dim=-1)
    return norms > TIMES * norms.median(dim=1, keepdim=True).values


class Norms:
    """Norms at the inputs of N layers, means over sequences: of first tokens, and of a sequence's median token."""

    def __init__(self, layers: int):
        self._found: list[list[Tensor]] = [[] for _ in range(layers)]  # batches may pass side by side

    def add(self, layer: int, hidden: Tensor) -> None:
        """States [batch, tokens, channels] of whole sequences."""
        norms = hidden.detach().float().norm(dim=-1)
        self._found[layer].append(torch.stack([norms[:, 0], norms.median(dim=1).values]).cpu())

    @property
    def first(self) -> list[float]:
        """At every layer's input."""
        return [torch.cat(found, 1)[0].mean().item() for found in self._found]

    @property
    def median(self) -> list[float]:
        """At every layer's input."""
        return [torch.cat(found, 1)[1].mean().item() for found in self._found]

    def massive_at(self, layer: int) -> bool:
        """Return whether first tokens are massive at a layer's input, beside a sequence's median token."""
        return self.first[layer] > TIMES * self.median[layer]

    @property
    def writer(self) -> int | None:
        """The layer that raises the norm of first tokens most, if it is then TIMES the median token's; None: there is none.

        What the last layer writes is not looked at.
        """
        first = self.first
        layer = max(range(len(first) - 1), key=lambda layer: first[layer + 1] - first[layer])
        return layer if self.massive_at(layer + 1) else None


@contextmanager
def watched(model: nn.Module) -> Iterator[Norms]:
    """Inside, what enters the model's layers is looked at; every one has to be entered."""
    norms = Norms(len(layer_list(model)))
    with capture(model, range(len(layer_list(model))), norms.add):
        yield norms

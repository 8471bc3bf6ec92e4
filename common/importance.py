"""How dispensable each layer is. For every metric here the lowest score is removed first.

Scores are float64 tensors [N] over the layers 0..N-1 of the model at hand.
"""

from __future__ import annotations

import random
import sys

import torch
from torch import Tensor
from tqdm import tqdm

from common.calibration import Statistics
from common.decoder import Decoder


def block_influence(statistics: Statistics, kind: str = "token") -> Tensor:
    """BI: 1 - mean cosine between a layer's input and output (ShortGPT Eq. 1), [N].

    Prune&Comp (Eq. 4) calls the cosine itself BI and removes the highest; the order is the same.
    """
    return window_scores(statistics, 1, kind)


def window_scores(statistics: Statistics, count: int, kind: str = "token") -> Tensor:
    """1 - mean cosine across every window of ``count`` layers, by its start, [N - count + 1]."""
    starts = range(statistics.layers - count + 1)
    return torch.tensor([1 - statistics.cosine(kind, s, s + count) for s in starts], dtype=torch.float64)


def next_token_loss(decoder: Decoder, hidden: Tensor, ids: Tensor) -> Tensor:
    """Mean next-token loss per sample in nats, float64 [batch], from ``X[N]`` [batch, tokens, channels] and its tokens."""
    logits = decoder.logits(hidden)[:, :-1].float()  # [batch, tokens - 1, vocabulary]
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:].to(logits.device), reduction="none")
    return losses.double().mean(1)


@torch.no_grad()
def losses_without_each(
    decoder: Decoder,
    ids: Tensor,
    alive: list[int],
    candidates: list[int],
    *,
    batch_size: int = 8,
    progress: bool = False,
) -> Tensor:
    """Mean loss over ``[samples, tokens]`` ids of the model ``alive`` without each of ``candidates``, float64.

    Candidates share their first layers with the whole model: each batch runs ``alive`` once, and a candidate continues
    from the stored input of the layer it drops. With m layers alive and the candidates between first and last that is
    (m - 2) + (m - 2)(m - 1)/2 layer executions a batch, against (m - 2)(m - 1) when each trial runs the whole model.
    One batch's layer inputs are held at a time.
    """
    totals = torch.zeros(len(candidates), dtype=torch.float64)
    places = {layer: place for place, layer in enumerate(alive)}
    last = max((places[c] for c in candidates), default=0)
    batches = tqdm(
        ids.split(batch_size), desc="trial losses", leave=False, disable=not (progress and sys.stderr.isatty())
    )
    for batch in batches:
        inputs = [decoder.embed_tokens(batch)]
        for layer in alive[:last]:
            inputs.append(decoder.run(inputs[-1], layers=[layer]))
        for index, candidate in enumerate(candidates):
            place = places[candidate]
            hidden = decoder.run(inputs[place], layers=alive[place + 1 :])
            totals[index] += next_token_loss(decoder, hidden, batch).sum().item()
    return totals / len(ids)


def perplexity_importance(decoder: Decoder, ids: Tensor, *, batch_size: int = 8, progress: bool = False) -> Tensor:
    """Loss of the model without each layer alone, in nats, [N] (Shortened LLaMA's PPL metric, before the exponential)."""
    every = list(range(decoder.num_layers))
    return losses_without_each(decoder, ids, every, every, batch_size=batch_size, progress=progress)


def reverse_order(layers: int) -> Tensor:
    """The deepest layer first: scores N-1..0 (Reassessing's best metric)."""
    return torch.arange(layers - 1, -1, -1, dtype=torch.float64)


def random_order(layers: int, seed: int) -> Tensor:
    """A random order, from Python's ``random`` with the given seed."""
    order = random.Random(seed).sample(range(layers), layers)
    scores = torch.empty(layers, dtype=torch.float64)
    scores[order] = torch.arange(layers, dtype=torch.float64)
    return scores

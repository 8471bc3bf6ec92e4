"""Attention and MLP removed separately: LLM-Drop, BlockPruner, and NBL's linear maps in place of attentions.

LLM-Drop (He et al. 2024; TMLR 2026): remove at once the sub-layers whose output is most similar to their input, cos(x,
x + f(x)), f with its norm; attentions alone, MLPs alone, or both in one ranking (github.com/CASE-Lab-UMD/LLM-Drop at
28b5dd1).

BlockPruner (Zhong et al. 2024): remove one at a time, of both kinds, the sub-layer without which perplexity is lowest.
The paper reads 256 samples of Alpaca.

FinerCut and EntroDrop are in `finercut` and `entrodrop`.

NBL (Erdogan et al. 2025): the attentions nearest to linear become linear maps. The distance from linear is bounded by
the canonical correlations r of the residual stream x and of x + f(x): sum of (1 - r^2). The map is least squares with
an intercept, W = C_yx C_xx^+, b = mean(y) - W mean(x), from the attention's normed input to its contribution, in the
original model. Deviation: the official code (github.com/LIONS-EPFL/NBL at 999686d) maps the residual stream itself and
drops the norm; on SmolLM2 the losses are similar (3.332 here, 3.329 that way, of held-out text with 4 attentions
removed; 3.469, 3.474 with 8; tried once, without records).
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from common.console.progress import track
from common.forward.losses import next_token_loss
from common.hooks import refuse_patches
from common.models.architectures import normed
from common.models.decoder import Decoder
from common.models.layers.sublayers import ATTENTION, SUBLAYERS, linear_attention, present
from common.pruning.selection import lowest
from common.utils.errors import UserValueError, unknown

Part = tuple[int, str]  # layer, kind of sub-layer


def sublayers_of(decoder: Decoder) -> list[Part]:
    """Return every sub-layer of the model that is not removed (`present`), as (layer, kind) in order of execution.

    Raises:
        UserError: a model with patches. They act before entire layers, so running sub-layers one by one would skip
            them.
    """
    refuse_patches(decoder.model, "running sub-layers one by one")
    return present(decoder.model)


@torch.no_grad()
def states(decoder: Decoder, ids: Tensor, order: Sequence[Part]) -> Iterator[tuple[Part | None, Tensor]]:
    """Yield each sub-layer of ``order`` with its input when only these run, then (None, ``X[N]``); lazily."""
    hidden = decoder.embed_tokens(ids)
    for layer, sublayer in order:
        yield (layer, sublayer), hidden
        hidden = hidden + decoder.added(hidden, layer, sublayer)
    yield None, hidden


@torch.no_grad()
def similarities(decoder: Decoder, ids: Tensor, *, batch_size: int = 8, progress: bool = False) -> dict[Part, float]:
    """Compute the mean over tokens of cos(x, x + f(x)) for every sub-layer that is not removed (LLM-Drop).

    x [batch, tokens, channels] is the sub-layer's input and f the sub-layer with its norm.
    """
    order = sublayers_of(decoder)
    totals = dict.fromkeys(order, 0.0)
    for batch in track(ids.split(batch_size), "LLM-Drop", unit="batch", shown=progress):
        before, entering = None, None
        for sublayer, hidden in states(decoder, batch, order):
            if before is not None:
                totals[before] += torch.cosine_similarity(entering.double(), hidden.double(), dim=-1).sum().item()
            before, entering = sublayer, hidden
    return {sublayer: total / ids.numel() for sublayer, total in totals.items()}


def most_similar(similarity_by_sublayer: dict[Part, float], count: int, kind: str = "both") -> list[Part]:
    """Return the ``count`` sub-layers of a kind ('attention', 'mlp' or 'both') whose output is most like their input.

    Raises:
        UserError: an unknown kind, or a count that leaves no sub-layer of it.
    """
    if kind not in (*SUBLAYERS, "both"):
        raise unknown("kind of sub-layer", kind, (*SUBLAYERS, "both"))
    candidates = [sublayer for sublayer in similarity_by_sublayer if kind in (sublayer[1], "both")]
    check_sublayer_count(count, len(candidates))
    return sorted(candidates, key=lambda sublayer: -similarity_by_sublayer[sublayer])[:count]


def check_sublayer_count(count: int, total: int) -> None:
    """Refuse a number of sub-layers that leaves none."""
    if not 0 < count < total:
        raise UserValueError(f"cannot remove {count} of {total} sub-layers; choose 1..{total - 1}")


@torch.no_grad()
def greedy(
    decoder: Decoder,
    ids: Tensor,
    count: int,
    cost_of_batch: Callable[[int, Tensor], Callable[[Tensor], float]],
    name: str,
    *,
    batch_size: int = 8,
    begun: Sequence[Part] = (),
    after: Callable[[list[Part]], object] = lambda removed: None,
    progress: bool = False,
) -> list[Part]:
    """Select ``count`` sub-layers greedily: each time the one whose removal costs least over all batches.

    A trial continues from the input of the sub-layer that it leaves out, so h sub-layers cost h (h + 1) / 2 runs of
    one. Ties go to the sub-layer that runs first.

    ``cost_of_batch`` is a function from the number and tokens of a batch of ``ids`` [samples, tokens] to a function from
    a trial's ``X[N]`` to its cost. The search continues from the sub-layers ``begun`` that an earlier one removed, in
    order. ``after`` is called after each step with the sub-layers removed so far. ``name`` labels the progress bar.
    """
    sublayers = sublayers_of(decoder)
    check_sublayer_count(count, len(sublayers))
    removed = list(begun[:count])
    steps = range(len(removed), count)
    for _ in track(steps, name, total=count, initial=len(removed), unit="sub-layer", shown=progress, each=True):
        remaining = [sublayer for sublayer in sublayers if sublayer not in removed]
        costs = dict.fromkeys(remaining, 0.0)
        for number, batch in enumerate(ids.split(batch_size)):
            cost = cost_of_batch(number, batch)
            for place, (sublayer, hidden) in enumerate(states(decoder, batch, remaining)):
                if sublayer is not None:
                    for later, kind in remaining[place + 1 :]:
                        hidden = hidden + decoder.added(hidden, later, kind)
                    costs[sublayer] += cost(hidden)
        removed.append(lowest(costs))
        after(removed)
    return removed


def block_pruner(decoder: Decoder, ids: Tensor, count: int, **options) -> list[Part]:
    """Select ``count`` sub-layers: each time the one without which the loss on ``ids`` is lowest (BlockPruner).

    See `greedy`.
    """

    def cost_of_batch(_number: int, batch: Tensor) -> Callable[[Tensor], float]:
        return lambda hidden: next_token_loss(decoder, hidden, batch).sum().item()

    return greedy(decoder, ids, count, cost_of_batch, "BlockPruner", **options)


@torch.no_grad()
def linear_maps(
    decoder: Decoder, ids: Tensor, *, batch_size: int = 8, progress: bool = False
) -> dict[int, tuple[float, Tensor, Tensor]]:
    """Compute NBL's bound and linear map on ``ids`` [samples, tokens] for every layer that has an attention.

    The bound is the sum of 1 - r^2 over the canonical correlations r (module docstring). Layers are processed one after
    the other: the float64 moments of one layer exist at a time. The residual stream of all samples stays in host
    memory.

    Returns:
        Layer -> (bound, weight [out, in], bias [out]).
    """
    maps, order = {}, sublayers_of(decoder)
    batches = [decoder.embed_tokens(batch).cpu() for batch in ids.split(batch_size)]
    for layer in track(range(decoder.num_layers), "NBL", unit="layer", shown=progress):
        moments = None
        for index, state in enumerate(batches):
            hidden = state.to(decoder.device)
            if (layer, ATTENTION) in order:
                added = decoder.added(hidden, layer, ATTENTION)
                # the layer multiplies what the map gives (Granite), as it did with the attention's output
                inputs = normed(decoder.layers[layer], decoder.spec.attention, hidden)
                pairs = (inputs, added / decoder.multiplier, hidden, hidden + added)
                rows = [value.flatten(0, 1).double() for value in pairs]
                batch_moments = _moments(*rows)
                moments = batch_moments if moments is None else [a + b for a, b in zip(moments, batch_moments)]
            batches[index] = decoder.run(hidden, layer, layer + 1).cpu()
        if moments is not None:
            maps[layer] = _fitted(*moments)
    return maps


def nearest_linear(maps: dict[int, tuple[float, Tensor, Tensor]], count: int) -> list[int]:
    """Return the ``count`` layers whose attention has the lowest bound."""
    check_sublayer_count(count, len(maps) + 1)
    return sorted(maps, key=lambda layer: maps[layer][0])[:count]


def replace_by_maps(model: nn.Module, maps: dict[int, tuple[float, Tensor, Tensor]], layers: Sequence[int]) -> None:
    """Replace the attentions of ``layers`` by their linear maps, in place."""
    for layer in layers:
        linear_attention(model, layer, *maps[layer][1:])


def _moments(x: Tensor, y: Tensor, before: Tensor, after: Tensor) -> list:
    """Return sums over tokens, of (normed, added) for the map and of (before, after) for the correlations."""
    pairs = [len(x)]
    for a, b in ((x, y), (before, after)):
        pairs += [a.sum(0), b.sum(0), a.T @ a, b.T @ b, a.T @ b]
    return pairs


def _fitted(tokens: int, *sums: Tensor) -> tuple[float, Tensor, Tensor]:
    mean_x, mean_y, xx, _, xy = _centred(tokens, *sums[:5])
    weight = (torch.linalg.pinv(xx, hermitian=True) @ xy).T
    _, _, aa, bb, ab = _centred(tokens, *sums[5:])
    correlations = torch.linalg.svdvals(_inverse_root(aa) @ ab @ _inverse_root(bb)).clamp(max=1)
    return float((1 - correlations.square()).sum()), weight, mean_y - weight @ mean_x


def _centred(tokens: int, a: Tensor, b: Tensor, aa: Tensor, bb: Tensor, ab: Tensor) -> tuple[Tensor, ...]:
    a, b = a / tokens, b / tokens
    return a, b, *(s / tokens - torch.outer(u, v) for s, u, v in ((aa, a, a), (bb, b, b), (ab, a, b)))


def _inverse_root(matrix: Tensor) -> Tensor:
    """Return the symmetric inverse square root, of what is not rounding."""
    values, vectors = torch.linalg.eigh(matrix)
    significant = values > values.max() * len(values) * torch.finfo(values.dtype).eps
    return (vectors[:, significant] / values[significant].sqrt()) @ vectors[:, significant].T

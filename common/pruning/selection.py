"""Select the layers to remove from scores. Indices are original and 0-based, in order of removal; blocks are half-open."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from common.calibration import Statistics
from common.console.progress import track
from common.models.decoder import Decoder
from common.models.removal import check_count
from common.pruning.importance import block_scores, losses_without_each
from common.utils.errors import UserError, UserValueError

Key = TypeVar("Key")


def one_shot(scores: Tensor, count: int) -> list[int]:
    """Return the ``count`` lowest-scoring layers, lowest first; ties go to the earlier layer."""
    check_count(count, len(scores))
    return scores.argsort(stable=True).tolist()[:count]


def lowest(scores: Mapping[Key, float]) -> Key:
    """Return the key with the lowest score; the first of equal ones.

    A score that is not a number (a trial that overflowed) is never chosen.

    Raises:
        UserError: no score is a number.
    """
    best = min(scores, key=lambda key: (math.isnan(scores[key]), scores[key]))
    if math.isnan(scores[best]):
        raise UserError(f"none of {len(scores)} trials has a score that is a number; try another --dtype")
    return best


def best_block(
    statistics: Statistics, count: int, kind: str = "token", *, exclude_ends: bool = True, protect: Collection[int] = ()
) -> tuple[int, int]:
    """Return the block ``[start, stop)`` of ``count`` layers that changes the residual stream least; ties go to the earliest.

    LinearPatch Eq. 2 takes the argmax over all starts (``exclude_ends=False``). Its official code considers starts
    1..N-count-1, so that neither the first nor the last layer is removed (``exclude_ends=True``). Protected layers
    stay.
    """
    starts = block_starts(statistics.layers, count, exclude_ends=exclude_ends, protect=protect)
    scores = block_scores(statistics, count, kind).tolist()
    start = lowest({start: scores[start] for start in starts})
    return start, start + count


def block_starts(layers: int, count: int, *, exclude_ends: bool, protect: Collection[int] = ()) -> list[int]:
    """Return the possible first layers of a block of ``count`` layers, see `best_block`.

    Raises:
        UserError: there is no such block.
    """
    check_count(count, layers)
    starts = range(1, layers - count) if exclude_ends else range(layers - count + 1)
    if not starts:
        raise UserValueError(f"no block of {count} layers leaves the first and last of {layers} in place")
    free = [start for start in starts if set(protect).isdisjoint(range(start, start + count))]
    if not free:
        raise UserValueError(f"no block of {count} of {layers} layers is without a protected one")
    return free


def sleb(
    decoder: Decoder,
    ids: Tensor,
    count: int,
    *,
    batch_size: int = 8,
    begun: Sequence[int] = (),
    after: Callable[[list[int]], object] = lambda removed: None,
    progress: bool = False,
) -> list[int]:
    """Remove, one at a time, the layer without which the loss on calibration text is lowest (SLEB).

    First and last layer of the current model are protected, as in the official code. Trials reuse the shared prefix.
    The model is not changed. The search continues after the layers ``begun``, and calls ``after`` with the layers
    removed so far after each step.
    """
    check_count(count, decoder.num_layers)
    removed = list(begun[:count])
    alive = [layer for layer in range(decoder.num_layers) if layer not in removed]
    numbers = range(len(removed), count)
    steps = track(numbers, "SLEB", total=count, initial=len(removed), unit="layer", shown=progress, each=True)
    for _ in steps:
        candidates = alive[1:-1]
        losses = losses_without_each(decoder, ids, alive, candidates, batch_size=batch_size, progress=progress)
        removed.append(lowest(dict(zip(candidates, losses.tolist(), strict=True))))
        alive.remove(removed[-1])
        after(removed)
        steps.note(f"layer {removed[-1]} removed")
    return removed


def runs(removed: Collection[int]) -> list[tuple[int, int]]:
    """Return the removed layers as maximal runs [start, stop) of adjacent layers, in ascending order."""
    starts = (layer for layer in sorted(removed) if layer - 1 not in removed)
    stops = (layer + 1 for layer in sorted(removed) if layer + 1 not in removed)
    return list(zip(starts, stops, strict=True))

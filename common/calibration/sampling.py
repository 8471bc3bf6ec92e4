"""Draw calibration tokens from texts: random crops, shuffled lines, entire documents."""

import bisect
import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from common.utils.errors import UserError, UserValueError, unknown
from common.utils.token_ids import open_ended

DRAWS = 1000
SHUFFLES = ("python", "datasets")
STRETCHES = {"train": (0.0, 0.9), "validation": (0.9, 1.0)}  # shares of a text


def sample_crops(
    ids: Tensor,
    *,
    length: int,
    count: int,
    seed: int = 0,
    stretch: str = "train",
    apart: int = 0,
    generator: random.Random | None = None,
) -> Tensor:
    """Draw random crops of a text.

    As in LinearPatch's official code, Python's ``random`` draws the starts one after the other, uniformly from
    0..floor(0.9 T) - length - 1, ends included. So the first 128 of 5,000 crops are the same as 128 crops.

    Args:
        ids: Token ids of the text [T].
        length: Tokens per crop.
        count: Number of crops.
        seed: Seed of the draw.
        stretch: ``train``; ``validation`` draws from the last tenth in the same way (the official code with the same
            generator, after the training's crops, from a crop's length before that tenth on).
        apart: Number of last crops that share no token with earlier ones; if the text is too short for that, the crop
            that shares fewest of `DRAWS` draws.
        generator: Generator to draw with, instead of a new one with the seed.

    Returns:
        Token ids [count, length].

    Raises:
        UserError: a text whose stretch is shorter than one crop.
    """
    begin, end = STRETCHES[stretch]
    first, last = int(len(ids) * begin), int(len(ids) * end) - length - 1
    if last < first:
        part = f"first {end:.0%}" if begin == 0 else f"last {end - begin:.0%}"
        raise UserValueError(
            f"the calibration text has {len(ids)} tokens, too few for crops of {length} from its {part}; "
            "use a longer text or a smaller length"
        )
    generator = generator or random.Random(seed)
    starts = [generator.randint(first, last) for _ in range(count - apart)]
    starts += [_apart(starts, lambda: generator.randint(first, last), length) for _ in range(apart)]
    return torch.stack([ids[start : start + length] for start in starts])


def interleaved(parts: Sequence[Tensor]) -> Tensor:
    """Return the samples of several texts, each [samples, tokens], in turn: the first of each, the second of each, ..."""
    order = sorted((row, place) for place, part in enumerate(parts) for row in range(len(part)))
    return torch.stack([parts[place][row] for row, place in order])


def _apart(starts: Sequence[int], draw: Callable[[], int], length: int) -> int:
    """Return a crop's start by ``draw`` that shares no token with those at ``starts``, else the one that shares least."""
    taken = sorted(starts)
    shared = {}
    for _ in range(DRAWS):
        start = draw()
        near = bisect.bisect_left(taken, start)
        shared[start] = sum(max(0, length - abs(start - other)) for other in taken[max(0, near - 1) : near + 1])
        if not shared[start]:
            return start
    return min(shared, key=shared.__getitem__)


def sample_lines(
    tokenizer, texts: Sequence[str], *, length: int, count: int = 128, seed: int = 0, shuffle: str = "python"
) -> Tensor:
    """Draw SLEB's calibration sequences ``[n, length]``: shuffled lines, joined by blank lines and cut.

    In SLEB's code the lines are rows of WikiText-2, many of them empty, so 128 lines give only four or five sequences
    of 2048.

    ``count`` is a number of lines. The shuffle ``datasets`` takes the rows that `datasets.Dataset.shuffle(seed)` puts
    first, as SLEB's code does; ``python`` those that `random.shuffle` puts first, for texts that SLEB's code does not
    read.

    Raises:
        UserError: an unknown shuffle, or joined lines that do not fill one sequence.
    """
    if shuffle not in SHUFFLES:
        raise unknown("shuffle", shuffle, SHUFFLES)
    lines = list(texts)
    if shuffle == "datasets":
        lines = [lines[row] for row in np.random.default_rng(seed).permutation(len(lines))[:count]]
    else:
        random.Random(seed).shuffle(lines)
    ids = open_ended(tokenizer)("\n\n".join(lines[:count]), return_tensors="pt", verbose=False).input_ids[0]
    if len(ids) < length:
        raise UserError(
            f"{min(count, len(lines))} calibration lines have {len(ids)} tokens, less than one sequence of {length}; "
            "use more lines or a smaller length"
        )
    return ids[: len(ids) // length * length].view(-1, length)


def sample_documents(
    tokenizer, texts: Sequence[str], *, length: int, count: int, generator: random.Random, name: str = "documents"
) -> Tensor:
    """Draw one crop from each of ``count`` documents, ``[count, length]`` (Taylor+ in Prune&Comp's official code).

    A document is drawn until one is new and has ``length`` tokens or more, then the start of its crop.

    Raises:
        UserError: too few documents are long enough; ``name`` is what the message calls them.
    """
    texts, tried, crops = list(texts), set(), []
    while len(crops) < count:
        if len(tried) == len(texts):
            raise UserValueError(
                f"only {len(crops)} of {len(texts)} {name} have {length} tokens, not {count}; use fewer or shorter samples"
            )
        index = generator.randint(0, len(texts) - 1)
        if index in tried:
            continue
        tried.add(index)
        ids = open_ended(tokenizer)(texts[index], return_tensors="pt", verbose=False).input_ids[0]
        if len(ids) >= length:
            start = generator.randint(0, len(ids) - length)
            crops.append(ids[start : start + length])
    return torch.stack(crops)

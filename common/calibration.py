"""Calibration tokens, and every statistic the methods need from them, in one pass.

`collect` runs each calibration batch through the layers once and accumulates, on the fly, cosines between layer inputs
and mean magnitudes per channel, plain and Hadamard-rotated, and for the pairs of boundaries that are named also second
moments and statistics of element-wise ratios. From these follow BI, block cosines and LinearPatch's scales for every
window afterwards (`common.statistics`). Hidden states are kept only while a pair that needs them is open, so memory does
not grow with the number of samples.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from common.decoder import Decoder
from common.errors import UserError, UserValueError, unknown
from common.hadamard import hadamard_transform
from common.moments import Moments, check_weights, counted
from common.progress import track
from common.statistics import COSINES, Cosine, Statistics, magnitude_ratios

# name -> (the stretch of the text that crops lie in, default seed)
SAMPLERS = {
    "linearpatch-train": ((0.0, 0.9), 2),
    "linearpatch-validation": ((0.9, 1.0), 2),
    "prunecomp-train": ((0.0, 0.9), 0),
}
SHUFFLES = ("python", "datasets")


def sample_crops(
    ids: Tensor,
    *,
    length: int,
    count: int,
    sampler: str,
    seed: int | None = None,
    generator: random.Random | None = None,
) -> Tensor:
    """Random crops of a token stream ``[T]`` as ``[count, length]``.

    The samplers for training draw starts with Python's ``random`` uniformly from 0..floor(0.9 T) - length - 1, ends included,
    one after the other, so the first 128 of 5,000 crops are the first 128 drawn. They differ in the seed: 2 for
    LinearPatch's official code, 0 for Prune&Comp's. The one for validation draws likewise from the last tenth.
    generator: draw with it, and leave it where the draws end, in place of a new one with the seed.

    Raises:
        UserError: unknown sampler, or a text shorter than one crop.
    """
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    (begin, end), default_seed = SAMPLERS[sampler]
    first, last = int(len(ids) * begin), int(len(ids) * end) - length - 1
    if last < first:
        part = f"first {end:.0%}" if begin == 0 else f"last {end - begin:.0%}"
        raise UserValueError(
            f"the calibration text has {len(ids)} tokens, too few for crops of {length} from its {part}; "
            "use a longer text or a smaller length"
        )
    generator = generator or random.Random(default_seed if seed is None else seed)
    starts = [generator.randint(first, last) for _ in range(count)]
    return torch.stack([ids[start : start + length] for start in starts])


def sample_lines(
    tokenizer, texts: Sequence[str], *, length: int, count: int = 128, seed: int = 0, shuffle: str = "python"
) -> Tensor:
    """SLEB's calibration: ``count`` shuffled lines joined by blank lines, cut into windows ``[n, length]``.

    In its code the lines are rows of WikiText-2, many of them empty, so 128 lines give only four or five windows of 2048.
    shuffle: ``datasets`` takes the rows that `datasets.Dataset.shuffle(seed)` puts first, as its code does; ``python`` those
    that `random.shuffle` does, for texts that its code does not read.

    Raises:
        UserError: an unknown shuffle, or joined lines that do not fill one window.
    """
    if shuffle not in SHUFFLES:
        raise unknown("shuffle", shuffle, SHUFFLES)
    lines = list(texts)
    if shuffle == "datasets":
        lines = [lines[row] for row in np.random.default_rng(seed).permutation(len(lines))[:count]]
    else:
        random.Random(seed).shuffle(lines)
    ids = tokenizer("\n\n".join(lines[:count]), return_tensors="pt", verbose=False).input_ids[0]
    if len(ids) < length:
        raise UserError(
            f"{min(count, len(lines))} calibration lines have {len(ids)} tokens, less than one window of {length}; "
            "use more lines or a smaller length"
        )
    return ids[: len(ids) // length * length].view(-1, length)


def sample_documents(tokenizer, texts: Sequence[str], *, length: int, count: int, generator: random.Random) -> Tensor:
    """One crop of each of ``count`` documents, ``[count, length]``: the Taylor+ tokens of Prune&Comp's official code.

    A document is drawn until one is new and has ``length`` tokens or more, then the start of its crop.

    Raises:
        UserError: not so many documents are long enough.
    """
    texts, tried, crops = list(texts), set(), []
    while len(crops) < count:
        if len(tried) == len(texts):
            raise UserValueError(f"only {len(crops)} of {len(texts)} documents have {length} tokens, not {count}")
        index = generator.randint(0, len(texts) - 1)
        if index in tried:
            continue
        tried.add(index)
        ids = tokenizer(texts[index], return_tensors="pt", verbose=False).input_ids[0]
        if len(ids) >= length:
            start = generator.randint(0, len(ids) - length)
            crops.append(ids[start : start + length])
    return torch.stack(crops)


def default_pairs(layers: int, span: int) -> list[tuple[int, int]]:
    """The pairs for BI (every layer) and for every window of ``span`` layers."""
    return sorted({(a, a + d) for d in {1, span} for a in range(layers - d + 1)})


def all_pairs(layers: int, span: int) -> list[tuple[int, int]]:
    """The pairs for every window of up to ``span`` layers."""
    return [(a, a + d) for d in range(1, span + 1) for a in range(layers - d + 1)]


@torch.no_grad()
def collect(
    decoder: Decoder,
    ids: Tensor,
    *,
    span: int = 1,
    pairs: Iterable[tuple[int, int]] | None = None,
    kinds: Sequence[str] = ("token",),
    rotate: bool = True,
    elementwise: Iterable[tuple[int, int]] = (),
    moments: Iterable[tuple[int, int]] = (),
    matrices: Iterable[tuple[int, int]] = (),
    weights: str = "inverse-norm",
    first: bool = True,
    batch_size: int = 8,
    progress: bool = False,
) -> Statistics:
    """Statistics of a model on calibration tokens ``[samples, tokens]``, in exactly N layer executions per batch.

    Args:
        span: the largest number of layers a window or run may have; ratios are kept for all distances up to it.
        pairs: boundaries whose cosines are wanted; by default every layer's and every window's of ``span`` layers.
            N + 1 as second boundary is the state after the final norm.
        kinds: which cosines; ``channel`` costs a second reduction per pair.
        rotate: also take magnitudes of ``X H`` (one fast transform per boundary).
        elementwise: pairs for Eqs. 4 and 5 of LinearPatch taken literally, plain and rotated.
        moments: pairs for least-squares factors. matrices: pairs for the least-squares matrix too, which takes
            2 x 8 C^2 bytes a pair (C = 4096: 268 MB), so name few. weights, first: how tokens count in moments, and
            whether a sample's first does (`common.moments`).
        batch_size: samples a batch; hidden states of at most the open pairs' boundaries of one batch are held.

    Raises:
        UserError: an unknown cosine, an impossible pair, or no tokens.
    """
    layers = decoder.num_layers
    pairs = default_pairs(layers, span) if pairs is None else list(pairs)
    elementwise, matrices = list(elementwise), list(matrices)
    moments = [*matrices, *moments]
    if ids.ndim != 2 or not ids.numel():
        raise UserValueError(f"calibration tokens must be [samples, tokens], not {list(ids.shape)}")
    if not 1 <= span <= layers:
        raise UserValueError(f"span must be in 1..{layers}, not {span}")
    for a, b in [*pairs, *elementwise, *moments]:
        if not 0 <= a < b <= layers + 1:
            raise UserValueError(
                f"no pair ({a}, {b}): boundaries are 0..{layers}, and {layers + 1} after the final norm"
            )
    if wrong := set(kinds) - set(COSINES):
        raise unknown("cosine", wrong.pop(), COSINES)
    statistics = Statistics(layers, span, tuple(kinds))
    check_weights(weights)
    options = {"weights": weights, "first": first}
    statistics.moments = {pair: Moments(matrices=pair in matrices, **options) for pair in dict.fromkeys(moments)}
    pass_ = _Pass(decoder, statistics, pairs, kinds, [False, True] if rotate else [False], elementwise)
    for batch in track(ids.split(batch_size), "calibration", unit="batch", shown=progress):
        pass_.batch(batch)
    return statistics


class _Pass:
    """One pass: what is wanted of each boundary, and the states of the batch at hand that are still needed."""

    def __init__(self, decoder, statistics, pairs, kinds, bases, elementwise):
        self.decoder, self.statistics, self.kinds, self.bases = decoder, statistics, kinds, bases
        self.ending: dict[int, list[int]] = {}  # second boundary -> first boundaries of its cosine pairs
        self.named: dict[int, list[int]] = {}  # the same for element-wise ratios
        self.fitted: dict[int, list[int]] = {}  # and for moments
        self.last_use: dict[int, int] = {}
        for table, wanted in ((self.ending, pairs), (self.named, elementwise), (self.fitted, statistics.moments)):
            for a, b in dict.fromkeys(wanted):
                table.setdefault(b, []).append(a)
                self.last_use[a] = max(b, self.last_use.get(a, 0))
        self.states: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}

    def batch(self, ids: Tensor) -> None:
        decoder, layers = self.decoder, self.statistics.layers
        hidden = decoder.embed_tokens(ids)
        device = hidden.device  # a model may be spread over several
        means = {rotated: [] for rotated in self.bases}
        for boundary in range(layers + 1):
            if boundary:
                hidden = decoder.run(hidden, boundary - 1, boundary)
            wide = hidden.to(device, torch.float32)
            for rotated in self.bases:
                seen = hadamard_transform(wide) if rotated else wide
                means[rotated].append(seen.abs().mean(1))  # [batch, channels]
            self._meet(boundary, wide)
        if self.last_use and max(self.last_use.values()) > layers:
            self._meet(layers + 1, decoder.norm(hidden).to(device, torch.float32))
        self.states.clear()
        for rotated in self.bases:
            self._add_magnitudes(rotated, torch.stack(means[rotated]).double(), ids.shape[1])
        self.statistics.samples += ids.shape[0]
        self.statistics.tokens += ids.numel()

    def _meet(self, boundary: int, state: Tensor) -> None:
        """Close the pairs that end here, drop what nothing needs any more, keep this state if a later pair does."""
        ends, named = self.ending.get(boundary, []), self.named.get(boundary, [])
        needed = self.last_use.get(boundary, -1) > boundary
        if ends or needed:
            token_norm = torch.linalg.vector_norm(state, dim=-1)  # [batch, tokens]
            channel_norm = torch.linalg.vector_norm(state, dim=1) if "channel" in self.kinds else None
            here = (state, token_norm, channel_norm)
            for a in ends:
                self._add_cosine(a, boundary, self.states[a], here)
        for a in named:
            self._add_elementwise(a, boundary, self.states[a][0], state)
        for a in self.fitted.get(boundary, []):
            moments = self.statistics.moments[a, boundary]
            moments.add(self.states[a][0], state, counted(state[..., 0], first=moments.first))
        for a in [a for a in self.states if self.last_use[a] <= boundary]:
            del self.states[a]
        if needed:
            self.states[boundary] = here

    def _add_cosine(self, a: int, b: int, first: tuple, second: tuple) -> None:
        sums = self.statistics.cosines.setdefault((a, b), Cosine())
        eps = torch.finfo(torch.float32).tiny
        dots = torch.linalg.vecdot(first[0], second[0])  # [batch, tokens]
        sums.token += (dots / (first[1] * second[1]).clamp_min(eps)).double().sum().item()
        sums.tokens += dots.numel()
        dot, one, two = (value.double().sum(1) for value in (dots, first[1] ** 2, second[1] ** 2))  # [batch]
        sums.dot, sums.first, sums.second = (
            total + value.sum().item() for total, value in ((sums.dot, dot), (sums.first, one), (sums.second, two))
        )
        sums.sentence += (dot / (one * two).sqrt().clamp_min(eps)).sum().item()
        if "last-token-angle" in self.kinds:
            one, two = (side[0][:, -1].double() for side in (first, second))  # [batch, channels]
            cosine = torch.linalg.vecdot(one, two) / (one.norm(dim=-1) * two.norm(dim=-1)).clamp_min(eps)
            sums.angle += cosine.clamp(-1, 1).arccos().sum().item() / torch.pi
        if first[2] is not None:
            dots = torch.linalg.vecdot(first[0], second[0], dim=1)  # [batch, channels]
            sums.channel += (dots / (first[2] * second[2]).clamp_min(eps)).double().mean(1).sum().item()

    def _add_elementwise(self, a: int, b: int, first: Tensor, second: Tensor) -> None:
        for rotated in self.bases:
            one, two = (hadamard_transform(x) if rotated else x for x in (first, second))
            valid = one != 0
            ratio = torch.where(valid, two.abs() / one.abs(), 0.0).double()
            sums = torch.stack([ratio, ratio**2, valid.double()]).sum((1, 2))  # [3, channels]
            self.statistics.elementwise[rotated, a, b] = self.statistics.elementwise.get((rotated, a, b), 0.0) + sums

    def _add_magnitudes(self, rotated: bool, means: Tensor, tokens: int) -> None:
        """``means`` [N + 1, batch, channels]: mean magnitudes of each sample at every boundary."""
        statistics = self.statistics
        statistics.magnitudes[rotated] = statistics.magnitudes.get(rotated, 0.0) + means.sum(1) * tokens
        for distance in range(1, statistics.span + 1):
            ratio = magnitude_ratios(means[:-distance], means[distance:]).sum(1)
            statistics.ratios[rotated, distance] = statistics.ratios.get((rotated, distance), 0.0) + ratio

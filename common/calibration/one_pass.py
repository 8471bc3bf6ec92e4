"""Collect every statistic that the methods need from calibration tokens, in one pass.

`collect` runs each calibration batch through the layers once and accumulates, on the fly, cosines between layer inputs
and mean magnitudes per channel, plain and Hadamard-rotated, and for the pairs of boundaries that are named also second
moments and statistics of element-wise ratios. From these follow BI, block cosines and LinearPatch's scales for every
block afterwards (`common.calibration.statistics`). Hidden states are kept only while a pair that needs them is open,
so memory does not grow with the number of samples.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from common.calibration.least_squares import Moments, silent
from common.calibration.statistics import COSINES, Cosine, Statistics, magnitude_ratios
from common.console.progress import track
from common.forward.spill_buffer import Held
from common.hadamard import hadamard_transform
from common.models.decoder import Decoder
from common.utils import cache
from common.utils.errors import UserValueError, unknown


def default_pairs(layers: int, span: int) -> list[tuple[int, int]]:
    """Return the pairs for BI (every layer) and for every block of ``span`` layers."""
    return sorted({(a, a + d) for d in {1, span} for a in range(layers - d + 1)})


def all_pairs(layers: int, span: int) -> list[tuple[int, int]]:
    """Return the pairs for every block of up to ``span`` layers."""
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
    skip: int = 0,
    batch_size: int = 8,
    progress: bool = False,
) -> Statistics:
    """Collect statistics of a model on calibration tokens, in exactly N layer executions per batch.

    Args:
        decoder: The model, with N layers.
        ids: Calibration tokens [samples, tokens].
        span: Largest number of layers of a block; ratios are collected for all distances up to it.
        pairs: Boundaries whose cosines are collected; default: those of every layer and of every block of ``span``
            layers. N + 1 as second boundary is the state after the final norm.
        kinds: Kinds of cosines; ``channel`` costs a second reduction per pair.
        rotate: Also collect magnitudes of ``X H`` (one fast transform per boundary).
        elementwise: Pairs for Eqs. 4 and 5 of LinearPatch taken literally, plain and rotated.
        moments: Pairs for least-squares factors.
        matrices: Pairs for least-squares matrices as well; each takes 2 x 8 C^2 bytes (C = 4096: 268 MB).
        skip: Number of first tokens of each sample that are read, but count in nothing.
        batch_size: Samples per batch; the hidden states that open pairs need are held for one batch.
        progress: Show a progress bar.

    Returns:
        Sums over all tokens that count: cosines, mean magnitudes per channel [C], and moments.

    Raises:
        UserError: an unknown cosine, an impossible pair, no tokens, or none that count.
    """
    layers = decoder.num_layers
    pairs = default_pairs(layers, span) if pairs is None else list(pairs)
    elementwise, matrices = list(elementwise), list(matrices)
    moments = [*matrices, *moments]
    if ids.ndim != 2 or not ids.numel():
        raise UserValueError(f"calibration tokens must be [samples, tokens], not {list(ids.shape)}")
    if not 0 <= skip < ids.shape[1]:
        raise UserValueError(f"of samples of {ids.shape[1]} tokens the first {skip} cannot be skipped")
    if not 1 <= span <= layers:
        raise UserValueError(f"span must be in 1..{layers}, not {span}")
    for a, b in [*pairs, *elementwise, *moments]:
        if not 0 <= a < b <= layers + 1:
            raise UserValueError(
                f"no pair ({a}, {b}): boundaries are 0..{layers}, and {layers + 1} after the final norm"
            )
    if wrong := set(kinds) - set(COSINES):
        raise unknown("cosine", wrong.pop(), COSINES)
    statistics = Statistics(layers, span, tuple(kinds), skip=skip)
    statistics.moments = {pair: Moments(matrices=pair in matrices) for pair in dict.fromkeys(moments)}
    pass_ = _Pass(decoder, statistics, pairs, kinds, [False, True] if rotate else [False], elementwise)
    batches = [_Batch(pass_, batch) for batch in ids.split(batch_size)]
    if decoder.streamed:  # each layer is read once
        pass_.pool = Held(cache.folder(), decoder.model.streamed.states)
        for boundary in track(range(layers + 1), "calibration", unit="layer", shown=progress):
            for batch in batches:
                batch.advance(boundary)
        for batch in batches:
            batch.finish()
        return statistics
    for batch in track(batches, "calibration", unit="batch", shown=progress):
        for boundary in range(layers + 1):
            batch.advance(boundary)
        batch.finish()
    return statistics


class _Pass:
    """Sums of one pass, and the pairs that begin or end at each boundary. pool: store of states if batches take turns."""

    def __init__(self, decoder, statistics, pairs, kinds, bases, elementwise):
        self.decoder, self.statistics, self.kinds, self.bases = decoder, statistics, kinds, bases
        self.pool: Held | None = None
        self.ending: dict[int, list[int]] = {}  # second boundary -> first boundaries of its cosine pairs
        self.named: dict[int, list[int]] = {}  # the same for element-wise ratios
        self.fitted: dict[int, list[int]] = {}  # and for moments
        self.last_use: dict[int, int] = {}
        for table, named_pairs in ((self.ending, pairs), (self.named, elementwise), (self.fitted, statistics.moments)):
            for a, b in dict.fromkeys(named_pairs):
                table.setdefault(b, []).append(a)
                self.last_use[a] = max(b, self.last_use.get(a, 0))

    def add_cosine(self, a: int, b: int, first: tuple, second: tuple) -> None:
        sums = self.statistics.cosines.setdefault((a, b), Cosine())
        eps = torch.finfo(torch.float32).tiny
        dots = torch.linalg.vecdot(first[0], second[0])  # [batch, tokens]
        sums.token += (dots / (first[1] * second[1]).clamp_min(eps)).double().sum().item()
        sums.tokens += dots.numel()
        dot, xx, yy = (value.double().sum(1) for value in (dots, first[1] ** 2, second[1] ** 2))  # [batch]
        sums.dot += dot.sum().item()
        sums.first += xx.sum().item()
        sums.second += yy.sum().item()
        sums.sentence += (dot / (xx * yy).sqrt().clamp_min(eps)).sum().item()
        if "last-token-angle" in self.kinds:
            x, y = (side[0][:, -1].double() for side in (first, second))  # [batch, channels]
            cosine = torch.linalg.vecdot(x, y) / (x.norm(dim=-1) * y.norm(dim=-1)).clamp_min(eps)
            sums.angle += cosine.clamp(-1, 1).arccos().sum().item() / torch.pi
        if first[2] is not None:
            dots = torch.linalg.vecdot(first[0], second[0], dim=1)  # [batch, channels]
            sums.channel += (dots / (first[2] * second[2]).clamp_min(eps)).double().mean(1).sum().item()

    def add_elementwise(self, a: int, b: int, first: Tensor, second: Tensor) -> None:
        for rotated in self.bases:
            before, after = (hadamard_transform(x) if rotated else x for x in (first, second))
            valid = ~silent(before.abs())  # a rotation leaves rounding where there was a zero
            ratio = torch.where(valid, after.abs() / before.abs(), 0.0).double()
            sums = torch.stack([ratio, ratio**2, valid.double()]).sum((1, 2))  # [3, channels]
            self.statistics.elementwise[rotated, a, b] = self.statistics.elementwise.get((rotated, a, b), 0.0) + sums

    def add_magnitudes(self, rotated: bool, means: Tensor, tokens: int) -> None:
        """Add ``means`` [N + 1, batch, channels]: mean magnitudes of each sample at every boundary."""
        statistics = self.statistics
        statistics.magnitudes[rotated] = statistics.magnitudes.get(rotated, 0.0) + means.sum(1) * tokens
        for distance in range(1, statistics.span + 1):
            ratio = magnitude_ratios(means[:-distance], means[distance:]).sum(1)
            statistics.ratios[rotated, distance] = statistics.ratios.get((rotated, distance), 0.0) + ratio


class _Batch:
    """A batch on its way through the layers, with the states that are still needed of it."""

    def __init__(self, pass_: _Pass, ids: Tensor):
        self.pass_, self.ids = pass_, ids
        self.hidden: Tensor | None = None
        self.states: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}
        self.means: dict[bool, list[Tensor]] = {rotated: [] for rotated in pass_.bases}

    def advance(self, boundary: int) -> None:
        """Run the batch from the boundary before to this one, and add its statistics there."""
        pass_, decoder = self.pass_, self.pass_.decoder
        if boundary:
            before = self.hidden if pass_.pool is None else self.hidden.to(decoder.device)
            hidden = decoder.run(before, boundary - 1, boundary)
        else:
            hidden = decoder.embed_tokens(self.ids)
            self.device = hidden.device
        self.hidden = hidden if pass_.pool is None else pass_.pool.keep(hidden)
        wide = self._counted(hidden)
        for rotated in pass_.bases:
            states = hadamard_transform(wide) if rotated else wide
            self.means[rotated].append(states.abs().mean(1))  # [batch, channels]
        self._meet(boundary, wide)

    def finish(self) -> None:
        """Add the sums that need the whole batch."""
        pass_, statistics = self.pass_, self.pass_.statistics
        last, tokens = statistics.layers + 1, self.ids.shape[1] - statistics.skip
        if pass_.last_use and max(pass_.last_use.values()) >= last:
            self.hidden = pass_.decoder.norm(self.hidden.to(pass_.decoder.norm.weight.device))
            self._meet(last, self._counted(self.hidden))
        for rotated in pass_.bases:
            pass_.add_magnitudes(rotated, torch.stack(self.means[rotated]).double(), tokens)
        statistics.samples += self.ids.shape[0]
        statistics.tokens += self.ids.shape[0] * tokens
        self.hidden, self.means = None, {}

    def _wide(self, state: Tensor) -> Tensor:
        """Convert to float32 on one device: a model may be spread over several."""
        return state.to(self.device, torch.float32)

    def _counted(self, state: Tensor) -> Tensor:
        """Return the tokens that count of a state [batch, tokens, channels], as `_wide`."""
        return self._wide(state)[:, self.pass_.statistics.skip :]

    def _meet(self, boundary: int, wide: Tensor) -> None:
        """Close the pairs that end here, drop what nothing needs any more, keep this state if a later pair does."""
        pass_ = self.pass_
        ends, named = pass_.ending.get(boundary, []), pass_.named.get(boundary, [])
        fitted = pass_.fitted.get(boundary, [])
        needed = pass_.last_use.get(boundary, -1) > boundary
        counted_of = self._wide if pass_.pool is None else self._counted  # the pool holds whole states
        firsts = {a: (counted_of(self.states[a][0]), *self.states[a][1:]) for a in {*ends, *named, *fitted}}
        if ends or needed:
            token_norm = torch.linalg.vector_norm(wide, dim=-1)  # [batch, tokens]
            channel_norm = torch.linalg.vector_norm(wide, dim=1) if "channel" in pass_.kinds else None
            for a in ends:
                pass_.add_cosine(a, boundary, firsts[a], (wide, token_norm, channel_norm))
        for a in named:
            pass_.add_elementwise(a, boundary, firsts[a][0], wide)
        for a in fitted:
            pass_.statistics.moments[a, boundary].add(firsts[a][0], wide)
        for a in [a for a in self.states if pass_.last_use[a] <= boundary]:
            del self.states[a]
        if needed:  # while batches take turns in the model's type, which is smaller
            self.states[boundary] = (wide if pass_.pool is None else self.hidden, token_norm, channel_norm)

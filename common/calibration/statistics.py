"""Keep the statistics of one pass over calibration text: cosines, magnitudes, their ratios, and moments of layer inputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from common.calibration.least_squares import Moments, silent
from common.utils.errors import UserValueError, unknown

COSINES = ("token", "channel", "flat-batch", "flat-sentence", "last-token-angle")
# Those that a pass has to be asked for; the others come with any.
_ASKED = ("channel", "last-token-angle")
ESTIMATORS = ("ratio-of-means", "pooled-l1", "elementwise", "least-squares")


def magnitude_ratios(before: Tensor, after: Tensor) -> Tensor:
    """Return ``after / before`` of magnitudes [..., channels]; 1 for a channel that is `silent` before."""
    return torch.where(silent(before), 1.0, after / before)


@dataclass
class Cosine:
    """Running sums of one pair of boundaries: token and channel cosines, flat dot products and norms."""

    token: float = 0.0
    tokens: int = 0
    channel: float = 0.0
    sentence: float = 0.0
    dot: float = 0.0
    first: float = 0.0
    second: float = 0.0
    angle: float = 0.0


@dataclass
class Statistics:
    """Statistics of one pass over the calibration set. Boundaries are 0..N, and N + 1 for the state after the final norm.

    kinds: the cosines that were asked for; all but ``channel`` and ``last-token-angle`` come with any. samples, tokens: size
    of the set. magnitude sums are float64 [N + 1, channels]; ratio sums are float64 [N + 1 - d, channels] for every distance
    d up to ``span``: enough for the scales of any run of up to ``span`` layers.
    elementwise: sums of ratios, of their squares and of ones, float64 [3, channels], and moments: of the pairs named.
    skip: so many first tokens of each sample are in none of it.
    """

    layers: int
    span: int
    kinds: tuple[str, ...] = ("token",)
    samples: int = 0
    tokens: int = 0
    cosines: dict[tuple[int, int], Cosine] = field(default_factory=dict)
    magnitudes: dict[bool, Tensor] = field(default_factory=dict)
    ratios: dict[tuple[bool, int], Tensor] = field(default_factory=dict)
    elementwise: dict[tuple[bool, int, int], Tensor] = field(default_factory=dict)
    moments: dict[tuple[int, int], Moments] = field(default_factory=dict)
    skip: int = 0

    def cosine(self, kind: str, a: int, b: int) -> float:
        """Mean cosine between ``X[a]`` and ``X[b]``; higher means that the layers between change less.

        token: along channels, per token, mean over tokens (ShortGPT's BI, LLM-Streamline, Prune&Comp Eqs. 4-5).
        channel: along tokens, per channel, mean over channels and samples (LinearPatch's official code).
        flat-batch: one cosine of the whole calibration set (Reassessing's official code).
        flat-sentence: one cosine per sample, mean over samples (LaCo's official code, there on two models' outputs).
        last-token-angle: no cosine, but 1 less arccos(cosine) / pi of each sample's last token, mean over samples: UIDL's
        angular distance (arXiv 2403.17887, Eq. 8) taken from 1.
        """
        if kind not in COSINES:
            raise unknown("cosine", kind, COSINES)
        if (a, b) not in self.cosines:
            raise UserValueError(f"no cosine of X[{a}] and X[{b}] was collected; name the pair in collect(pairs=...)")
        if kind in _ASKED and kind not in self.kinds:
            raise UserValueError(f'no {kind} cosine was collected; call collect(kinds=("{kind}",))')
        sums = self.cosines[a, b]
        if kind == "token":
            return sums.token / sums.tokens
        if kind == "flat-batch":
            return sums.dot / (sums.first * sums.second) ** 0.5
        if kind == "last-token-angle":
            return 1 - sums.angle / self.samples
        return (sums.channel if kind == "channel" else sums.sentence) / self.samples

    def magnitude(self, boundary: int, rotated: bool = False) -> Tensor:
        """Mean ``|X[boundary]|`` (or of ``X H``) over all tokens, float64 [channels]."""
        self._require_rotated(rotated)
        return self.magnitudes[rotated][boundary] / self.tokens

    def ratio(self, a: int, b: int, estimator: str = "ratio-of-means", rotated: bool = False) -> Tensor:
        """Return how much larger ``X[b]`` is than ``X[a]``, per (rotated) channel, float64 [channels].

        ratio-of-means: per sample, mean over tokens of |X[b]| over that of |X[a]|; then mean over samples.
        pooled-l1: the same ratio of the whole set's sums. elementwise: mean of |X[b]| / |X[a]| over tokens and samples, but
        for entries that are `silent` beside their token's others; only for pairs named in ``collect(elementwise=...)``.
        least-squares (extension): the factor of X[a] nearest to X[b], each token weighted by 1 / |X[a]|^2
        (`common.calibration.least_squares`); only for pairs named in ``collect(moments=...)``.

        A channel that is zero at ``a`` has 1 by every estimator (`common.calibration.least_squares.silent`). The
        official codes divide by zero.
        """
        if estimator not in ESTIMATORS:
            raise unknown("estimator", estimator, ESTIMATORS)
        if estimator == "elementwise":
            total, _, count = self._elementwise(a, b, rotated)
            return torch.where(silent(self.magnitudes[rotated][a]), 1.0, total / count)
        if estimator == "least-squares":
            return self.least_squares(a, b).channels(rotated)
        self._require_rotated(rotated)
        if not 0 <= a < b <= self.layers:
            raise UserValueError(f"no ratio from X[{a}] to X[{b}]: the model has boundaries 0..{self.layers}")
        if estimator == "pooled-l1":
            return magnitude_ratios(self.magnitudes[rotated][a], self.magnitudes[rotated][b])
        if b - a > self.span:
            raise UserValueError(f"ratios were collected for up to {self.span} layers, not {b - a}; raise span")
        return self.ratios[rotated, b - a][a] / self.samples

    def spread(self, a: int, b: int, rotated: bool = False) -> float:
        """sigma_d (LinearPatch, Eq. 5): the standard deviation over tokens of |X[b]| / |X[a]|, mean over channels.

        Small where one factor a channel can serve all tokens. Only for pairs named in ``collect(elementwise=...)``.
        Like Eq. 4 it is ruled by the entries of X[a] nearest to zero: where a channel's density at zero is positive, the mean
        of 1 / |X| and of its square are infinite, and what is found grows with the data set.
        """
        total, squares, count = self._elementwise(a, b, rotated)
        count = count.clamp_min(1)
        return (squares / count - (total / count) ** 2).clamp_min(0).sqrt().mean().item()

    def least_squares(self, a: int, b: int) -> Moments:
        """Return the second moments of X[a] and X[b], from which least-squares factors and matrices follow."""
        if (a, b) not in self.moments:
            raise UserValueError(
                f"no moments of X[{a}] and X[{b}] were collected; name the pair in collect(moments=...)"
            )
        return self.moments[a, b]

    def holds(
        self,
        pairs: Iterable[tuple[int, int]],
        *,
        span: int,
        kinds: Sequence[str],
        rotate: bool = True,
        elementwise: Iterable[tuple[int, int]] = (),
        moments: Iterable[tuple[int, int]] = (),
        matrices: Iterable[tuple[int, int]] = (),
        weights: str = "inverse-norm",
        first: bool = True,
        skip: int = 0,
    ) -> bool:
        """Return whether this is all that `common.calibration.collect` with these options would find."""
        matrices, moments = list(matrices), list(moments)
        bases = (False, True) if rotate else (False,)
        return (
            span <= self.span
            and skip == self.skip
            and self.cosines.keys() >= set(pairs)
            and all(kind in self.kinds for kind in _ASKED if kind in kinds)
            and self.magnitudes.keys() >= set(bases)
            and self.elementwise.keys() >= {(rotated, a, b) for a, b in elementwise for rotated in bases}
            and self.moments.keys() >= {*moments, *matrices}
            and all(self.moments[pair].matrices for pair in matrices)
            and all((self.moments[p].weights, self.moments[p].first) == (weights, first) for p in [*moments, *matrices])
        )

    def joined(self, others: Iterable[Statistics], matrices: int) -> Statistics:
        """This, and what ``others``, of the same model and tokens, have of more named pairs.

        matrices: C x C matrices of theirs come along while those take so many bytes at most.
        """
        device = next(iter(self.magnitudes.values())).device
        for other in others:
            self.elementwise = {key: value.to(device) for key, value in other.elementwise.items()} | self.elementwise
            for pair, theirs in other.moments.items():
                if theirs.nbytes > matrices:
                    theirs = theirs.without_matrices()
                mine = self.moments.get(pair)
                if mine is None or (theirs.matrices and not mine.matrices and theirs.counts_as(mine)):
                    self.moments[pair] = theirs.to(device)
                    matrices -= theirs.nbytes
        return self

    def to_bytes(self, matrices: int) -> bytes:
        """Return all of it as safetensors, but of C x C matrices so many bytes at most: those that have `joined` first."""
        moments = {}
        for pair, one in reversed(self.moments.items()):
            moments[pair] = one if one.nbytes <= matrices else one.without_matrices()
            matrices -= moments[pair].nbytes
        tensors = {f"magnitudes.{rotated:d}": value for rotated, value in self.magnitudes.items()}
        tensors |= {f"ratios.{rotated:d}.{d}": value for (rotated, d), value in self.ratios.items()}
        tensors |= {f"elementwise.{rotated:d}.{a}.{b}": value for (rotated, a, b), value in self.elementwise.items()}
        for (a, b), one in moments.items():
            tensors |= {f"moments.{a}.{b}.{name}": value for name, value in one.tensors().items()}
        sizes = {name: getattr(self, name) for name in ("layers", "span", "kinds", "samples", "tokens", "skip")}
        facts = sizes | {"cosines": [[a, b, asdict(sums)] for (a, b), sums in self.cosines.items()]}
        facts["moments"] = [[a, b, one.facts()] for (a, b), one in moments.items()]
        return save({name: value.cpu().contiguous() for name, value in tensors.items()}, {"facts": json.dumps(facts)})

    @classmethod
    def read(cls, path: Path) -> Statistics:
        """Return what `to_bytes` wrote.

        Raises:
            OSError, SafetensorError, ValueError, KeyError, TypeError: there is no such file, or it is not one of these.
        """
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        cosines = {(a, b): Cosine(**sums) for a, b, sums in facts.pop("cosines")}
        moments = facts.pop("moments", [])  # files of earlier versions have none
        found = cls(**facts | {"kinds": tuple(facts["kinds"]), "cosines": cosines})
        of_pairs: dict[tuple[int, int], dict[str, Tensor]] = {}
        for name, value in tensors.items():
            what, *key = name.split(".")
            if what == "magnitudes":
                found.magnitudes[key[0] == "1"] = value
            elif what == "ratios":
                found.ratios[key[0] == "1", int(key[1])] = value
            elif what == "elementwise":
                found.elementwise[key[0] == "1", int(key[1]), int(key[2])] = value
            else:
                of_pairs.setdefault((int(key[0]), int(key[1])), {})[".".join(key[2:])] = value
        found.moments = {(a, b): Moments.of(known, of_pairs[a, b]) for a, b, known in moments}
        return found

    def _elementwise(self, a: int, b: int, rotated: bool) -> Tensor:
        self._require_rotated(rotated)
        if (rotated, a, b) not in self.elementwise:
            raise UserValueError(f"no element-wise ratio of ({a}, {b}) was collected; name it in collect()")
        return self.elementwise[rotated, a, b]

    def _require_rotated(self, rotated: bool) -> None:
        if rotated not in self.magnitudes:
            raise UserValueError("rotated magnitudes were not collected; call collect(rotate=True)")

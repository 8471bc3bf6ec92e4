"""Keep the statistics of one pass over calibration text: cosines, magnitudes, their ratios, and moments of layer inputs."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from common.calibration.least_squares import Moments, silent
from common.utils.errors import UserValueError, unknown

COSINES = ("token", "channel", "flat-batch", "flat-sentence", "last-token-angle")
# Cosines that a pass collects only on request; the others come with any pass.
_ON_REQUEST = ("channel", "last-token-angle")
ESTIMATORS = ("ratio-of-means", "pooled-l1", "elementwise", "least-squares")


def magnitude_ratios(before: Tensor, after: Tensor) -> Tensor:
    """Return ``after / before`` of magnitudes [..., channels]; 1 for a channel that is `silent` before."""
    return torch.where(silent(before), 1.0, after / before)


@dataclass
class Cosine:
    """Running sums of one pair of boundaries: token and channel cosines, flat dot products, norms and angles."""

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
    """Statistics of one pass over calibration text.

    X[b] is the residual stream at boundary b: 0..N, and N + 1 for the state after the final norm.

    Attributes:
        layers: N, the number of layers.
        span: Largest distance d of boundaries with ratio sums; enough for the scales of runs of up to ``span`` layers.
        kinds: Requested cosines; all but ``channel`` and ``last-token-angle`` are always collected.
        samples: Number of samples.
        tokens: Number of tokens.
        cosines: Sums by pair of boundaries.
        magnitudes: By rotated or not: sums of |X|, float64 [N + 1, channels].
        ratios: By rotated or not and d: sums of ratios of magnitudes, float64 [N + 1 - d, channels].
        elementwise: By rotated or not and requested pair: sums of ratios, of their squares and of ones, float64 [3,
            channels].
        moments: By requested pair: second moments.
        skip: Number of first tokens of each sample that are left out.
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
        """Return the mean cosine between ``X[a]`` and ``X[b]``; higher means that the layers between change less.

        Args:
            kind: ``token``: along channels, per token, mean over tokens (ShortGPT's BI, LLM-Streamline, Prune&Comp Eqs.
                4-5). ``channel``: along tokens, per channel, mean over channels and samples (LinearPatch's official
                code). ``flat-batch``: one cosine of the entire calibration set (Reassessing's official code).
                ``flat-sentence``: one cosine per sample, mean over samples (LaCo's official code, there of two models'
                outputs). ``last-token-angle``: 1 - arccos(cosine) / pi of each sample's last token, mean over samples,
                which is 1 minus UIDL's angular distance (arXiv 2403.17887, Eq. 8).
            a: First boundary.
            b: Second boundary.

        Raises:
            UserError: an unknown kind, or a kind or pair that was not collected.
        """
        if kind not in COSINES:
            raise unknown("cosine", kind, COSINES)
        if (a, b) not in self.cosines:
            raise UserValueError(f"no cosine of X[{a}] and X[{b}] was collected; name the pair in collect(pairs=...)")
        if kind in _ON_REQUEST and kind not in self.kinds:
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
        """Return the mean of ``|X[boundary]|`` over all tokens, or of ``|X H|`` if ``rotated``, float64 [channels]."""
        self._require_rotated(rotated)
        return self.magnitudes[rotated][boundary] / self.tokens

    def ratio(self, a: int, b: int, estimator: str = "ratio-of-means", rotated: bool = False) -> Tensor:
        """Return the ratio of the magnitudes of ``X[b]`` and ``X[a]`` per (rotated) channel, float64 [channels].

        A channel that is zero at ``a`` has ratio 1 by every estimator (`common.calibration.least_squares.silent`). The
        official codes divide by zero.

        Args:
            a: Boundary before the layers.
            b: Boundary after the layers.
            estimator: ``ratio-of-means``: per sample, mean over tokens of |X[b]| over that of |X[a]|; then mean over
                samples. ``pooled-l1``: the same ratio of sums over the entire set. ``elementwise``: mean of |X[b]| /
                |X[a]| over tokens and samples, without entries that are `silent` beside their token's others; only for
                pairs named in ``collect(elementwise=...)``. ``least-squares`` (extension): the factor that brings X[a]
                nearest to X[b], each token weighted by 1 / |X[a]|^2; only for pairs named in ``collect(moments=...)``.
            rotated: In the Hadamard basis.

        Raises:
            UserError: an unknown estimator, or statistics that were not collected.
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
        """Compute sigma_d (LinearPatch, Eq. 5): the standard deviation over tokens of |X[b]| / |X[a]|, mean of channels.

        It is small if one factor per channel fits all tokens. Only for pairs named in ``collect(elementwise=...)``.
        Like Eq. 4 it is dominated by the entries of X[a] nearest to zero: where a channel's density at zero is
        positive, the means of 1 / |X| and of its square are infinite, and the estimate grows with the data set.
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
        skip: int = 0,
    ) -> bool:
        """Return whether `common.calibration.collect` with these options would find nothing that is missing here."""
        bases = (False, True) if rotate else (False,)
        return (
            span <= self.span
            and skip == self.skip
            and self.cosines.keys() >= set(pairs)
            and all(kind in self.kinds for kind in _ON_REQUEST if kind in kinds)
            and self.magnitudes.keys() >= set(bases)
            and self.elementwise.keys() >= {(rotated, a, b) for a, b in elementwise for rotated in bases}
            and self.moments.keys() >= set(moments)
        )

    def joined(self, others: Iterable[Statistics]) -> Statistics:
        """Add the named pairs of ``others``, statistics of the same model and tokens, and return these statistics."""
        for other in others:
            self.elementwise = other.elementwise | self.elementwise
            self.moments = other.moments | self.moments
        return self

    def to_bytes(self) -> bytes:
        """Return what `read` reads."""
        content = io.BytesIO()
        torch.save(self, content)
        return content.getvalue()

    @classmethod
    def read(cls, path: Path, device: torch.device) -> Statistics:
        """Read the statistics that `to_bytes` wrote onto a device.

        Raises:
            OSError, EOFError, RuntimeError, pickle.UnpicklingError: the file is missing or damaged.
        """
        with torch.serialization.safe_globals([cls, Cosine, Moments]):
            return torch.load(path, device, weights_only=True)

    def _elementwise(self, a: int, b: int, rotated: bool) -> Tensor:
        self._require_rotated(rotated)
        if (rotated, a, b) not in self.elementwise:
            raise UserValueError(f"no element-wise ratio of ({a}, {b}) was collected; name it in collect()")
        return self.elementwise[rotated, a, b]

    def _require_rotated(self, rotated: bool) -> None:
        if rotated not in self.magnitudes:
            raise UserValueError("rotated magnitudes were not collected; call collect(rotate=True)")

"""Least squares from second moments: how the stream after removed layers is best guessed from the stream before them.

For x = X[a] and y = X[b] (rows, one a token) every estimator minimises

    sum over tokens of  |x A - y|^2 / |x|^2

over one family of A: a multiple of the identity, a diagonal matrix (plain or in the Hadamard basis), or any matrix. The
weight makes each token count alike: a massive token, a thousand times the others' norm, would else decide alone. What is
kept are sums over tokens, so memory does not grow with them. The four papers match magnitudes instead.

Who was first: ReplaceMe (arXiv 2505.02819, May 2025) fits a matrix by least squares to the last kept MLP's output, Ghosted
Layers (2605.15491, May 2026) one to the stream, without weights and with a ridge of 1e-6. Ours are the weights, the ridge
as a share of the mean eigenvalue, the families between one factor and any matrix, and `unexplained`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from common.errors import UserValueError
from common.hadamard import hadamard_transform

# Ridge of the full matrix as a share of the Gram matrix's mean eigenvalue.
RIDGE = 0.01
# A channel so small beside the mean one is silence and float32's rounding.
SILENCE = 1e-6


def silent(magnitudes: Tensor) -> Tensor:
    """Which of ``magnitudes`` [..., channels] are zero: nothing tells how to scale such a channel, so it is left alone.

    Zero is what is below SILENCE of the mean channel. A rotation leaves rounding of a few 1e-7 where there was nothing, and
    a scale of 1e8 would carry that. None is silent beside one that is not finite.
    """
    mean = magnitudes.mean(-1, keepdim=True)
    return (magnitudes <= SILENCE * mean) & mean.isfinite()


@dataclass
class Moments:
    """Weighted sums over the tokens of one pair of boundaries, in float64.

    tokens: those with a non-zero x. dot, target: sums of <x, y> / |x|^2 and |y|^2 / |x|^2. squares, products: [channels],
    sums of x_k^2 / |x|^2 and x_k y_k / |x|^2, plain (False) and rotated (True). gram, cross: [channels, channels], sums of
    x^T x / |x|^2 and x^T y / |x|^2, where they were asked for.
    """

    matrices: bool = False
    tokens: int = 0
    dot: float = 0.0
    target: float = 0.0
    squares: dict[bool, Tensor] = field(default_factory=dict)
    products: dict[bool, Tensor] = field(default_factory=dict)
    gram: Tensor | None = None
    cross: Tensor | None = None

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add a batch: ``x`` and ``y`` [..., channels]."""
        x, y = x.flatten(0, -2).double(), y.flatten(0, -2).double()
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        seen = norm > 0
        x, y = (torch.where(seen, value / norm, 0.0) for value in (x, y))
        self.tokens += int(seen.sum())
        self.target += y.square().sum().item()
        for rotated in (False, True):
            one, two = (hadamard_transform(value) if rotated else value for value in (x, y))
            self.squares[rotated] = self.squares.get(rotated, 0.0) + one.square().sum(0)
            self.products[rotated] = self.products.get(rotated, 0.0) + (one * two).sum(0)
        self.dot = self.products[False].sum().item()
        if self.matrices:
            self.gram = x.T @ x if self.gram is None else self.gram + x.T @ x
            self.cross = x.T @ y if self.cross is None else self.cross + x.T @ y

    def scalar(self) -> float:
        """The best single factor: the mean over tokens of cos(x, y) |y| / |x|.

        So it is the ratio of norms times the cosine: where the removed layers add new directions, matching magnitudes
        scales too much.
        """
        return self.dot / max(self.tokens, 1)

    def channels(self, rotated: bool = False) -> Tensor:
        """The best factor of each (rotated) channel alone, [channels]; 1 where a channel is always zero (`silent`)."""
        squares, products = self.squares[rotated], self.products[rotated]
        return torch.where(silent(squares.sqrt()), 1.0, products / squares)

    def matrix(self, ridge: float = RIDGE) -> Tensor:
        """The best matrix A [channels, channels], pulled towards the identity: I + (G + r I)^-1 (K - G).

        G, K: gram and cross. r = ``ridge`` times the mean eigenvalue of G, so that directions hardly seen in calibration
        are left as they are (r towards infinity: no patch at all).

        Raises:
            UserError: the matrices were not collected, or ``ridge`` is not a positive number.
        """
        if self.gram is None:
            raise UserValueError("no C x C moments were collected; name the pair in collect(matrices=...)")
        if not 0 < ridge < float("inf"):
            raise UserValueError(f"ridge must be a positive number, not {ridge}")
        eye = torch.eye(len(self.gram), dtype=torch.float64, device=self.gram.device)
        damped = self.gram + ridge * self.gram.trace() / len(self.gram) * eye
        return eye + torch.linalg.solve(damped, self.cross - self.gram)

    def unexplained(self, values: float | Tensor, rotated: bool = False) -> float:
        """What a factor, channel factors or a matrix leave of the weighted error of doing nothing (1: no better)."""
        nothing = self.tokens - 2 * self.dot + self.target
        if isinstance(values, Tensor) and values.ndim == 2:
            error = ((self.gram @ values - 2 * self.cross) * values).sum() + self.target
        else:
            error = (self.squares[rotated] * values**2 - 2 * self.products[rotated] * values).sum() + self.target
        return float(error) / nothing

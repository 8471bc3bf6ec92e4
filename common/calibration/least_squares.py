"""Predict the residual stream after removed layers from the one before them, by least squares from second moments.

For x = X[a] and y = X[b] (rows, one per token) every estimator minimises

    sum over tokens of  |x A - y|^2 / |x|^2

over one family of A: a multiple of the identity, a diagonal matrix (plain or in the Hadamard basis), or any matrix. The
weight makes all tokens count equally; without it a massive token, with a thousand times the others' norm, would decide
alone. Only sums over tokens are kept, so memory does not grow with their number. The four papers match magnitudes instead.
`Regression` is the general case: it predicts the missing part of the residual stream from any inputs.

Earlier work: ReplaceMe (arXiv 2505.02819, May 2025) fits a matrix by least squares to the last kept MLP's output.
Ghosted Layers (2605.15491, May 2026) fits one to the residual stream, without weights and with a ridge of 1e-6
(`common.baselines`). Extensions are the weights, the ridge as a share of the mean eigenvalue, the families between one
factor and any matrix, and `unexplained`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from common.hadamard import hadamard_transform
from common.utils.errors import UserError, UserValueError

# Ridge of the full matrix as a share of the Gram matrix's mean eigenvalue.
RIDGE = 0.01
# A channel so small beside the mean one is silence and float32's rounding.
SILENCE = 1e-6
# Rows are brought to float64 so many bytes of inputs at a time.
WIDE_BYTES = 2**27
SYMMETRIC_BLOCK = 256  # columns of a symmetric product at once; of many a sixteenth


def counted_rows(states: Tensor, keep: Tensor | None) -> Tensor:
    """Return the rows [tokens, channels] of ``states`` [..., channels] in the mask ``keep`` [...]; None for all."""
    return states.flatten(0, -2) if keep is None else states[keep.to(states.device)]


def silent(magnitudes: Tensor) -> Tensor:
    """Return a mask of the channels of ``magnitudes`` [..., channels] that count as zero; such a channel is not scaled.

    A channel counts as zero below SILENCE times the mean channel. A rotation leaves rounding errors of a few 1e-7 in
    zero channels, and their ratios would be scales of 1e8. No channel counts as zero beside one that is not finite.
    """
    mean = magnitudes.mean(-1, keepdim=True)
    return (magnitudes <= SILENCE * mean) & mean.isfinite()


def counted_tokens(ids: Tensor, first: bool) -> Tensor | None:
    """Return a mask [samples, tokens] of the tokens of ``ids`` that count: all (None), or all but each sample's first.

    Raises:
        UserError: only first tokens were given, and they do not count.
    """
    if first:
        return None
    if ids.shape[1] < 2:
        raise UserError(
            "No token is left to fit. Each calibration sequence has one token, and first tokens are left out. Give longer "
            "sequences, or let first tokens count (first=true)"
        )
    return torch.arange(ids.shape[1]).expand(ids.shape) > 0


@dataclass
class Moments:
    """Weighted sums over the tokens of one pair of boundaries X[a] and X[b], in float64.

    A token has the row x of X[a], the row y of X[b] and the weight w = 1 / |x|^2.

    Attributes:
        matrices: Whether ``gram`` and ``cross`` are collected.
        tokens: Number of tokens with a non-zero x.
        dot: Sum of w <x, y>.
        target: Sum of w |y|^2.
        squares: Sums of w x_k^2 [channels], plain (False) and rotated (True).
        products: Sums of w x_k y_k [channels], plain (False) and rotated (True).
        gram: Sum of w x^T x [channels, channels], or None.
        cross: Sum of w x^T y [channels, channels], or None.
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
        nonzero = norm > 0
        x, y = (torch.where(nonzero, value / norm, 0.0) for value in (x, y))
        self.tokens += int(nonzero.sum())
        self.target += y.square().sum().item()
        for rotated in (False, True):
            inputs, targets = (hadamard_transform(value) if rotated else value for value in (x, y))
            self.squares[rotated] = self.squares.get(rotated, 0.0) + inputs.square().sum(0)
            self.products[rotated] = self.products.get(rotated, 0.0) + (inputs * targets).sum(0)
        self.dot = self.products[False].sum().item()
        if self.matrices:
            self.gram = x.T @ x if self.gram is None else self.gram + x.T @ x
            self.cross = x.T @ y if self.cross is None else self.cross + x.T @ y

    def scalar(self) -> float:
        """Return the best single factor.

        It is the mean over tokens of cos(x, y) |y| / |x|, the ratio of norms times the cosine. Where the removed layers
        add new directions, matching magnitudes scales too much.
        """
        return self.dot / (self.tokens or 1)

    def channels(self, rotated: bool = False) -> Tensor:
        """Return the best factor of each (rotated) channel, [channels]; 1 for channels that are always zero (`silent`)."""
        squares, products = self.squares[rotated], self.products[rotated]
        return torch.where(silent(squares.sqrt()), 1.0, products / squares)

    def matrix(self, ridge: float = RIDGE) -> Tensor:
        """Return the best matrix A [channels, channels] with a ridge towards the identity: I + (G + r I)^-1 (K - G).

        G and K are `gram` and `cross`, and r is ``ridge`` times the mean eigenvalue of G. So directions that
        calibration hardly covers stay unchanged; r towards infinity gives the identity.

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
        """Return the share of the weighted error that a factor, channel factors or a matrix leave (1: no better)."""
        nothing = self.tokens - 2 * self.dot + self.target
        if isinstance(values, Tensor) and values.ndim == 2:
            error = ((self.gram @ values - 2 * self.cross) * values).sum() + self.target
        else:
            error = (self.squares[rotated] * values**2 - 2 * self.products[rotated] * values).sum() + self.target
        return float(error) / nothing if nothing else 1.0


def _step(matrix: Tensor) -> int:
    """Return how many columns of a symmetric matrix are computed at once."""
    return max(SYMMETRIC_BLOCK, len(matrix) // 16)


def _lower(total: Tensor | None, rows: Tensor) -> Tensor:
    """Return ``total`` plus rows' rows, in place; None is zero. Blocks above the diagonal are not computed.

    So a symmetric product takes little more than half the operations of a general one.
    """
    size = rows.shape[1]
    total = rows.new_zeros(size, size) if total is None else total
    step = _step(total)
    for start in range(0, size, step):
        total[start:, start : start + step].addmm_(rows[:, start:].T, rows[:, start : start + step])
    return total


@dataclass
class _Sums:
    """Sums of a regression of the residual stream's error on some inputs; rows are tokens, in float64.

    Attributes:
        intercept: Whether the inputs H get a last column of ones, which has no penalty.
        tokens: Number of rows.
        error: |E|^2 of the missing part E.
        target: |T|^2 of the target residual stream T.
    """

    intercept: bool = False
    tokens: int = 0
    error: float = 0.0
    target: float = 0.0

    def add(self, inputs: Tensor, missing: Tensor, target: Tensor, keep: Tensor | None = None) -> None:
        """Add a batch: ``inputs`` H [..., features], ``missing`` E and ``target`` T [..., channels].

        ``keep`` is a mask [...] of the tokens that count; None for all.
        """
        rows = [counted_rows(states, keep) for states in (inputs, missing, target)]
        few = max(1, WIDE_BYTES // (8 * rows[0].shape[1]))
        for part in zip(*(value.split(few) for value in rows), strict=True):
            self._add(*(value.to(rows[0].device, torch.float64) for value in part))

    def _add(self, inputs: Tensor, missing: Tensor, target: Tensor) -> None:
        self.tokens += len(inputs)
        if self.intercept:
            inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
        self.error += missing.square().sum().item()
        self.target += target.square().sum().item()
        self._take(inputs, missing)

    def _take(self, inputs: Tensor, missing: Tensor) -> None:
        raise NotImplementedError

    def _undetermined(self, inputs: int) -> UserError:
        if not math.isfinite(self.target + self.error):
            return UserError(
                "the calibration's states are not finite: the model's dtype cannot hold them; use --dtype bfloat16 or float32"
            )
        return UserError(
            f"{self.tokens} calibration tokens do not determine a matrix of {inputs} inputs; use more text or a ridge"
        )

    def _totals(self, other: _Sums, *names: str) -> dict:
        """Return the arguments of the regression over both's tokens; names: of what else is added."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("tokens", "error", "target", *names)}
        return {"intercept": self.intercept} | sums


@dataclass
class Regression(_Sums):
    """Regression kept as sums over its tokens, in float64.

    Attributes:
        lower: H'H [features, features], valid on and below its diagonal.
        cross: H'E [features, channels].
        shared: Whether H'H is not summed here, but taken from another regression on the same inputs (`share`).
    """

    lower: Tensor | None = None
    cross: Tensor | None = None
    shared: bool = False

    @property
    def gram(self) -> Tensor:
        """H'H [features, features], both triangles."""
        step = _step(self.lower)
        for start in range(0, len(self.lower), step):
            self.lower[start : start + step, start + step :] = self.lower[start + step :, start : start + step].T
        return self.lower

    def _take(self, inputs: Tensor, missing: Tensor) -> None:
        if not self.shared:
            self.lower = _lower(self.lower, inputs)
        self.cross = inputs.T @ missing if self.cross is None else self.cross.addmm_(inputs.T, missing)

    def share(self, other: Regression) -> None:
        """Take H'H from ``other``, a regression on the same inputs; this one is ``shared``."""
        self.lower = other.lower

    def solved(self, ridge: float, absolute: bool = False, towards: Tensor | None = None) -> Tensor:
        """Return the D [features, channels] that minimizes |H D - E|^2 + r |D - P|^2.

        r is ``ridge`` times the mean eigenvalue of H'H, or ``ridge`` itself if ``absolute``; P is ``towards``, else zero.
        With an intercept, it is the last row of D.

        Raises:
            UserError: D is not unique, because r is 0 and the tokens do not span all features; or the states are not
                finite.
        """
        damped, penalty = self.lower.clone(), self._penalty(ridge, absolute)
        damped.diagonal().add_(penalty)
        cross = self.cross if towards is None else self.cross + penalty[:, None] * towards
        factor, failed = torch.linalg.cholesky_ex(damped)
        pivots = factor.diagonal()
        singular = failed or (pivots.min() / pivots.max()) ** 2 < len(damped) * torch.finfo(torch.float64).eps
        if failed:
            damped = self.gram.clone()
            damped.diagonal().add_(penalty)
            solution = torch.linalg.solve_ex(damped, cross)[0]
        else:
            solution = torch.cholesky_solve(cross, factor)
        if not torch.isfinite(solution).all() or (ridge == 0 and singular):
            raise self._undetermined(len(damped))
        return solution

    def fitted(self, ridge: float, towards: Tensor | None = None) -> tuple[Tensor, float]:
        """Return the results of `solved` and `residual` for a positive ``ridge``.

        With R the penalty, H'H D is H'E + R (P - D), so no product with H'H is needed.
        """
        change = self.solved(ridge, towards=towards)
        pull = -change if towards is None else towards - change
        moved = (change * (self._penalty(ridge)[:, None] * pull - self.cross)).sum().item()
        return change, max(self.error + moved, 0.0)

    def residuals(
        self, held_out: Regression, ridges: Iterable[float], towards: Tensor | None = None
    ) -> dict[float, float]:
        """Return, for each ridge, the residual error of its D on the tokens of ``held_out``.

        D is zero for an infinite ridge.
        """
        return {
            ridge: held_out.error if ridge == math.inf else held_out.residual(self.solved(ridge, towards=towards))
            for ridge in ridges
        }

    def consumed(self, ridge: float) -> tuple[Tensor, float]:
        """Return the results of `solved` and `residual` for a positive ``ridge``, reusing (and losing) the sums' memory.

        It serves regressions on so many inputs that a second H'H does not fit into memory. With R the penalty and L L'
        = H'H + R, the residual error of the best D is |E|^2 - |L^-1 H'E|^2 - <D, R D>.
        """
        penalty = self._penalty(ridge)
        factor, change, self.lower, self.cross = self.lower, self.cross, None, None
        factor.diagonal().add_(penalty)
        # given the same memory, in the order of LAPACK's columns, as input and output, torch copies nothing
        columns, failed = factor.mT, torch.empty((), dtype=torch.int32, device=factor.device)
        torch.linalg.cholesky_ex(columns, upper=True, out=(columns, failed))
        if failed:
            raise self._undetermined(len(factor))
        torch.linalg.solve_triangular(factor, change, upper=False, out=change)
        gained = torch.linalg.vector_norm(change).item() ** 2
        torch.linalg.solve_triangular(columns, change, upper=True, out=change)
        damping = (penalty * torch.linalg.vector_norm(change, dim=1).square()).sum().item()
        if not math.isfinite(gained + damping):
            raise self._undetermined(len(factor))
        return change, max(self.error - gained - damping, 0.0)

    def _penalty(self, ridge: float, absolute: bool = False) -> Tensor:
        """Return what is added to the diagonal of H'H, [features]; nothing to an intercept's."""
        penalty = self.lower.diagonal().clone()
        penalised = penalty[:-1] if self.intercept else penalty
        penalised.fill_(ridge if absolute else ridge * penalised.sum().item() / len(penalised))
        penalty[len(penalised) :] = 0
        return penalty

    def residual(self, change: Tensor) -> float:
        """Compute the residual error |H D - E|^2 of D = ``change`` [features, channels]."""
        quadratic = (change * (self.gram @ change)).sum() - 2 * (change * self.cross).sum()
        return max(self.error + quadratic.item(), 0.0)

    def with_(self, other: Regression) -> Regression:
        """Return the sums over both regressions' tokens."""
        return Regression(**self._totals(other, "lower", "cross"))


@dataclass
class RowRegression(_Sums):
    """Regression kept as its rows, for fewer tokens than features; it is solved in the number of tokens.

    With K = H H' [tokens, tokens] the best D is H'A, A = (K + r)^-1 E, and its residual error is r^2 |A|^2. It has no
    intercept.

    Attributes:
        inputs: Rows of H, in float64.
        missing: Rows of E, in float64.
    """

    inputs: list[Tensor] = field(default_factory=list)
    missing: list[Tensor] = field(default_factory=list)

    def _take(self, inputs: Tensor, missing: Tensor) -> None:
        self.inputs.append(inputs)
        self.missing.append(missing)

    def fitted(self, ridge: float) -> tuple[Tensor, float]:
        """Return the same as `Regression.fitted`."""
        inputs = torch.cat(self.inputs)
        factors, damping = self._factors(_lower(None, inputs.T), inputs, ridge)
        return inputs.T @ factors, (damping * torch.linalg.vector_norm(factors).item()) ** 2

    def residuals(self, held_out: RowRegression, ridges: Iterable[float]) -> dict[float, float]:
        """Return the same as `Regression.residuals`, without computing D."""
        inputs, missing = torch.cat(self.inputs), torch.cat(held_out.missing)
        lower, crossed = _lower(None, inputs.T), torch.cat(held_out.inputs) @ inputs.T
        errors = {}
        for ridge in ridges:
            residual = missing if ridge == math.inf else missing - crossed @ self._factors(lower, inputs, ridge)[0]
            errors[ridge] = residual.square().sum().item()
            if not math.isfinite(errors[ridge]):
                raise held_out._undetermined(inputs.shape[1])
        return errors

    def with_(self, other: RowRegression) -> RowRegression:
        """Return the rows of both regressions."""
        return RowRegression(**self._totals(other, "inputs", "missing"))

    def _factors(self, lower: Tensor, inputs: Tensor, ridge: float) -> tuple[Tensor, float]:
        """Return A [tokens, channels], and r."""
        damping = ridge * lower.trace().item() / inputs.shape[1]
        damped = lower.clone()
        damped.diagonal().add_(damping)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if failed or not math.isfinite(damping + self.error):
            raise self._undetermined(inputs.shape[1])
        return torch.cholesky_solve(torch.cat(self.missing), factor), damping

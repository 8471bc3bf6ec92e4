"""Section 4 of Reassessing, checked in numbers: the Jacobians of the norms, and how gradients flow through a stack.

Theorems 4.1 and 4.2 give the spectral norm of the Jacobian of RMSNorm and LayerNorm; Eq. 14 concludes that both are below
one, Eqs. 15 and 16 that a pre-LN layer near the output has a small gradient. Here each statement is computed in float64
and set beside what is stated. What was found:

- Theorem 4.1 holds for width d >= 2 and Theorem 4.2 for d >= 3; below that the space orthogonal to `x` (and to the ones),
  in which the largest singular value lives, is empty.
- Eq. 6 is not the Jacobian: the factor of `x x^T` is 1 / (d r (r + eps)), not 1 / (d (r + eps)^2). The norm is the same.
- `||B_RMS|| <= ||B_LN||` (Eq. 14) fails for the paper's RMSNorm, whose eps stands outside the root, when sigma < 1/2 and the
  mean is zero. With eps inside the root, as models have it, it holds.
- `||B|| < 1` (Eq. 14) is an assumption on the residual stream (sigma > 1), not a consequence; the gain of a norm is left out
too.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """Apply the RMSNorm of Theorem 4.1, `x / (||x||_RMS + eps)` with eps outside the root, to x [d]."""
    return x / (x.square().mean().sqrt() + eps)


def rms_norm_inside(x: Tensor, eps: float) -> Tensor:
    """Apply RMSNorm as Llama and most models have it, `x / sqrt(mean(x^2) + eps)`, to x [d]."""
    return x / (x.square().mean() + eps).sqrt()


def layer_norm(x: Tensor, eps: float) -> Tensor:
    """Apply the LayerNorm of Theorem 4.2, `(x - mu) / sqrt(sigma^2 + eps)`, to x [d]."""
    centred = x - x.mean()
    return centred / (centred.square().mean() + eps).sqrt()


NORMS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "rms": rms_norm,
    "rms-inside": rms_norm_inside,
    "layer": layer_norm,
}


def jacobian(kind: str, x: Tensor, eps: float) -> Tensor:
    """Compute the Jacobian of a norm at `x` [d] by automatic differentiation, float64 [d, d].

    kind: 'rms' and 'layer' as the theorems define them, 'rms-inside' as models do.
    """
    return torch.func.jacrev(lambda point: NORMS[kind](point, eps))(x.double())


def spectral_norm(matrix: Tensor) -> float:
    """Return the largest singular value."""
    return float(torch.linalg.matrix_norm(matrix.detach(), ord=2))


def stated_norm(kind: str, x: Tensor, eps: float) -> float:
    """Compute the norm that the theorems state: Eq. 5 ('rms'), Eq. 9 ('layer'), and Eq. 5 with eps inside the root.

    It does not depend on the width.
    """
    x = x.double()
    if kind == "rms":
        return 1 / (float(x.square().mean().sqrt()) + eps)
    square = x.var(correction=0) if kind == "layer" else x.square().mean()
    return 1 / math.sqrt(float(square) + eps)


def stated_rms_jacobian(x: Tensor, eps: float) -> Tensor:
    """Compute the Jacobian of RMSNorm that Eq. 6 prints, float64 [d, d]."""
    x = x.double()
    shifted = x.square().mean().sqrt() + eps
    return (torch.eye(len(x), dtype=x.dtype) - torch.outer(x, x) / (len(x) * shifted**2)) / shifted


def deviation(kind: str, widths: tuple[int, ...] = (3, 8, 64, 192)) -> float:
    """Return the largest relative difference between the stated and the measured norm over random `x`."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for width in widths:
        for scale in (1e-3, 0.1, 1.0, 30.0):
            for eps in (1e-6, 1e-5, 1e-2):
                x = scale * (torch.randn(width, generator=generator, dtype=torch.float64) + 0.3)
                measured = spectral_norm(jacobian(kind, x, eps))
                worst = max(worst, abs(measured - stated_norm(kind, x, eps)) / measured)
    return worst


def counterexamples() -> list[dict]:
    """Return inputs for which a printed statement does not hold.

    Returns:
        For each, the `statement`, the input `x`, `eps`, and the `stated` and the `measured` value.
    """
    examples, eps = [], 1e-5

    def add(statement: str, x: list[float], stated: float, measured: float) -> None:
        examples.append({"statement": statement, "x": x, "eps": eps, "stated": stated, "measured": measured})

    def norm(kind: str, x: list[float]) -> float:
        return spectral_norm(jacobian(kind, torch.tensor(x), eps))

    single, opposite = [2.0], [1.0, -1.0]
    add("Theorem 4.1, d = 1", single, stated_norm("rms", torch.tensor(single), eps), norm("rms", single))
    add("Theorem 4.2, d = 2", opposite, stated_norm("layer", torch.tensor(opposite), eps), norm("layer", opposite))
    small = [0.02, -0.02, 0.02, -0.02]  # a token embedding's size: sigma = 0.02, mean 0
    add("Eq. 14, B_RMS <= B_LN (stated: B_LN)", small, norm("layer", small), norm("rms", small))
    add("Eq. 14, B_LN < 1 (stated: 1)", small, 1.0, norm("layer", small))
    add("Eq. 14, B_RMS < 1 (stated: 1)", small, 1.0, norm("rms", small))
    x = torch.tensor(small)
    wrong = spectral_norm(stated_rms_jacobian(x, eps) - jacobian("rms", x, eps))
    add("Eq. 6 (stated: no difference to the Jacobian)", small, 0.0, wrong)
    return examples

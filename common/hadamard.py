"""Hadamard matrices of order 2^k * m, constructed, and the fast transform they give.

`hadamard_matrix(n)` is orthonormal: entries +-1/sqrt(n), `H @ H.T = I`. For n = 2^k it is the Sylvester matrix
(symmetric). Otherwise

    H(2^k * m) = Had_m (kron) H(2^k)

with the smallest m that a Paley construction reaches (Paley 1933): type I for q + 1 with a prime power q = 3 mod 4, type
II for 2(q + 1) with a prime power q = 1 mod 4.

Deviation: LinearPatch's official code multiplies by (Had_m)^T (kron) H(2^k), with Had_m from a table of literal matrices.
All Hadamard matrices of one order serve the method alike, but rotated scales and patches of the two are not
interchangeable when n is not a power of two. (Its paper writes the Kronecker factors in the other order.)

The transform never builds H(n): it splits H = A (kron) B with both factors of order about sqrt(n), so a row x, seen as a
matrix X [a, b], becomes A^T X B: two small matrix products.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from common.utils.errors import UserValueError


def hadamard_matrix(n: int) -> Tensor:
    """Return the orthonormal Hadamard matrix.

    Args:
        n: Order.

    Returns:
        Matrix [n, n], float64.

    Raises:
        ValueError: (a UserError too) an order that the constructions do not reach.
    """
    odd_core, power = _split(n)
    return torch.kron(_core(odd_core), _sylvester(power)).double() / math.sqrt(n)


def hadamard_transform(x: Tensor, transpose: bool = False) -> Tensor:
    """Return `x @ H`, or `x @ H.T` (its inverse) with `transpose`, without building H = `hadamard_matrix(n)`.

    Differentiable. Half precisions are computed in float32 and rounded once (the official code multiplies in fp16).

    Args:
        x: Tensor [..., n] of any float dtype.
        transpose: Multiply by the transpose.

    Returns:
        Tensor [..., n] of the dtype of ``x``.

    Raises:
        UserError: as `hadamard_matrix`.
    """
    n = x.shape[-1]
    dtype = torch.promote_types(x.dtype, torch.float32)
    left, right = _factors(n, dtype, x.device)  # H = left.T (kron) right
    if transpose:
        left, right = left.T, right.T
    with torch.autocast(x.device.type, enabled=False):
        rows = x.to(dtype).reshape(-1, len(left), len(right))  # [rows, a, b]
        return (left @ (rows @ right)).reshape(x.shape).to(x.dtype)


@lru_cache(maxsize=64)
def _factors(n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (A^T, B), normalised, with `hadamard_matrix(n) = A (kron) B` and orders as equal as possible."""
    core, power = _split(n)
    splits = [2**k for k in range(power.bit_length())]
    right_order = min(splits, key=lambda order: core * (power // order) + order)
    with torch.inference_mode(False):  # the cached factors must stay usable in later backward passes
        left = torch.kron(_core(core), _sylvester(power // right_order))
        right = _sylvester(right_order)
        return tuple(
            (signs.double() / math.sqrt(len(signs))).to(device, dtype).contiguous() for signs in (left.T, right)
        )


@lru_cache(maxsize=512)
def _split(n: int) -> tuple[int, int]:
    """N = m * 2^k as (m, 2^k), m the smallest buildable order with the odd part of n; 1 for powers of two."""
    if n < 1:
        raise UserValueError(f"no Hadamard matrix of order {n}: the order must be a positive integer")
    odd = n
    while odd % 2 == 0:
        odd //= 2
    if odd == 1:
        return 1, n
    core = 4 * odd
    while core <= n and n % core == 0:
        if _paley_field(core):
            return core, n // core
        core *= 2
    raise UserValueError(
        f"cannot build a Hadamard matrix of order {n}: no Sylvester or Paley construction reaches it "
        "(orders 2^k * m do, with m = 1, 12, 20, 28, 36, 44, 52, 60, ...); use the unrotated variant"
    )


def _core(order: int) -> Tensor:
    """Return Paley's +-1 Hadamard matrix of an order that `_paley_field` reaches, or that of order 1."""
    if order == 1:
        return torch.ones(1, 1, dtype=torch.int8)
    q, prime, degree = _paley_field(order)
    return (_paley_one if q % 4 == 3 else _paley_two)(_jacobsthal(prime, degree))


@lru_cache(maxsize=512)
def _paley_field(order: int) -> tuple[int, int, int] | None:
    """Return (q, prime, degree) of the field GF(q) whose Paley construction has this order.

    Type I first; None if there is none.
    """
    for q, residue in ((order - 1, 3), (order // 2 - 1, 1)):
        if order % 4 == 0 and q % 4 == residue and _prime_power(q):
            return (q, *_prime_power(q))
    return None


def _sylvester(order: int) -> Tensor:
    """Return the +-1 Sylvester matrix of a power of two: entry (i, j) is (-1)^popcount(i & j)."""
    return torch.from_numpy(scipy.linalg.hadamard(order, dtype=np.int8))


def _paley_one(jacobsthal: Tensor) -> Tensor:
    """Order q + 1 from the Jacobsthal matrix Q, q = 3 mod 4: I + S with the skew S = [[0, 1], [-1, Q]]."""
    bordered = _bordered(jacobsthal, -1)
    return bordered + torch.eye(len(bordered), dtype=torch.int8)


def _paley_two(jacobsthal: Tensor) -> Tensor:
    """Order 2(q + 1), q = 1 mod 4: with the symmetric C = [[0, 1], [1, Q]], every entry becomes a 2x2 block."""
    bordered = _bordered(jacobsthal, 1)
    off_diagonal = torch.tensor([[1, 1], [1, -1]], dtype=torch.int8)
    diagonal = torch.tensor([[1, -1], [-1, -1]], dtype=torch.int8)
    return torch.kron(bordered, off_diagonal) + torch.kron(torch.eye(len(bordered), dtype=torch.int8), diagonal)


def _bordered(jacobsthal: Tensor, below: int) -> Tensor:
    """Return [[0, 1], [below, Q]]."""
    q = len(jacobsthal)
    matrix = torch.zeros(q + 1, q + 1, dtype=torch.int8)
    matrix[0, 1:] = 1
    matrix[1:, 0] = below
    matrix[1:, 1:] = jacobsthal
    return matrix


def _jacobsthal(prime: int, degree: int) -> Tensor:
    """Q[a, b] = chi(a - b) over GF(prime^degree): 1 for non-zero squares, -1 for non-squares, 0 for zero."""
    # An element is the list of its coefficients, highest degree first; its number reads them as digits in base `prime`.
    q = prime**degree
    elements = [_digits(number, prime, degree) for number in range(q)]
    modulus = _irreducible(prime, degree)
    character = torch.full((q,), -1, dtype=torch.int8)
    for element in elements:
        square = _remainder(np.polymul(element, element), modulus, prime)
        character[int(np.polyval(square, prime))] = 1
    character[0] = 0
    table = torch.tensor(elements)  # [q, degree]
    difference = (table[:, None] - table[None]) % prime  # [q, q, degree]
    return character[difference @ torch.tensor([prime**i for i in reversed(range(degree))])]


def _digits(number: int, prime: int, count: int) -> list[int]:
    return [number // prime**i % prime for i in reversed(range(count))]


def _remainder(a: Sequence[int], monic: Sequence[int], prime: int) -> np.ndarray:
    """Return the polynomial `a` modulo a monic one, over GF(prime)."""
    return np.polydiv(a, monic)[1] % prime


def _irreducible(prime: int, degree: int) -> list[int]:
    """Return a monic irreducible polynomial of this degree over GF(prime): the first that no smaller monic one divides."""
    smaller = [[1, *_digits(number, prime, d)] for d in range(1, degree // 2 + 1) for number in range(prime**d)]
    candidates = ([1, *_digits(number, prime, degree)] for number in range(prime**degree))
    return next(c for c in candidates if all(_remainder(c, divisor, prime).any() for divisor in smaller))


def _prime_power(q: int) -> tuple[int, int] | None:
    """Return (p, k) with q = p^k and p prime, or None."""
    if q < 2:
        return None
    prime = next((p for p in range(2, math.isqrt(q) + 1) if q % p == 0), q)
    degree = 0
    while q % prime == 0:
        q //= prime
        degree += 1
    return (prime, degree) if q == 1 else None

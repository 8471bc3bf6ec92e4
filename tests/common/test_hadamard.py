"""Hadamard matrices against their definition; the fast transform against the dense product."""

import pytest
import torch
from scipy.linalg import hadamard

from common.hadamard import hadamard_matrix, hadamard_transform
from common.utils.errors import UserError

CORES = [1, 12, 20, 28, 36, 40, 44, 52, 60]
ORDERS = sorted({core * 2**k for core in CORES for k in range(6)})
REFUSED = [92, 116, 156, 172, 184, 188, 232, 236, 260, 268, 292, 324, 356, 372, 376]
MODEL_WIDTHS = [2048, 2304, 3584, 4096, 5120, 8192]  # of the papers' models


@pytest.mark.parametrize("order", [2**k for k in range(11)])
def test_powers_of_two_are_sylvester(order):
    torch.testing.assert_close(hadamard_matrix(order), torch.tensor(hadamard(order, float)) / order**0.5)


def test_other_orders_are_kronecker_products():
    product = torch.kron(hadamard_matrix(28), hadamard_matrix(8))
    torch.testing.assert_close(hadamard_matrix(28 * 8), product, atol=1e-14, rtol=0)


@pytest.mark.parametrize("order", [*ORDERS[:30], 1024, 2304])
@pytest.mark.parametrize("transpose", [False, True])
def test_transform_is_the_dense_product(order, transpose):
    x = torch.randn(2, 3, order, dtype=torch.float64, generator=torch.Generator().manual_seed(order))
    matrix = hadamard_matrix(order)
    expected = x @ (matrix.T if transpose else matrix)
    torch.testing.assert_close(hadamard_transform(x, transpose=transpose), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("order", MODEL_WIDTHS)
def test_widths_of_the_papers_models(order):
    """Row i of the transform of the identity is row i of H; the inverse brings any x back."""
    x = torch.zeros(2, order)
    x[0, 1], x[1, order - 1] = 1, 1
    transformed = hadamard_transform(x)
    torch.testing.assert_close(transformed.abs(), torch.full_like(x, order**-0.5))
    assert abs(float(transformed[0] @ transformed[1])) < 1e-5
    torch.testing.assert_close(hadamard_transform(transformed, transpose=True), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept_and_rounded_once(dtype):
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = (x.double() @ hadamard_matrix(96)).to(dtype)
    result = hadamard_transform(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result, expected)


def test_differentiable():
    x = torch.randn(3, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(hadamard_transform, (x,))


def test_usable_for_training_after_inference_mode():
    with torch.inference_mode():
        hadamard_transform(torch.randn(2, 1536))
    x = torch.randn(2, 1536, requires_grad=True)
    hadamard_transform(x).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_autocast_does_not_lower_the_precision():
    x = torch.randn(4, 256)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = hadamard_transform(x)
    assert torch.equal(inside, hadamard_transform(x))


def test_strided_and_empty_inputs():
    x = torch.randn(12, 7)
    torch.testing.assert_close(hadamard_transform(x.T), x.T @ hadamard_matrix(12).float())
    assert hadamard_transform(torch.empty(0, 12)).shape == (0, 12)


@pytest.mark.parametrize("order", [0, -4, 3, 6, 18, 92, 1904])
def test_orders_that_cannot_be_built_are_named(order):
    for error in (ValueError, UserError):
        with pytest.raises(error, match=str(order)):
            hadamard_matrix(order)
    if order in (3, 6):
        with pytest.raises(ValueError, match=f"order {order}"):
            hadamard_transform(torch.zeros(2, order))


def test_every_order_is_built_right_or_refused():
    refused = []
    for order in range(4, 400, 4):
        try:
            matrix = hadamard_matrix(order)
        except UserError:
            refused.append(order)
            continue
        error = (matrix @ matrix.T - torch.eye(order, dtype=torch.float64)).abs().max()
        assert error < 1e-12 and (matrix.abs() - order**-0.5).abs().max() < 1e-12, order
    # the orders below 400 that need other constructions (Williamson, Goethals-Seidel, ...)
    assert refused == REFUSED

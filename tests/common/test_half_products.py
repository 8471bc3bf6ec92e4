"""Half-precision products through float32: rounded once from the exact sum, forward and backward, in any thread."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F

from common import checkpoint, half_products
from common.decoder import Decoder

HALVES = (torch.bfloat16, torch.float16)
# rows, inner, columns: by which factor is the larger, rows that stay with torch, one block and several
SHAPES = [
    (8, 16, 12),
    (64, 16, 12),
    (half_products.MIN_ROWS - 1, 16, 12),
    (5, 64, 40),
    (70, 9, 50),
    (6, 0, 3),
    (0, 4, 3),
]


@pytest.fixture
def no_instructions(monkeypatch):
    """A CPU that multiplies no half-precision numbers; products are torch's own again afterwards."""
    monkeypatch.setattr(half_products, "_SUPPORTED", dict.fromkeys(HALVES, lambda: False))
    monkeypatch.setattr(half_products, "_widened", set())


@pytest.fixture(params=[half_products.BLOCK, 100], ids=["whole", "blocks"])
def widened(no_instructions, monkeypatch, request):
    monkeypatch.setattr(half_products, "BLOCK", request.param)
    for dtype in HALVES:
        half_products.speed_up(dtype, "cpu")


def drawn(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rounded_once(found, exact):
    """Within the rounding of one number to its type, and what float32 sums leave."""
    assert found.shape == exact.shape
    unit = torch.finfo(found.dtype).eps / 2
    assert ((found.double() - exact).abs() <= unit * exact.abs() + 1e-4).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_the_exact_ones_rounded_once(widened, dtype, shape):
    rows, inner, columns = shape
    a, b, bias = (drawn(*size, dtype=dtype) for size in ((rows, inner), (columns, inner), (columns,)))
    exact = a.double() @ b.double().T
    assert_rounded_once(a @ b.T, exact)
    assert_rounded_once(F.linear(a, b, bias), exact + bias.double())
    added = drawn(rows, columns, dtype=dtype, seed=1)
    assert_rounded_once(torch.addmm(added, a, b.T, beta=0.5, alpha=2), 0.5 * added.double() + 2 * exact)
    stack = torch.stack([a, -a])
    assert_rounded_once(stack @ torch.stack([b.T, b.T]), torch.stack([exact, -exact]))


@pytest.mark.parametrize("dtype", HALVES)
def test_nothing_is_added_where_its_factor_is_zero(widened, dtype):
    a, b = drawn(8, 4, dtype=dtype), drawn(4, 6, dtype=dtype)
    assert torch.equal(torch.addmm(torch.full((8, 6), torch.nan, dtype=dtype), a, b, beta=0), a @ b)


def test_gradients_are_those_of_float32_rounded(widened):
    x, weight = drawn(2, 9, 16, dtype=torch.bfloat16), drawn(12, 16, dtype=torch.bfloat16)
    given = drawn(2, 9, 12, dtype=torch.bfloat16, seed=1)

    def gradients(dtype):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in (x, weight)]
        F.linear(*leaves).backward(given.to(dtype))
        return [leaf.grad for leaf in leaves]

    for found, exact in zip(gradients(torch.bfloat16), gradients(torch.float64), strict=True):
        assert found.dtype == torch.bfloat16
        assert_rounded_once(found, exact)


def test_other_types_keep_torchs_own_products(widened):
    for dtype in (torch.float32, torch.float64):
        a, b = drawn(40, 30, dtype=dtype), drawn(30, 20, dtype=dtype)
        torch.testing.assert_close(a @ b, torch.from_numpy(a.numpy() @ b.numpy()))


def test_threads_widen_too(widened):
    a, b = drawn(40, 30, dtype=torch.bfloat16), drawn(30, 20, dtype=torch.bfloat16)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda _: a @ b, range(8)):
            assert_rounded_once(found, a.double() @ b.double())


@pytest.mark.parametrize("dtype", HALVES)
def test_a_loaded_model_is_sped_up_silently_and_says_the_same(no_instructions, make_tiny, tmp_path, dtype):
    make_tiny("qwen2").to(dtype).save_pretrained(tmp_path)
    ids = torch.arange(24).view(1, 24) + 3
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error")
        model, _ = checkpoint.load(tmp_path)
        assert half_products._widened == {dtype}
        found = model(ids).logits
        half_products._widened.clear()
        own, exact = model(ids).logits, model.float()(ids).logits
    scale = exact.abs().max()
    assert (found - exact).abs().max() / scale < 2 * (own - exact).abs().max() / scale + 1e-3


def test_nothing_is_widened_without_need(monkeypatch, make_tiny, tmp_path):
    monkeypatch.setattr(half_products, "_widened", set())
    monkeypatch.setattr(half_products, "_SUPPORTED", {torch.bfloat16: lambda: True, torch.float16: lambda: False})
    for dtype in (torch.bfloat16, torch.float32):
        make_tiny("llama").to(dtype).save_pretrained(tmp_path)
        checkpoint.load(tmp_path)
    half_products.speed_up(torch.float16, "meta")
    assert half_products._widened == set()


def test_a_streamed_model_is_sped_up(no_instructions, make_tiny, tmp_path):
    make_tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    model, _ = checkpoint.load(tmp_path, stream=2**20)
    assert half_products._widened == {torch.bfloat16}
    hidden = Decoder(model).embed_tokens(torch.arange(12).view(1, 12) + 3)
    assert hidden.dtype == torch.bfloat16

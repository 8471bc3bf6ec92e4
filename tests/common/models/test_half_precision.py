"""Half-precision products through float32: rounded once from the exact sum, forward and backward, in any thread."""

import copy
import gc
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F

from common.models import checkpoint, half_precision
from common.models.decoder import Decoder

HALVES = (torch.bfloat16, torch.float16)
# rows, inner, columns: by which factor is the larger, rows that stay with torch, one block and several
SHAPES = [
    (8, 16, 12),
    (64, 16, 12),
    (half_precision.MIN_ROWS - 1, 16, 12),
    (5, 64, 40),
    (70, 9, 50),
    (6, 0, 3),
    (0, 4, 3),
]


@pytest.fixture
def no_instructions(monkeypatch):
    """A CPU that multiplies no half-precision numbers; products are torch's own again afterwards."""
    monkeypatch.setattr(half_precision, "has_instructions", lambda dtype: dtype not in HALVES)
    monkeypatch.setattr(half_precision, "_widened", Counter())


@pytest.fixture(params=[half_precision.BLOCK, 100], ids=["whole", "blocks"])
def widened(no_instructions, monkeypatch, request):
    """Half-precision products are widened, so many entries at a time; the types that torch's own kernels were given."""
    monkeypatch.setattr(half_precision, "BLOCK", request.param)
    held = [half_precision.Widening(dtype) for dtype in HALVES]
    given = []

    def watched(own):
        def product(*operands, **options):
            if operands[0].dtype != torch.float64:  # what is exact here
                given.append({operand.dtype for operand in operands})
            return own(*operands, **options)

        return product

    monkeypatch.setattr(half_precision, "_own", {name: watched(own) for name, own in half_precision._own.items()})
    yield given
    del held


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
    wide = rows >= half_precision.MIN_ROWS
    assert all(types == {torch.float32 if wide else dtype} for types in widened) and (widened or not rows * columns)


@pytest.mark.parametrize("dtype", HALVES)
def test_mixed_types_are_refused_as_torch_does(widened, dtype):
    a, b = drawn(8, 4, dtype=dtype), drawn(4, 6, dtype=torch.float32)
    for product in (
        lambda: a @ b,
        lambda: torch.stack([a, a]) @ torch.stack([b, b]),
        lambda: torch.addmm(drawn(6, dtype=torch.float32), a, b.to(dtype)),
    ):
        with pytest.raises(RuntimeError):
            product()


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
    assert len(widened) >= 8 and all(types == {torch.float32} for types in widened)


def test_other_threads_run_while_one_multiplies(no_instructions, monkeypatch):
    """Threads are never switched by the clock here, so another one runs inside a product only if that leaves the lock."""
    _held = half_precision.Widening(torch.bfloat16)
    own, inside, seen = half_precision._own["mm"], [], []

    def watched(*operands, **options):
        inside.append(True)
        try:
            return own(*operands, **options)
        finally:
            inside.pop()

    monkeypatch.setitem(half_precision._own, "mm", watched)
    a = drawn(500, 500, dtype=torch.bfloat16)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    try:
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(lambda: [a @ a for _ in range(50)])
            while not work.done():
                seen += inside
                time.sleep(0)
    finally:
        sys.setswitchinterval(usual)
    assert seen and work.result()


@pytest.mark.parametrize("dtype", HALVES)
def test_a_loaded_model_is_sped_up_and_says_the_same(no_instructions, make_tiny, tmp_path, dtype, monkeypatch):
    make_tiny("qwen2").to(dtype).save_pretrained(tmp_path)
    ids = torch.arange(24).view(1, 24) + 3
    with torch.inference_mode():
        model, _ = checkpoint.load(tmp_path)
        assert set(half_precision._widened) == {dtype}
        found = model(ids).logits
        monkeypatch.setattr(half_precision, "_widened", Counter())
        own, exact = model(ids).logits, model.float()(ids).logits
    scale = exact.abs().max()
    assert (found - exact).abs().max() / scale < 2 * (own - exact).abs().max() / scale + 1e-3


def test_torch_has_its_own_products_back_with_the_last_model(no_instructions, make_tiny, tmp_path, monkeypatch):
    make_tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    a, own, through_here = drawn(8, 8, dtype=torch.float32), half_precision._own["mm"], []

    def watched(*operands, **options):
        through_here.append(True)
        return own(*operands, **options)

    monkeypatch.setitem(half_precision._own, "mm", watched)
    model, _ = checkpoint.load(tmp_path)
    other = copy.deepcopy(model)
    del model
    gc.collect()
    assert a @ a is not None and through_here  # the copy is left
    through_here.clear()
    del other
    gc.collect()
    torch.testing.assert_close(a @ a, torch.from_numpy(a.numpy() @ a.numpy()))
    assert not through_here and not half_precision._widened


def test_torchs_kernels_are_replaced_without_a_warning():
    """In a process of its own: it warns once."""
    code = (
        "from common.models import half_precision; half_precision._install(); "
        "import torch; torch.ones(4, 4) @ torch.ones(4, 4)"
    )
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_torch_without_onednn_keeps_its_own_products(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(half_precision, "_SUPPORTED", dict.fromkeys(HALVES, "not_there"))
    assert all(map(half_precision.has_instructions, HALVES))


def test_nothing_is_widened_without_need(monkeypatch, make_tiny, tmp_path):
    monkeypatch.setattr(half_precision, "_widened", Counter())
    monkeypatch.setattr(half_precision, "has_instructions", lambda dtype: dtype != torch.float16)
    for dtype in (torch.bfloat16, torch.float32):
        make_tiny("llama").to(dtype).save_pretrained(tmp_path)
        checkpoint.load(tmp_path)
    half_precision.speed_up(torch.nn.Module(), torch.float16, "meta")
    assert not half_precision._widened


def test_a_streamed_model_is_sped_up(no_instructions, make_tiny, tmp_path):
    make_tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    model, _ = checkpoint.load(tmp_path, stream=2**20)
    assert set(half_precision._widened) == {torch.bfloat16}
    hidden = Decoder(model).embed_tokens(torch.arange(12).view(1, 12) + 3)
    assert hidden.dtype == torch.bfloat16

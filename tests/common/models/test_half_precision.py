"""Check half-precision layers that multiply through float32: exact sums rounded once, forward and backward, of one model."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from common.models import checkpoint, half_precision
from common.models.decoder import Decoder
from papers.reassessing import gradients

HALVES = (torch.bfloat16, torch.float16)
# rows, inner, columns: by which factor is the larger, rows that stay with torch, one block and several
SHAPES = [
    (8, 16, 12),
    (64, 16, 12),
    (half_precision.SLOW_ROWS - 1, 16, 12),
    (5, 64, 40),
    (70, 9, 50),
    (70, 64, 70),
    (6, 0, 3),
    (0, 4, 3),
]


@pytest.fixture
def no_instructions(monkeypatch):
    """A CPU that has no instructions for half-precision numbers."""
    monkeypatch.setattr(half_precision, "has_instructions", lambda dtype: dtype not in HALVES)


@pytest.fixture(params=[half_precision.BLOCK, 100], ids=["whole", "blocks"])
def blocks(monkeypatch, request):
    monkeypatch.setattr(half_precision, "BLOCK", request.param)


@pytest.fixture
def multiplied(monkeypatch):
    """The types that torch's product of float32 factors was given."""
    types, own = [], torch.addmm

    def watched(*operands, **options):
        types.append({operand.dtype for operand in operands})
        return own(*operands, **options)

    monkeypatch.setattr(torch, "addmm", watched)
    return types


def widened(inner, columns, dtype, *, bias=True, rows=half_precision.SLOW_ROWS):
    """A linear layer of drawn numbers that is widened from so many rows on."""
    linear = torch.nn.Linear(inner, columns, bias=bias, dtype=dtype)
    linear.weight.data = drawn(columns, inner, dtype=dtype, seed=1)
    if bias:
        linear.bias.data = drawn(columns, dtype=dtype, seed=2)
    linear.__class__, linear.least_rows = half_precision.WidenedLinear, rows
    return linear


def drawn(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rounded_once(rounded, exact):
    """Within the rounding of one number to its type, and what float32 sums leave."""
    assert rounded.shape == exact.shape
    unit = torch.finfo(rounded.dtype).eps / 2
    assert ((rounded.double() - exact).abs() <= unit * exact.abs() + 1e-4).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_the_exact_one_rounded_once(blocks, multiplied, dtype, bias, shape):
    rows, inner, columns = shape
    linear, x = widened(inner, columns, dtype, bias=bias), drawn(rows, inner, dtype=dtype)
    product = linear(x)
    exact = x.double() @ linear.weight.double().T
    assert product.dtype == dtype
    assert_rounded_once(product, exact + linear.bias.double() if bias else exact)
    assert all(types == {torch.float32} for types in multiplied)
    assert bool(multiplied) == (rows >= half_precision.SLOW_ROWS)


@pytest.mark.parametrize("other", [torch.float32, torch.float64])
def test_mixed_types_are_refused_as_torch_does(other):
    with pytest.raises(RuntimeError):
        widened(16, 12, torch.bfloat16)(drawn(8, 16, dtype=other))


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",)])
def test_gradients_are_those_of_float64_rounded(blocks, frozen):
    linear = widened(16, 12, torch.bfloat16)
    for name in frozen:
        getattr(linear, name).requires_grad_(False)
    exact = torch.nn.Linear(16, 12, dtype=torch.float64)
    exact.load_state_dict(linear.state_dict())
    x, upstream = drawn(2, 9, 16, dtype=torch.bfloat16), drawn(2, 9, 12, dtype=torch.bfloat16, seed=3)
    gradients = []
    for module in (linear, exact):
        leaf = x.to(module.weight.dtype, copy=True).requires_grad_()
        module(leaf).backward(upstream.to(leaf.dtype))
        gradients.append({"x": leaf.grad} | {name: value.grad for name, value in module.named_parameters()})
    for name, gradient in gradients[0].items():
        if name in frozen:
            assert gradient is None
        else:
            assert gradient.dtype == torch.bfloat16
            assert_rounded_once(gradient, gradients[1][name])


def test_forward_mode_follows_every_factor():
    linear = widened(16, 12, torch.bfloat16)
    points = (drawn(2, 9, 16, dtype=torch.bfloat16), linear.weight.data, linear.bias.data)
    changes = [drawn(*point.shape, dtype=point.dtype, seed=5) for point in points]
    _, change = torch.func.jvp(half_precision._Widened.apply, points, tuple(changes))
    (x, weight, _), (dx, dweight, dbias) = (list(map(torch.Tensor.double, side)) for side in (points, changes))
    exact = dx @ weight.T + x @ dweight.T + dbias
    assert (change.double() - exact).abs().max() < 0.02 * exact.abs().max()  # three terms, each rounded


def test_float32_keeps_torchs_product(multiplied):
    linear = widened(30, 20, torch.bfloat16).float()
    x = drawn(40, 30, dtype=torch.float32)
    torch.testing.assert_close(linear(x), torch.nn.functional.linear(x, linear.weight, linear.bias), rtol=0, atol=0)
    assert not multiplied


def test_threads_widen_too(multiplied):
    linear, x = widened(30, 20, torch.bfloat16), drawn(40, 30, dtype=torch.bfloat16)
    exact = x.double() @ linear.weight.double().T + linear.bias.double()
    with ThreadPoolExecutor(2) as pool:
        for product in pool.map(lambda _: linear(x), range(8)):
            assert_rounded_once(product, exact)
    assert len(multiplied) >= 8


@pytest.mark.parametrize("dtype", HALVES)
def test_a_loaded_model_is_sped_up_and_says_the_same(no_instructions, make_tiny, tmp_path, dtype):
    dense = make_tiny("qwen2").to(dtype)
    dense.save_pretrained(tmp_path)
    ids = torch.arange(24).view(1, 24) + 3
    with torch.inference_mode():
        model, _ = checkpoint.load(tmp_path)
        assert not any(type(module) is torch.nn.Linear for module in model.modules())
        logits, own = model(ids).logits, dense(ids).logits
        exact = dense.float()(ids).logits
    scale = exact.abs().max()
    assert (logits - exact).abs().max() / scale < 2 * (own - exact).abs().max() / scale + 1e-3


def test_nothing_outside_the_model_changes(no_instructions, make_tiny, tmp_path):
    other = make_tiny("llama").to(torch.bfloat16)
    other.save_pretrained(tmp_path / "before")
    model, _ = checkpoint.load(tmp_path / "before")
    model.save_pretrained(tmp_path / "after")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("before", "after"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert list(model.state_dict()) == list(other.state_dict())
    assert not any(isinstance(module, half_precision.WidenedLinear) for module in other.modules())
    copied = copy.deepcopy(model)
    names = [name for name, module in copied.named_modules() if isinstance(module, half_precision.WidenedLinear)]
    assert names == [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]


def test_lora_trains_beside_a_widened_layer(no_instructions, make_tiny, tmp_path):
    make_tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    model, _ = checkpoint.load(tmp_path)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    adapted(torch.arange(24).view(1, 24) + 3).logits.float().square().mean().backward()
    adapters = [value for name, value in adapted.named_parameters() if "lora_B" in name]
    assert adapters and all(value.grad.any() for value in adapters)
    merged = adapted.merge_and_unload()
    assert isinstance(merged.model.layers[0].self_attn.q_proj, half_precision.WidenedLinear)


def test_a_torch_without_onednn_keeps_its_own_products(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(half_precision, "_SUPPORTED", dict.fromkeys(HALVES, "not_there"))
    assert all(map(half_precision.has_instructions, HALVES))


@pytest.mark.parametrize(
    ("has", "avx512", "amx", "amd", "rows"),
    [
        (False, False, False, False, half_precision.SLOW_ROWS),
        (False, False, False, True, half_precision.SLOW_ROWS),
        (True, True, False, False, half_precision.AVX512_ROWS),
        (True, True, False, True, None),
        (True, True, True, False, None),
        (True, False, False, False, None),  # another architecture
    ],
)
def test_bfloat16_is_widened_where_that_is_faster(monkeypatch, has, avx512, amx, amd, rows):
    monkeypatch.setattr(half_precision, "has_instructions", lambda dtype: has)
    monkeypatch.setattr(half_precision, "made_by_amd", lambda: amd)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert half_precision.least_rows(torch.bfloat16) == rows
    assert half_precision.least_rows(torch.float16) == (None if has else half_precision.SLOW_ROWS)


@pytest.mark.parametrize(("dtype", "device"), [(torch.float32, "cpu"), (torch.float16, "cuda")])
def test_nothing_is_widened_without_need(monkeypatch, dtype, device):
    monkeypatch.setattr(half_precision, "has_instructions", lambda kind: kind not in HALVES)
    linear = torch.nn.Linear(4, 4, dtype=dtype)
    half_precision.speed_up(linear, dtype, device)
    assert type(linear) is torch.nn.Linear


def test_a_streamed_model_is_sped_up(no_instructions, make_tiny, tmp_path, multiplied):
    make_tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    ids, states = torch.arange(12).view(1, 12) + 3, []
    for options in ({}, {"stream": 2**20}):
        decoder = Decoder(checkpoint.load(tmp_path, **options)[0])
        multiplied.clear()
        with torch.inference_mode():
            states.append(decoder.run(decoder.embed_tokens(ids)))
        assert multiplied
    assert torch.equal(*states)


def test_a_models_jacobians_can_be_taken(no_instructions, make_tiny):
    """Forward mode and backward mode over a whole model, as the theory's norms take them."""
    model = make_tiny("llama").to(torch.bfloat16)
    wide = copy.deepcopy(model).float()
    half_precision.speed_up(model, torch.bfloat16, "cpu")
    ids = torch.arange(3, 19).view(1, 16)
    norms = [
        gradients.layer_norms(gradients.of_model(Decoder(variant), ids), iterations=3) for variant in (model, wide)
    ]
    assert len(norms[0]) == len(norms[1]) and norms[0] == pytest.approx(norms[1], rel=0.1)

"""Multiply a half-precision model's matrices through float32 on CPUs that are slow without it.

Most CPUs cannot multiply bfloat16 or float16 numbers (AVX2 alone; float16 also with AVX-512). Torch then uses a loop that
is five to seven times slower than its float32 product. Intel's CPUs with AVX-512's bfloat16 instructions, but without AMX,
multiply bfloat16 1.2 to 2.9 times slower than float32 once there are 64 rows; AMD's multiply it faster
(benchmarks/README.md, machines B and D; A and E). `speed_up` gives the `torch.nn.Linear` modules of such a model the class
`WidenedLinear`: it widens both factors, multiplies in float32 and rounds the sum once. That is the definition of a half-
precision product, since products of two such numbers are exact in float32. Results differ from torch's by the order of
summation alone.

Nothing outside the model changes, and its state dict, copies and checkpoints stay as they are. Other products stay torch's:
attention, the grouped products of experts, `Conv1D`, and `Linear` modules that are added later.
"""

import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

# Questions to oneDNN; a torch built without it cannot answer them.
_SUPPORTED = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
# Entries of the larger factor that are widened at a time: a head of 49,152 tokens would take 113 MB of fresh pages at once.
BLOCK = 2**20
NARROW = 64  # float32 products of fewer rows or columns are slow: then parts of the inner dimension are added up
# Of fewer rows, widening takes longer than torch's product: without instructions for the type, and with AVX-512's.
SLOW_ROWS, AVX512_ROWS = 4, 64


def has_instructions(dtype: torch.dtype) -> bool:
    """Return whether this CPU has instructions for products of matrices of `dtype`; True if torch cannot tell (no oneDNN)."""
    if dtype not in _SUPPORTED or not torch.backends.mkldnn.is_available():
        return True
    return getattr(torch.ops.mkldnn, _SUPPORTED[dtype])()


def least_rows(dtype: torch.dtype) -> int | None:
    """Return the number of rows from which a product through float32 is faster on this CPU; None if it never is."""
    if not has_instructions(dtype):
        return SLOW_ROWS
    avx512 = dtype == torch.bfloat16 and torch.cpu._is_avx512_bf16_supported()
    return AVX512_ROWS if avx512 and not torch.cpu._is_amx_tile_supported() and not made_by_amd() else None


@cache
def made_by_amd() -> bool:
    """Return whether the CPU calls itself AMD's; False where the system does not say."""
    listed = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (listed.read_text() if listed.is_file() else platform.processor())


def speed_up(model: nn.Module, dtype: torch.dtype, device: torch.device | str) -> None:
    """Let the `Linear` modules of a model of `dtype` on the CPU multiply through float32, if that is faster here."""
    rows = least_rows(dtype)
    if torch.device(device).type != "cpu" or rows is None:
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__, module.least_rows = WidenedLinear, rows


class WidenedLinear(nn.Linear):
    """A `Linear` that computes in float32 for half-precision inputs of at least `least_rows` rows on the CPU."""

    least_rows: int

    def forward(self, input: Tensor) -> Tensor:
        """Return `input` [..., in] times the transposed weight, plus the bias, in their type [..., out]."""
        half = input.dtype == self.weight.dtype and input.dtype in _SUPPORTED and input.device.type == "cpu"
        if not half or input.numel() < self.least_rows * self.in_features:
            return super().forward(input)
        return _Widened.apply(input, self.weight, self.bias)


class _Widened(torch.autograd.Function):
    """`torch.nn.functional.linear` and its derivatives, each a sum in float32 that is rounded once."""

    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return multiply(input.flatten(0, -2), weight.T, bias).view(*input.shape[:-1], len(weight))

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (input, weight), rows = ctx.saved_tensors, grad.flatten(0, -2)
        of_input, of_weight, of_bias = ctx.needs_input_grad
        return (
            multiply(rows, weight).view(input.shape) if of_input else None,
            multiply(rows.T, input.flatten(0, -2)) if of_weight else None,
            rows.float().sum(0).to(grad.dtype) if of_bias else None,
        )

    @staticmethod
    def jvp(ctx, input_change: Tensor | None, weight_change: Tensor | None, bias_change: Tensor | None) -> Tensor:
        input, weight = ctx.saved_tensors
        pairs = [(input_change, weight)] * (input_change is not None) + [(input, weight_change)] * (
            weight_change is not None
        )
        parts = [_Widened.forward(*pair, None) for pair in pairs]
        return sum(parts) if bias_change is None else sum(parts) + bias_change.expand(*input.shape[:-1], len(weight))


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a [rows, inner] times b [inner, columns], plus bias [columns], summed in float32 and rounded once."""
    step = max(1, BLOCK // max(1, a.shape[1]))
    added = torch.zeros(1, b.shape[1]) if bias is None else bias.float()[None]
    if step < min(NARROW, len(a), b.shape[1]):
        step, total = max(1, BLOCK // max(len(a), b.shape[1])), added
        for left, right in zip(a.split(step, dim=1), b.split(step), strict=True):
            total = torch.addmm(total, left.float(), right.float())
        return total.to(a.dtype)
    if a.numel() > b.numel():
        wide = b.float()
        return torch.cat([torch.addmm(added, rows.float(), wide).to(a.dtype) for rows in a.split(step)])
    wide = a.float()
    columns = zip(b.split(step, dim=1), added.split(step, dim=1), strict=True)
    return torch.cat([torch.addmm(offset, wide, right.float()).to(a.dtype) for right, offset in columns], 1)

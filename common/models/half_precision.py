"""Products of half-precision matrices on CPUs without instructions for them, by way of float32.

Most CPUs multiply neither bfloat16 nor float16 by themselves (AVX2 alone; float16 also with AVX-512), and torch then falls
back on a loop that is five to seven times slower than its float32 products. Here both factors are widened, multiplied in
float32 and the sum is rounded once. That is what a half-precision product is by definition (products of two bfloat16 or
float16 numbers are exact in float32, sums are kept in it), so results differ from those of a CPU with such instructions by
the order of summation alone, as those of two such CPUs do.

`speed_up` does this for a model, as long as the model or a copy of it lives. Torch's own kernels of `mm`, `addmm` and `bmm`
on the CPU are then called through it, from modules, autograd's backward passes and other threads alike. Other types pass
through some microseconds of Python, and whatever is no product of these (fused attention, results written to `out=`) stays
torch's own. With the last such model torch has its own kernels back. Threads multiply beside each other: those kernels are
reached by their `out=` forms, which leave Python's lock, where a kernel called by itself (`torch.library.get_kernel`) keeps
it and threads wait for one another. It is called where a model is loaded (`common.models.checkpoint`) and does nothing on a
CPU that has the instructions, on a GPU and in float32.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from threading import RLock

import torch
from torch import Tensor, nn

# What asks oneDNN; a torch built without it does not have these.
_SUPPORTED = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
# Entries of the larger factor that are widened at a time: a head of 49,152 tokens would take 113 MB of fresh pages at once.
BLOCK = 2**20
# Of fewer rows (a token at a time) widening the weights takes longer than the slow product.
MIN_ROWS = 4

_widened: Counter[torch.dtype] = Counter()  # how many `Widening`s of a type there are
_own = {"mm": torch.ops.aten.mm.out, "addmm": torch.ops.aten.addmm.out, "bmm": torch.ops.aten.bmm.out}
_library: torch.library.Library | None = None
_installing = RLock()  # a collection inside may release another model's


def has_instructions(dtype: torch.dtype) -> bool:
    """Whether torch multiplies matrices of `dtype` fast on this CPU; True where it cannot tell (no oneDNN)."""
    if dtype not in _SUPPORTED or not torch.backends.mkldnn.is_available():
        return True
    return getattr(torch.ops.mkldnn, _SUPPORTED[dtype])()


def speed_up(model: nn.Module, dtype: torch.dtype, device: torch.device | str) -> None:
    """Multiply matrices of `dtype` on the CPU through float32 while the model lives, if that is faster here."""
    if torch.device(device).type == "cpu" and not has_instructions(dtype):
        model.widening = Widening(dtype)


class Widening:
    """Matrices of a type are multiplied through float32 as long as this is held; a model's copies hold the same one."""

    def __init__(self, dtype: torch.dtype) -> None:
        with _installing:
            _install()
            _widened[dtype] += 1
        weakref.finalize(self, _release, dtype)

    def __deepcopy__(self, memo: dict) -> Widening:
        return self


def _release(dtype: torch.dtype) -> None:
    global _library
    with _installing:
        _widened[dtype] -= 1
        if _widened[dtype] <= 0:
            del _widened[dtype]
        if not _widened and _library is not None:
            _library._destroy()
            _library = None


def _install() -> None:
    global _library
    with _installing:
        if _library is not None:
            return
        replaced = {"mm": _mm, "addmm": _addmm, "bmm": _bmm}
        _library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid")
            for name, kernel in replaced.items():
                _library.impl(name, kernel, "CPU")


def _slow(*operands: Tensor) -> bool:
    """Whether all are of one type that is to be widened; torch refuses mixed ones."""
    return len(found := {operand.dtype for operand in operands}) == 1 and found <= _widened.keys()


def _product(name: str, *operands: Tensor, **scales) -> Tensor:
    """What torch's own kernel of that name gives."""
    return _own[name](*operands, **scales, out=operands[-1].new_empty(0))


def _mm(a: Tensor, b: Tensor) -> Tensor:
    if not _slow(a, b) or len(a) < MIN_ROWS:
        return _product("mm", a, b)
    product = a.new_empty(len(a), b.shape[1])
    for part, left, right in _blocks(product, a, b):
        part.copy_(_product("mm", left, right))
    return product


def _addmm(added: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1) -> Tensor:
    if not _slow(a, b, added) or len(a) < MIN_ROWS:
        return _product("addmm", added, a, b, beta=beta, alpha=alpha)
    total = added.expand(len(a), b.shape[1]).clone(memory_format=torch.contiguous_format)
    for part, left, right in _blocks(total, a, b):
        part.copy_(_product("addmm", part.float(), left, right, beta=beta, alpha=alpha))
    return total


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    if not _slow(a, b) or a.shape[1] < MIN_ROWS:
        return _product("bmm", a, b)
    return _product("bmm", a.float(), b.float()).to(a.dtype)


def _blocks(product: Tensor, a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(where it goes [rows, columns], left and right factor in float32), the larger factor `BLOCK` entries at a time."""
    if a.numel() <= BLOCK and b.numel() <= BLOCK:  # cutting a small matrix takes longer than multiplying it
        yield product, a.float(), b.float()
    elif a.numel() > b.numel():
        wide = b.float()
        step = max(1, BLOCK // max(1, a.shape[1]))
        for part, left in zip(product.split(step), a.split(step), strict=True):
            yield part, left.float(), wide
    else:
        wide = a.float()
        step = max(1, BLOCK // max(1, len(b)))
        for part, right in zip(product.split(step, dim=1), b.split(step, dim=1), strict=True):
            yield part, wide, right.float()

"""Unpacking and adding as a Triton kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def unpack_bits(p_packed, p_dense, n, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """dense[i] = bit i % 8 of packed[i // 8], or the sum of both."""
    # Rows of eight elements: a row is one byte. 64-bit offsets: tensors may exceed 2^31 elements.
    o_row = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    o_n = o_row[:, None] * 8 + tl.arange(0, 8)[None, :]
    b_bits = tl.load(p_packed + o_row, mask=o_row * 8 < n).to(tl.int32)
    b_fired = (b_bits[:, None] >> tl.arange(0, 8)[None, :]) & 1
    b_dense = b_fired.to(tl.float32)
    if ADDS:
        b_before = tl.load(p_dense + o_n, mask=o_n < n)
        b_dense = b_before.to(tl.float64 if b_before.dtype == tl.float64 else tl.float32) + b_dense
    tl.store(p_dense + o_n, b_dense.to(p_dense.dtype.element_ty), mask=o_n < n)


def unpack(packed: Tensor, dense: Tensor) -> None:
    """dense[i] = bit i % 8 of packed[i // 8], in memory order."""
    _launch(packed, dense, adds=False)


def add(packed: Tensor, dense: Tensor) -> None:
    """dense[i] += bit i % 8 of packed[i // 8], in memory order."""
    _launch(packed, dense, adds=True)


def _launch(packed: Tensor, dense: Tensor, adds: bool) -> None:
    n = dense.numel()
    unpack_bits[(triton.cdiv(n, BLOCK),)](packed, dense, n, ADDS=adds, BLOCK=BLOCK, num_warps=4)

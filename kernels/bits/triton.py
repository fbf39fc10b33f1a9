"""Unpacking as a Triton kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def unpack_bits(p_packed, p_dense, n, BLOCK: tl.constexpr):
    """dense[i] = bit i % 8 of packed[i // 8]."""
    # Rows of eight elements: a row is one byte. 64-bit offsets: tensors may exceed 2^31 elements.
    o_row = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    o_n = o_row[:, None] * 8 + tl.arange(0, 8)[None, :]
    b_bits = tl.load(p_packed + o_row, mask=o_row * 8 < n).to(tl.int32)
    b_fired = (b_bits[:, None] >> tl.arange(0, 8)[None, :]) & 1
    tl.store(p_dense + o_n, b_fired.to(tl.float32).to(p_dense.dtype.element_ty), mask=o_n < n)


def unpack(packed: Tensor, dense: Tensor) -> None:
    """Launch `unpack_bits`."""
    n = dense.numel()
    unpack_bits[(triton.cdiv(n, BLOCK),)](packed, dense, n, BLOCK=BLOCK, num_warps=4)

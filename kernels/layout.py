"""One layout for all operands of a kernel, so that it can walk memory in order."""

from __future__ import annotations

import torch
from torch import Tensor


def is_dense(t: Tensor) -> bool:
    """Whether the elements fill one run of memory with no gap and no overlap, in any order of dimensions."""
    return t.is_contiguous() or torch._prims_common.is_non_overlapping_and_dense(t)


def like(t: Tensor, pattern: Tensor) -> Tensor:
    """`t` with the strides of the dense tensor `pattern`; no copy if it has them already."""
    if t.stride() == pattern.stride():
        return t
    return torch.empty_strided(pattern.shape, pattern.stride(), dtype=t.dtype, device=t.device).copy_(t)


def empty_like(pattern: Tensor, dtype: torch.dtype) -> Tensor:
    """An unwritten tensor with the strides of the dense tensor `pattern`."""
    return torch.empty_strided(pattern.shape, pattern.stride(), dtype=dtype, device=pattern.device)

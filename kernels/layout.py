"""One layout for all operands of a kernel, so that it can walk memory in order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def is_dense(t: Tensor) -> bool:
    """Whether the elements fill one run of memory with no gap and no overlap, in any order of dimensions."""
    if t.is_contiguous():
        return True
    # From the innermost dimension outwards, each must span what those inside it fill. They are not sorted, because
    # under torch.compile sizes may be symbols, which have no order.
    left = [(size, stride) for size, stride in zip(t.shape, t.stride(), strict=True) if size != 1]
    filled = 1
    while left:
        inner = [size for size, stride in left if stride == filled]
        if len(inner) != 1:
            return False
        left = [(size, stride) for size, stride in left if stride != filled]
        filled *= inner[0]
    return True


def same_order(t: Tensor, pattern: Tensor) -> bool:
    """Whether `t` has the memory order of the tensor `pattern` of its shape."""
    return t.stride() == pattern.stride() or same_strides(t.shape, t.stride(), pattern.stride())


def same_strides(shape: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two sets of strides of one shape mean the same memory order."""
    # The stride of a dimension of size one means nothing: convolutions and reshapes leave any number there.
    return all(n == 1 or mine == other for n, mine, other in zip(shape, strides, others, strict=True))


def dense(t: Tensor) -> Tensor:
    """`t` without gaps in memory; no copy if there are none."""
    return t if is_dense(t) else t.contiguous()


def like(t: Tensor, pattern: Tensor) -> Tensor:
    """`t` in the memory order of the dense tensor `pattern`; no copy if it has it already."""
    if t is pattern or same_order(t, pattern):
        return t
    return torch.empty_strided(pattern.shape, pattern.stride(), dtype=t.dtype, device=t.device).copy_(t)


def empty_like(pattern: Tensor, dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor with the strides of the dense tensor `pattern`."""
    return torch.empty_like(pattern, dtype=dtype)


def is_in_steps(x: Tensor, pattern: Tensor | None = None) -> bool:
    """Whether the steps of a sequence lie one after the other in memory, each dense, or in the order of the dense
    tensor `pattern`."""
    step = x[0]
    ordered = is_dense(step) if pattern is None else same_order(step, pattern)
    return ordered and (len(x) == 1 or x.stride(0) == step.numel())


def in_steps(x: Tensor, pattern: Tensor | None = None) -> Tensor:
    """The sequence in the layout that `is_in_steps` describes; no copy if it has it already."""
    if is_in_steps(x, pattern):
        return x
    return x.contiguous() if pattern is None else empty_steps(pattern, len(x), x.dtype).copy_(x)


def empty_steps(pattern: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised maps with the strides of the dense tensor `pattern`, one after the other."""
    strides = (pattern.numel(), *pattern.stride())
    return torch.empty_strided((steps, *pattern.shape), strides, dtype=dtype, device=pattern.device)


def is_in_samples(pattern: Tensor) -> bool:
    """Whether the samples of a dense tensor lie one after the other in memory."""
    return len(pattern) <= 1 or pattern.stride(0) * len(pattern) == pattern.numel()


def empty_batch(pattern: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised samples of this many time steps in one batch, in the memory order of the tensor `pattern`, whose
    samples lie one after the other."""
    samples, *rest = pattern.shape
    strides = (pattern.numel() // max(samples, 1), *pattern.stride()[1:])
    return torch.empty_strided((steps * samples, *rest), strides, dtype=dtype, device=pattern.device)

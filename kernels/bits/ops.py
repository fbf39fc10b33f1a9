"""Unpacking as a torch operator: it reads one bit and writes one element, with nothing in between."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import dispatch
from ..operators import Operator


def packed_size(elements: int) -> int:
    """Bytes that hold one bit an element."""
    return (elements + 7) // 8


def unpack(packed: Tensor, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Dense spikes of this shape, these (dense) strides and dtype, from their bits in memory order."""
    return _UNPACK(packed, list(shape), list(stride), dtype)


def _unpack(packed: Tensor, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    dense = _empty_dense(packed, shape, stride, dtype)
    if dense.numel():
        dispatch.kernels(__package__, "auto", packed.device).unpack(packed, dense)
    return dense


def _empty_dense(packed: Tensor, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=packed.device)


_UNPACK = Operator("unpack_bits", _unpack, _empty_dense)

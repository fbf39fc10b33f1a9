"""Unpacking as a torch operator: it reads one bit and writes one element, with nothing in between."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import dispatch
from ..registration import Operator


def packed_size(elements: int) -> int:
    """Bytes that hold one bit an element."""
    return (elements + 7) // 8


def unpack(packed: Tensor, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Dense spikes of this shape, these (dense) strides and dtype, from their bits in memory order."""
    return _unpack_bits(packed, list(shape), list(stride), dtype)


@Operator
def _unpack_bits(packed: Tensor, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    dense = torch.empty_strided(shape, stride, dtype=dtype, device=packed.device)
    if dense.numel():
        if dispatch.choose("auto", packed.device) == "triton":
            from . import triton as kernels
        else:
            from . import cpu as kernels
        kernels.unpack(packed, dense)
    return dense


@_unpack_bits.register_fake
def _(packed, shape, stride, dtype):
    return torch.empty_strided(shape, stride, dtype=dtype, device=packed.device)

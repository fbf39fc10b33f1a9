"""Unpacking as torch operators, which read one bit for each element they write or add to, with nothing in between; and
packing of tensors that are not known to be spikes, by looking at their values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import dispatch
from ..layout import is_dense
from ..operators import Operator


def packed_size(elements: int) -> int:
    """Bytes that hold one bit per element."""
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


def add_bits_(dense: Tensor, packed: Tensor) -> None:
    """Add spikes to a dense tensor in place, from their bits in its memory order."""
    _ADD(dense, packed)


def _add(dense: Tensor, packed: Tensor) -> None:
    if dense.numel():
        dispatch.kernels(__package__, "auto", packed.device).add(packed, dense)


def planes_of(t: Tensor) -> tuple[Tensor, ...] | None:
    """The binary digits of a tensor that holds nothing but 0, 1, 2 and 3, lowest first, each as bits in memory order:
    one digit if no number is above 1, otherwise two. None if there are other numbers, and for anything but an ordinary
    float32 tensor on a CPU. If one of the first numbers is another one, the rest is not read."""
    if type(t) is not Tensor or t.device.type != "cpu" or t.dtype != torch.float32 or not is_dense(t) or not t.numel():
        return None
    from . import cpu

    low, high = (torch.empty(packed_size(t.numel()), dtype=torch.uint8) for _ in range(2))
    seen = torch.zeros(2, dtype=torch.int64)
    cpu.pack_planes(t, low, high, seen)
    has_others, has_twos = seen.tolist()
    if has_others:
        return None
    return (low, high) if has_twos else (low,)


_UNPACK = Operator("unpack_bits", _unpack, _empty_dense)
_ADD = Operator("add_bits_", _add, lambda dense, packed: None, mutates=("dense",))

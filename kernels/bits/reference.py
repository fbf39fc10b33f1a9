"""Packing and unpacking in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layout import is_dense


def pack(spikes: Tensor) -> Tensor:
    """The bits of a dense spike tensor in its memory order; non-zero is a spike."""
    flat = (_in_memory_order(spikes) != 0).to(torch.uint8)
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(-1, 8)
    return (flat << _places(flat.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Dense spikes of this shape, these strides and dtype."""
    dense = torch.empty_strided(shape, stride, dtype=dtype, device=packed.device)
    flat = (packed[:, None] >> _places(packed.device)) & 1
    _in_memory_order(dense).copy_(flat.view(-1)[: dense.numel()])
    return dense


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def _in_memory_order(t: Tensor) -> Tensor:
    if not is_dense(t):
        raise ValueError(
            f"bits follow memory order, and this tensor of shape {tuple(t.shape)} and strides {t.stride()} has gaps or "
            "overlaps in it: pass its .contiguous()."
        )
    return t.as_strided((t.numel(),), (1,))

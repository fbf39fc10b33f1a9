"""Spikes as bits: bit i of byte j is the spike at place 8j + i of the tensor's memory (`numpy.packbits(..., bitorder="little")`).

A kernel that fires writes the bits beside the dense spikes, and `attach` hangs them on the spikes' storage: every view of those spikes finds them
with `bits_of`, and they die with the storage.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SpikeBits:
    """The packed form of one spike tensor, and what is needed to tell that it still describes that tensor."""

    packed: Tensor
    elements: int
    version: int


def packed_size(elements: int) -> int:
    """Bytes that hold one bit an element."""
    return (elements + 7) // 8


def attach(spikes: Tensor, packed: Tensor) -> None:
    """Let `bits_of` find `packed` from `spikes` or a view of it."""
    spikes.untyped_storage().spike_bits = SpikeBits(packed, spikes.numel(), spikes._version)


def bits_of(spikes: Tensor) -> Tensor | None:
    """The bits a kernel wrote for these spikes, in memory order; None if there are none or the spikes were changed in place since."""
    found = getattr(spikes.untyped_storage(), "spike_bits", None)
    if found is None or found.version != spikes._version or found.elements != spikes.numel():
        return None
    return found.packed


def pack(spikes: Tensor) -> Tensor:
    """The bits of a spike tensor in its memory order, in plain PyTorch; non-zero is a spike."""
    flat = (_in_memory_order(spikes) != 0).to(torch.uint8)
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(-1, 8)
    return (flat << _places(flat.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, like: Tensor) -> Tensor:
    """Dense spikes with the shape, strides and dtype of `like` (only its metadata is read), in plain PyTorch."""
    flat = (packed[:, None] >> _places(packed.device)) & 1
    dense = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=packed.device)
    _in_memory_order(dense).copy_(flat.view(-1)[: like.numel()])
    return dense


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def _in_memory_order(t: Tensor) -> Tensor:
    return t.as_strided((t.numel(),), (1,))

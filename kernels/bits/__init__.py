"""Spikes as bits: bit i of byte j is the spike at place 8j + i of the tensor's memory, as by
`numpy.packbits(..., bitorder="little")`.

A kernel that fires writes the bits beside the dense spikes, and `attach` hangs them on the spikes' storage: every view
of those spikes finds them with `bits_of`, and they die with the storage.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..layout import is_dense
from .ops import packed_size, unpack


class SpikeBits(NamedTuple):
    """The packed form of one spike tensor, and what is needed to tell that it still describes that tensor."""

    packed: Tensor
    elements: int
    version: int


def attach(spikes: Tensor, packed: Tensor) -> None:
    """Let `bits_of` find `packed` from `spikes` or a view of it.

    Not for inference tensors: they do not count changes in place, so nobody could tell when the bits are out of date.
    """
    if spikes.is_inference():
        return
    bits = SpikeBits(packed, spikes.numel(), spikes._version)
    spikes.untyped_storage().spike_bits = bits  # type: ignore[attr-defined]  # hung on it for `bits_of` to find


def bits_of(spikes: Tensor) -> Tensor | None:
    """The bits a kernel wrote for these spikes, in memory order; None if there are none, if the spikes were changed in
    place since, or if this view does not hold each of them once."""
    found = getattr(spikes.untyped_storage(), "spike_bits", None)
    if found is None or found.version != spikes._version:
        return None
    return found.packed if found.elements == spikes.numel() and is_dense(spikes) else None


__all__ = ["SpikeBits", "attach", "bits_of", "packed_size", "unpack"]

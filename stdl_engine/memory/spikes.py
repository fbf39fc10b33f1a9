"""Spikes kept small: what autograd would save as a dense tensor is saved as its bits and unpacked when backward asks
for it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.bits import attach, bits_of, unpack
from .tracker import is_tracking, note_saved


@dataclass(frozen=True)
class Packed:
    """A spike tensor as one bit an element, and what it takes to rebuild it exactly."""

    bits: Tensor
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def keep(t: Tensor) -> Packed | Tensor:
    """The small form of a tensor if it has one, else the tensor itself."""
    bits = bits_of(t)
    note_saved(t if bits is None else bits)
    return t if bits is None else Packed(bits, t.shape, t.stride(), t.dtype)


def restore(kept: Packed | Tensor) -> Tensor:
    """The tensor that `keep` was given, bit for bit, and ready to be kept again."""
    if not isinstance(kept, Packed):
        return kept
    dense = unpack(kept.bits, kept.shape, kept.stride, kept.dtype)
    attach(dense, kept.bits)
    return dense


def saving(memory: str) -> contextlib.AbstractContextManager:
    """A context that decides what autograd saves: with "lean" memory spikes as bits, for whatever layer consumes them."""
    if memory == "lean":
        return torch.autograd.graph.saved_tensors_hooks(keep, restore)
    if is_tracking():
        return torch.autograd.graph.saved_tensors_hooks(_noted, _same)
    return contextlib.nullcontext()


def _noted(t: Tensor) -> Tensor:
    note_saved(t)
    return t


def _same(t: Tensor) -> Tensor:
    return t

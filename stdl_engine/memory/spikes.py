"""Spikes kept small: what autograd would save as a dense tensor is saved as one bit per spike, or as one byte where
spikes were added up, and made dense again when backward asks for it. A convolution's output may be computed again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._prims_common import are_strides_like_channels_last_or_false, suggest_memory_format

from ..kernels.bits import unpack
from ..kernels.bits.reference import pack
from ..kernels.layout import same_strides
from ..kernels.small_form import attach, bits_of, is_spikes, mark_counts
from .computed_again import ComputedAgain, computed
from .tracker import is_tracking, note_saved


@dataclass(frozen=True)
class Bits:
    """A spike tensor as one bit an element, and what it takes to rebuild it exactly."""

    small: Tensor
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def restore(self) -> Tensor:
        dense = unpack(self.small, self.shape, self.stride, self.dtype)
        attach(dense, self.small)
        return dense

    def is_like(self, t: Tensor) -> bool:
        """Whether a tensor has the shape, dtype and memory order of the dense spikes."""
        alike = t.shape == self.shape and t.dtype == self.dtype
        return alike and same_strides(self.shape, self.stride, t.stride())

    @property
    def layout(self) -> torch.memory_format:
        """The memory order of the dense spikes: for a map of one pixel, which is in every order, the one that PyTorch
        takes it for."""
        innermost = are_strides_like_channels_last_or_false(self.shape, self.stride)
        return torch.channels_last if innermost else torch.contiguous_format

    def pixels(self, down: int, right: int) -> Bits | None:
        """Every n-th pixel, if those are whole bytes: where channels are innermost, and a multiple of eight."""
        samples, channels, height, width = self.shape
        innermost = (channels * height * width, 1, channels * width, channels)
        ordered = self.layout is torch.channels_last or height * width == 1
        if channels % 8 or not ordered or not same_strides(self.shape, self.stride, innermost):
            return None
        chosen = self.small.view(samples, height, width, channels // 8)[:, ::down, ::right].contiguous()
        _, rows, columns, _ = chosen.shape
        strides = (channels * rows * columns, 1, channels * columns, channels)
        if self.layout is torch.contiguous_format:
            strides = (channels, 1, 1, 1)
        return Bits(chosen.view(-1), torch.Size((samples, channels, rows, columns)), strides, self.dtype)

    def outline(self) -> Tensor:
        """A tensor of the same shape and of no size, for those who ask for nothing else."""
        return torch.zeros((), dtype=self.dtype, device=self.small.device).expand(self.shape)


@dataclass(frozen=True)
class Counts:
    """A sum of spikes as one byte per element."""

    small: Tensor
    dtype: torch.dtype

    def restore(self) -> Tensor:
        return mark_counts(self.small.to(self.dtype))


@dataclass(frozen=True)
class Repeated:
    """An image that is shown for several time steps, one after the other in one batch."""

    small: Tensor
    times: int

    def restore(self) -> Tensor:
        return torch.cat([self.small] * self.times)


Kept = Bits | Counts | Repeated | Tensor
"""A tensor in its small form, or as it is where it has none."""


def keep(t: Tensor) -> Bits | Counts | Tensor:
    """The small form of a tensor if it has one, else the tensor itself."""
    kept: Bits | Counts | Tensor = t
    if (bits := bits_of(t)) is not None:
        kept = Bits(bits, t.shape, t.stride(), t.dtype)
    elif is_spikes(t):
        kept = Counts(t.detach().to(torch.uint8), t.dtype)
    note_saved(small_tensor(kept))
    return kept


def subsampled(t: Tensor, down: int, right: int) -> Tensor:
    """Every n-th pixel of a map in memory of its own, in the same order, and with a small form if the map has one."""
    chosen = t[:, :, ::down, ::right].contiguous(memory_format=suggest_memory_format(t))
    if (bits := bits_of(t)) is not None:
        of_pixels = Bits(bits, t.shape, t.stride(), t.dtype).pixels(down, right)
        attach(chosen, pack(chosen) if of_pixels is None else of_pixels.small)
    elif is_spikes(t):
        mark_counts(chosen)
    return chosen


def restore(kept: Kept) -> Tensor:
    """The tensor that `keep` was given, bit for bit, and ready to be kept again."""
    return kept if isinstance(kept, Tensor) else kept.restore()


def small_tensor(kept: Kept) -> Tensor:
    """The tensor that is held while something is kept."""
    return kept if isinstance(kept, Tensor) else kept.small


def saving(memory: str) -> contextlib.AbstractContextManager:
    """A context that decides what autograd saves: with "lean" memory spikes in their small form, whatever layer
    consumes them."""
    if memory == "lean":
        return torch.autograd.graph.saved_tensors_hooks(pack_saved, unpack_saved)
    if is_tracking():
        return torch.autograd.graph.saved_tensors_hooks(_noted, unpack_saved)
    return contextlib.nullcontext()


@dataclass(frozen=True)
class _AsItIs:
    """A tensor that autograd saves whole. Hooks switch off autograd's own check that it was not changed since."""

    tensor: Tensor
    version: int | None

    def restore(self) -> Tensor:
        if _version(self.tensor) != self.version:
            raise RuntimeError(
                f"a tensor of shape {tuple(self.tensor.shape)} that backward needs was changed in place after it was "
                'saved: change a copy of it, or train with memory="paper".'
            )
        return self.tensor


def _version(t: Tensor) -> int | None:
    """How often a tensor was changed, if that is counted: in inference mode it is not, and there is no backward."""
    return None if t.is_inference() else t._version


Saved = Bits | Counts | ComputedAgain | _AsItIs


def pack_saved(t: Tensor) -> Saved:
    """What is saved of a tensor for backward: its small form, how it is computed again, or the tensor itself and which
    version of it."""
    if (again := computed(t)) is not None:
        return again
    kept = keep(t)
    return _AsItIs(t, _version(t)) if isinstance(kept, Tensor) else kept


def unpack_saved(saved: Saved) -> Tensor:
    """The tensor that was saved; raises if it, or what it is computed from, has changed since."""
    return saved.restore()


def _noted(t: Tensor) -> Saved:
    note_saved(t)
    return _AsItIs(t, _version(t))

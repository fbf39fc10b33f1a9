"""Small forms: what is known about a tensor that holds spikes, and therefore how little of it has to be kept.

Spikes are 0 or 1 and fit in one bit each, which the kernel that fires writes too. Sums of spikes are small whole
numbers and fit in one byte each. Either fact is one `SmallForm` record on the tensor's *storage*. This determines

- who finds it: the tensor, its views and detached versions of it, but not a copy;
- how long it lives: as long as the storage, and the bits with it;
- when it is out of date: once the tensor or a view of it is changed in place, which PyTorch counts for all of them
  together. Inference tensors do not count changes, so they have no small form.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .layout import is_dense


class SmallForm(NamedTuple):
    """The form of one tensor as it was at one version: its bits, or None where it holds sums of spikes."""

    bits: Tensor | None
    elements: int
    version: int


def attach(spikes: Tensor, bits: Tensor) -> None:
    """Let `bits_of` find the bits from these spikes or a view of them."""
    _hang(spikes, bits)


def mark_counts(t: Tensor) -> Tensor:
    """Declare that a tensor holds whole numbers from 0 to 255, sums of spikes, so that it may be kept as bytes."""
    _hang(t, None)
    return t


def bits_of(spikes: Tensor) -> Tensor | None:
    """The bits a kernel wrote for these spikes, in memory order; None if there are none, if the spikes were changed in
    place since, or if this view does not hold each of them once."""
    form = _form_of(spikes)
    if form is None or form.elements != spikes.numel() or not is_dense(spikes):
        return None
    return form.bits


def is_spikes(t: Tensor) -> bool:
    """Whether a tensor is known to hold spikes that have bits, or sums of spikes."""
    form = _form_of(t)
    return form is not None and (form.bits is None or bits_of(t) is not None)


def _hang(t: Tensor, bits: Tensor | None) -> None:
    if not t.is_inference():
        form = SmallForm(bits, t.numel(), t._version)
        t.untyped_storage().small_form = form  # type: ignore[attr-defined]  # hung on it for `_form_of` to find


def _form_of(t: Tensor) -> SmallForm | None:
    """The record, if there is one that is still valid."""
    form = None if t.is_inference() else getattr(t.untyped_storage(), "small_form", None)
    return form if form is not None and form.version == t._version else None

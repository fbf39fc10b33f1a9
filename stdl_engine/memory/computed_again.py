"""Convolution outputs that backward computes again instead of keeping them.

Batch norm needs its input in backward: the output of a convolution, four bytes a neuron. Where the convolution's input
is spikes, the output can be computed again from what is kept anyway: the spikes as bits, and the weights. The same
kernel on the same numbers gives the same output, to the last bit. How it is computed is a record on the output's
storage, as small forms are (`kernels.small_form`): found by whoever saves the output or a view of it, and out of date
once that is changed in place.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..kernels.layout import is_dense
from .tracker import mark


class Computed:
    """How a tensor is computed. Of all that saved it for backward, the first to read it has it computed, and the last
    lets go of it."""

    def __init__(self, output: Tensor, run: Callable[[], Tensor], weights: tuple[Tensor, ...]) -> None:
        self._run, self._weights = run, tuple((weight, weight._version) for weight in weights)
        self._elements, self._dtype, self._version = output.numel(), output.dtype, output._version
        self._autocast = _autocast_now(output.device.type)
        self._saved = self._read = 0
        self._output: Tensor | None = None

    def gives(self, t: Tensor) -> bool:
        """Whether a tensor on the output's storage is all of the output, in any shape, and unchanged."""
        whole = t.numel() == self._elements and t.dtype == self._dtype and is_dense(t)
        return whole and t._version == self._version

    def save(self, t: Tensor) -> ComputedAgain:
        """What is saved of the output, which may have another shape by now."""
        self._saved += 1
        return ComputedAgain(self, t.shape, t.stride())

    def read(self) -> Tensor:
        """The output, computed again if it is not here."""
        output = self._computed() if self._output is None else self._output
        self._read += 1
        self._output = None if self._read % self._saved == 0 else output
        return output

    def _computed(self) -> Tensor:
        for weight, version in self._weights:
            if weight._version != version:
                raise RuntimeError(
                    f"weights of shape {tuple(weight.shape)} were changed in place between forward and backward, which "
                    "computes a convolution's output again from them: change them after backward, or keep the "
                    "output (no recompute)."
                )
        mark(phase="recompute")
        with torch.no_grad(), self._autocast():
            output = self._run()
        mark(phase="backward")
        return output


def _autocast_now(device: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Makes a context in which autocast is as it is now."""
    if not torch.amp.is_autocast_available(device):
        return contextlib.nullcontext
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return functools.partial(torch.autocast, device, dtype, enabled=enabled)


@dataclass(frozen=True)
class ComputedAgain:
    """A tensor that is computed again when backward asks for it."""

    how: Computed
    shape: torch.Size
    stride: tuple[int, ...]

    def restore(self) -> Tensor:
        return self.how.read().as_strided(self.shape, self.stride)


def compute_again(output: Tensor, run: Callable[[], Tensor], *weights: Tensor | None) -> None:
    """Let backward call `run` for this output instead of keeping it, under autocast as it is now. `run` must give the
    same numbers in the same memory order, as long as the weights that it reads are unchanged."""
    if output.requires_grad and is_dense(output) and output.storage_offset() == 0:
        record = Computed(output, run, tuple(weight for weight in weights if weight is not None))
        output.untyped_storage().computed = record  # type: ignore[attr-defined]  # hung on it for `computed` to find


def computed(t: Tensor) -> ComputedAgain | None:
    """How a tensor is computed again, if it is to be."""
    record: Computed | None = None if t.is_inference() else getattr(t.untyped_storage(), "computed", None)
    return record.save(t) if record is not None and record.gives(t) else None

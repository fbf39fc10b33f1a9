"""Batch norm that leaves its output to the fused neuron after it, in a model's own forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter

from ..kernels.norm_lif import PendingMap, of_norm
from ..memory.norms import fits_kernels, is_plain, table_for
from ..neurons import has_hooks
from .lean_layers import must_be_plain

FEWEST = 2**18
"""The fewest numbers of a map that is left to the neuron. Smaller ones are in the cache when the neuron reads them, and
the call costs more than it saves: 0.1 ms (ResNet-18's layers, one CPU thread)."""


class PendingNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d`, or SpikingJelly's, whose output is a `PendingMap`: a fused neuron that reads it computes it as
    it fires, and for anyone else it is written."""

    comes_first = True
    memory_form: str | None = None
    """Set by learning rules, which have their own way to leave it to the neuron."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.plain() if isinstance(x, PendingMap) else x
        # SpikingJelly's, in step mode "m", takes [T, B, ...] and the statistics of all time steps together.
        several = getattr(self, "step_mode", "s") == "m"
        frames = x.flatten(0, 1) if several and x.ndim == 5 else x
        if several != (x.ndim == 5) or not self._can_wait(frames):
            return super().forward(x)
        table, constant = table_for(self, frames, 1)
        return of_norm(frames, table, self.weight, self.bias, constant=constant, shape=x.shape)

    def _can_wait(self, x: Tensor) -> bool:
        """Whether the kernels take this input, and nobody waits for the output but whoever is given it."""
        if must_be_plain() or torch.jit.is_tracing() or self.memory_form is not None or has_hooks(self):
            return False
        if torch.is_inference_mode_enabled() or x.is_inference():  # where changes in place are not counted
            return False
        return type(x) in (Tensor, Parameter) and x.numel() >= FEWEST and fits_kernels(self, x)


def why_written(norm: nn.BatchNorm2d) -> str:
    """Why the output of a batch norm is always written; nothing if a neuron may compute it."""
    if not is_plain(type(norm)):
        owner = next(base for base in type(norm).__mro__ if "forward" in vars(base))
        return f"{owner.__name__} has a forward of its own"
    return "" if norm.num_features <= 2048 else f"{norm.num_features} channels are more than 2048"

"""The bytes that a LIF step must move, whatever computes it, and `Tensor.copy_` of as many bytes.

Every operand is read once, every result written once. Membranes are float32, inputs, spikes and gradients have the
caller's dtype. Spike bits are not counted: not everyone writes them.
"""

from __future__ import annotations

import torch

from .timing import Case

STATE = 4


def forward_bytes(online: bool, dtype: torch.dtype) -> int:
    """Per neuron and step: x is read, spikes and m are written; online the state m is read too. Exact gradients need
    every step's m, but between steps it can stay in a register."""
    return 2 * dtype.itemsize + STATE * (2 if online else 1)


def backward_bytes(dtype: torch.dtype) -> int:
    """Per neuron and step: m and the gradient of the spikes are read, and the gradient of x is written."""
    return 2 * dtype.itemsize + STATE


def copy(moved: int, device: str = "cpu") -> Case:
    """Tensor.copy_ reading and writing `moved` bytes in all."""
    source, target = torch.ones(moved // 8, device=device), torch.zeros(moved // 8, device=device)
    return Case(lambda: target.copy_(source))


def name_of(dtype: torch.dtype) -> str:
    """A dtype without its module."""
    return str(dtype).removeprefix("torch.")

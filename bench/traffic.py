"""The bytes that a LIF step must move, whoever computes it: every operand read once, every result written once.

Membranes are float32, inputs, spikes and gradients have the caller's dtype. Spike bits are not counted: not everyone
writes them.
"""

from __future__ import annotations

import torch

STATE = 4


def forward_bytes(online: bool, dtype: torch.dtype) -> int:
    """A neuron and step: x in, spikes and m out; online the state m comes in, too. Exact gradients need every step's
    m, but between steps it can stay in a register."""
    return 2 * dtype.itemsize + STATE * (2 if online else 1)


def backward_bytes(dtype: torch.dtype) -> int:
    """A neuron and step: m and the gradient of the spikes in, the gradient of x out."""
    return 2 * dtype.itemsize + STATE

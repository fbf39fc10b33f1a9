"""Time steps in plain PyTorch, for any neuron: several in sequence, online, and overwriting the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def steps(
    step: Callable[..., tuple[Tensor, ...]], x: Tensor, states: Sequence[Tensor], sequence: bool, online: bool
) -> tuple[Tensor, ...]:
    """Spikes and new states of `step(x, *states)` for one input or each of a `sequence`; online, no gradient reaches a
    state."""
    spikes: list[Tensor] = []
    for x_t in x if sequence else (x,):
        s, *states = step(x_t, *(state.detach() if online else state for state in states))
        spikes.append(s)
    states = [state.detach() if online else state for state in states]
    return torch.stack(spikes) if sequence else spikes[0], *states


def write_over(states: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Write new states over the old ones without autograd's notice: its graph keeps what it needs."""
    for state, value in zip(states, new, strict=True):
        state.data.copy_(value.detach())

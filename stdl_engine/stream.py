"""The schedule: which subnetwork runs which time step.

Subnetworks exchange no gradient, and each one's optimizer steps after all its time steps, so both orders compute the same to the last bit.
Subnetwork-major holds the states, activations and gradients of one subnetwork at a time; the boundary between two is kept for T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from torch import Tensor

from .subnetworks import Subnetwork

Kept = TypeVar("Kept")

Learn = Callable[[Subnetwork, int, Tensor], Tensor]
"""Runs one time step of one subnetwork on its input, gradients included; returns its output, cut from the graph."""

Finish = Callable[[Subnetwork], None]
"""Ends a subnetwork's batch: optimizer step, gradients and states freed."""


def time_major(subnetworks: Sequence[Subnetwork], frames: Iterable[Tensor], learn: Learn, finish: Finish) -> None:
    """for each time step: for each subnetwork. As the paper runs it."""
    for t, x in enumerate(frames):
        for subnetwork in subnetworks:
            x = learn(subnetwork, t, x)
    for subnetwork in subnetworks:
        finish(subnetwork)


def subnetwork_major(
    subnetworks: Sequence[Subnetwork],
    frames: Iterable[Tensor],
    learn: Learn,
    finish: Finish,
    keep: Callable[[Tensor], Kept],
    restore: Callable[[Kept], Tensor],
) -> None:
    """for each subnetwork: for each time step. `keep` makes a boundary small until `restore` brings it back, exactly."""
    for subnetwork in subnetworks:
        boundary: list[Kept] = []
        for t, x in enumerate(frames):
            output = learn(subnetwork, t, x)
            del x
            if not subnetwork.is_last:
                boundary.append(keep(output))
            del output
        finish(subnetwork)
        frames = _consumed(boundary, restore)


def _consumed(boundary: list[Kept], restore: Callable[[Kept], Tensor]) -> Iterable[Tensor]:
    """Each kept map in turn, forgotten as it is handed on."""
    boundary.reverse()
    while boundary:
        yield restore(boundary.pop())

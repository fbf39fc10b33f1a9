"""The schedule: which subnetwork runs which time step.

Subnetworks exchange no gradient, and each one's optimizer steps after all its time steps, so both orders compute the
same to the last bit. Subnetwork-major holds the states, activations and gradients of one subnetwork at a time; the
boundary between two is kept for T steps, in the small form that `learn` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .planning.subnetworks import Subnetwork

Learn = Callable[[Subnetwork, int, Any], Any]
"""Runs one time step of one subnetwork on its input, including backward; returns its output, detached."""

Finish = Callable[[Subnetwork], None]
"""Ends a subnetwork's batch: optimizer step, gradients and states freed."""


def time_major(subnetworks: Sequence[Subnetwork], frames: Iterable[Any], learn: Learn, finish: Finish) -> None:
    """for each time step: for each subnetwork. This is the paper's order."""
    for t, x in enumerate(frames):
        for subnetwork in subnetworks:
            x = learn(subnetwork, t, x)
    for subnetwork in subnetworks:
        finish(subnetwork)


def subnetwork_major(subnetworks: Sequence[Subnetwork], frames: Iterable[Any], learn: Learn, finish: Finish) -> None:
    """for each subnetwork: for each time step."""
    for subnetwork in subnetworks:
        boundary = [learn(subnetwork, t, x) for t, x in enumerate(frames)]
        finish(subnetwork)
        frames = _consumed(boundary)


def _consumed(boundary: list[Any]) -> Iterable[Any]:
    """Each kept map in turn, released as it is handed on."""
    boundary.reverse()
    while boundary:
        yield boundary.pop()

"""A training step on fake tensors, allocation by allocation: what is allocated and freed, where, and of what kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..memory.tracker import Place, Tracker
from .fake import faking
from .plan import Plan
from .planner import MakeOptimizer, Observed, Trainable, fake_rule, short_step


@dataclass(frozen=True)
class Moment:
    """A storage that was allocated or freed in a training step: where, its identity and bytes (negative if freed), and,
    if allocated, all bytes then alive by kind, one number for each of `PARTS`."""

    place: Place
    storage: int
    size: int
    parts: tuple[int, ...] | None


@dataclass(frozen=True)
class Recording:
    """A whole training step: the plan, the storages alive before it, and every change."""

    plan: Plan
    held: dict[int, int]
    before: tuple[int, ...]
    moments: list[Moment]


def record(
    rule: Callable[..., Trainable], model: nn.Sequential, optimizer: MakeOptimizer,
    sample: Tensor | tuple[int, ...], T: int, *, sequence: bool = False, **options: Any,
) -> Recording:  # fmt: skip
    """Every byte, by kind, of the step whose peak `predict` gives; the arguments are those of `predict`."""
    with faking():
        trained, x, y = fake_rule(rule, model, optimizer, sample, T, sequence=sequence, **options)
        short_step(trained, x, y)
        observed, moments = Observed(trained, x, y), []

        def note(tracker: Tracker) -> None:
            storage, size = tracker.changed
            born = size >= 0  # what is being freed must not be looked at, and what replaces it is not known yet
            parts = tuple(observed.parts_now(tracker).values()) if born else None
            moments.append(Moment(tracker.place, storage, size, parts))

        tracker = observed.tracker
        held, before = tracker.alive(), tuple(observed.parts_now(tracker).values())
        tracker.at_peak, tracker.on_change = None, note
        with tracker:
            trained.step(x, y, T)
        return Recording(trained.plan, held, before, moments)

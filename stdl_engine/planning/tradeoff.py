"""What memory costs: the peaks that a rule can be brought down to, each with the work that it then takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .budgets import Budget, OverBudget
from .levels import Levels
from .plan import Plan
from .planner import Prediction, Trainable, fake_copy, faking, fake_like, predict

POINTS = 8
"""Budgets that are tried between the most and the least that a rule takes."""


def recomputing_peaks(
    rule: Callable[..., Trainable],
    model: nn.Sequential,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    sample: Tensor,
    T: int,
    *,
    sequence: bool = False,
    points: int = POINTS,
    **options,
) -> Iterator[Prediction]:
    """Training steps of a rule in ever less memory, from nothing run again to everything; the network is cut as the
    rule cuts it without a budget in bytes. Options are those of the rule."""
    with faking():
        x = fake_like(sample)
        made = rule(fake_copy(model), optimizer, x, sequence=sequence, recompute="none", steps=T, **options)
        levels = Levels(made.network, made.plan, made.trial, x, T, sequence=sequence)
        most, least = (
            levels.whole_step(plan)
            for plan in (made.plan, replace(made.plan, recompute=levels.everything(levels.deepest)))
        )
        for budget in _between(most.peak_bytes, least.peak_bytes, points):
            with contextlib.suppress(OverBudget):
                plan = levels.within(budget)
                yield replace(levels.whole_step(plan), cost=levels.work.relative(plan.recompute))


def budgeted_peaks(
    rule: Callable[..., Trainable],
    model: nn.Sequential,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    sample: Tensor,
    T: int,
    *,
    most: int,
    points: int = POINTS,
    **options,
) -> Iterator[Prediction]:
    """Training steps of a rule that cuts the network to keep to a budget, from `most` bytes down to the fewest."""
    budget = most
    for _ in range(points):
        try:
            found = predict(rule, model, optimizer, sample, T, budget=Budget(size=budget), steps=T, **options)
        except OverBudget:
            return
        yield found
        budget = int(min(budget, found.peak_bytes) * 0.85)


def _between(most: int, least: int, points: int) -> Sequence[int]:
    """So many sizes from the first to the second, which grow by the same factor."""
    factor = (least / most) ** (1 / max(points - 1, 1))
    return [int(most * factor**point) for point in range(points - 1)] + [least]

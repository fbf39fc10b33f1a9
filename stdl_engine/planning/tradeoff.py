"""What memory costs: the peaks that a rule can be brought down to, each with the work that it then takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from .budgets import Budget, OverBudget
from .fake import fake_copy, fake_like, faking
from .levels import Levels
from .planner import MakeOptimizer, Prediction, Trainable, predict

POINTS = 8
"""Budgets that are tried between the most and the least that a rule takes."""
NEXT = 0.85
"""What the next smaller budget is of the peak before it, where the least is not known beforehand."""


def by_recomputing(
    rule: Callable[..., Trainable], model: nn.Sequential, optimizer: MakeOptimizer, sample: Tensor, T: int, *,
    sequence: bool = False, **options: Any,
) -> Iterator[Prediction]:  # fmt: skip
    """Training steps of a rule in ever less memory, from nothing run again to everything; the network is cut as the
    rule cuts it where no bytes are given. Options are those of the rule."""
    with faking():
        x = fake_like(sample)
        made = rule(fake_copy(model), optimizer, x, sequence=sequence, recompute="none", steps=T, **options)
        levels = Levels(made.network, made.plan, made.trial, x, T, sequence=sequence)
        everything = replace(made.plan, recompute=levels.everything(levels.deepest))
        most, least = (levels.whole_step(plan).peak_bytes for plan in (made.plan, everything))
        factor = (least / most) ** (1 / (POINTS - 1))
        for budget in (*(int(most * factor**point) for point in range(POINTS - 1)), least):
            with contextlib.suppress(OverBudget):
                plan = levels.within(budget)
                yield replace(levels.whole_step(plan), cost=levels.work.relative(plan.recompute))


def by_cutting(
    rule: Callable[..., Trainable], model: nn.Sequential, optimizer: MakeOptimizer, sample: Tensor, T: int, *,
    most: int, **options: Any,
) -> Iterator[Prediction]:  # fmt: skip
    """Training steps of a rule that cuts the network to keep to its budget, from `most` bytes down to the fewest.
    Options are those of `predict`."""
    budget = most
    with contextlib.suppress(OverBudget):
        while True:
            found = predict(rule, model, optimizer, sample, T, budget=Budget(size=budget), steps=T, **options)
            yield found
            budget = int(found.peak_bytes * NEXT)

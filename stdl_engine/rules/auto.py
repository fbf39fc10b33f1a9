"""The most exact way to train that fits a budget in bytes, and the alternatives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ..planning.budgets import Budget, OverBudget, parse_budget
from ..planning.planner import MakeOptimizer, Prediction, predict
from .base import Rule
from .bptt import BPTT
from .sltt import SLTT
from .stdl import STDL

WAYS = ((BPTT, "none"), (BPTT, "all"), (BPTT, "twice"), (SLTT, "none"), (SLTT, "all"))
"""Ways to train that need no budget: the most exact first, and of equally exact ones the fastest first."""


def auto(
    model: nn.Sequential,
    optimizer: MakeOptimizer,
    sample: Tensor,
    *,
    budget: float | str | Budget | None,
    **options: Any,
) -> Rule:
    """The first of these whose training step keeps to a budget in bytes: BPTT; BPTT that recomputes pieces; STDL with
    as few subnetworks as will do, where a single one is SLTT. Options are those of `Rule`.

    Example:
        >>> rule = auto(model, optimizer, x, budget="2GiB", steps=4)
        >>> print(rule)
    """
    budget = _in_bytes(budget)
    with contextlib.suppress(OverBudget):
        return BPTT(model, optimizer, sample, budget=budget, **options)
    return STDL(model, optimizer, sample, budget=budget, **options)


def candidates(
    model: nn.Sequential, optimizer: MakeOptimizer, sample: Tensor | tuple[int, ...], T: int, **options: Any
) -> Iterator[Prediction]:
    """The alternatives, one after the other: predictions for BPTT and SLTT as they are and with every piece recomputed,
    and for STDL at half the footprint. Options are those of `predict`."""
    for kind, recompute in WAYS:
        yield predict(kind, model, optimizer, sample, T, recompute=recompute, steps=T, **options)
    with contextlib.suppress(ValueError):  # the network cannot be cut this far
        yield predict(STDL, model, optimizer, sample, T, budget=0.5, **options)


def _in_bytes(budget: float | str | Budget | None) -> Budget:
    found = None if budget is None else parse_budget(budget)
    if found is None or found.size is None:
        raise ValueError('which rule fits depends on a budget in bytes: write for example budget="2GiB" or 2e9.')
    return found

"""The most exact training that fits a number of bytes, and what else there was to choose from."""

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
"""Ways to train that need no budget, from the most exact one and, of equals, from the fastest."""


def auto(
    model: nn.Sequential,
    optimizer: MakeOptimizer,
    sample: Tensor,
    *,
    budget: float | str | Budget | None,
    **options: Any,
) -> Rule:
    """The first of these whose training step keeps to a budget in bytes: BPTT; BPTT that runs pieces again; STDL in as
    few subnetworks as will do, a single one being SLTT. Options are those of `Rule`.

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
    """What else there is to choose, one after the other: what the training step takes of BPTT and SLTT as they are and
    with every piece run again, and of STDL at half the footprint. Options are those of `predict`."""
    for kind, recompute in WAYS:
        yield predict(kind, model, optimizer, sample, T, recompute=recompute, steps=T, **options)
    with contextlib.suppress(ValueError):  # a network that cannot be cut so far
        yield predict(STDL, model, optimizer, sample, T, budget=0.5, **options)


def _in_bytes(budget: float | str | Budget | None) -> Budget:
    found = None if budget is None else parse_budget(budget)
    if found is None or found.size is None:
        raise ValueError('which rule fits depends on a budget in bytes: write for example budget="2GiB" or 2e9.')
    return found

"""The most exact training that fits a number of bytes, and what else there was to choose from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from torch import Tensor, nn
from torch.optim import Optimizer

from ..planning.budgets import OverBudget, parse_bytes
from ..planning.planner import Prediction, predict
from .base import Rule
from .bptt import BPTT
from .sltt import SLTT
from .stdl import STDL

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]

WAYS = ((BPTT, "none"), (BPTT, "all"), (BPTT, "twice"), (SLTT, "none"), (SLTT, "all"))
"""Ways to train without a budget, from the most exact one and, of equals, from the fastest."""


def auto(model: nn.Sequential, optimizer: MakeOptimizer, sample: Tensor, *, budget: float | str, **options) -> Rule:
    """The first of these whose training step keeps to a budget in bytes: BPTT; BPTT that runs pieces again; STDL in as
    few subnetworks as will do, a single one being SLTT. Options are those of `Rule`.

    Example:
        >>> rule = auto(model, optimizer, x, budget="2GiB", steps=4)
        >>> print(rule)
    """
    given, size = (model, optimizer, sample), parse_bytes(budget)
    for recompute in ("none", "auto"):
        with contextlib.suppress(OverBudget):
            return BPTT(*given, budget=size, **options | {"recompute": recompute})
    return STDL(*given, budget=size, **options)


def candidates(
    model: nn.Sequential, optimizer: MakeOptimizer, sample: Tensor | tuple[int, ...], T: int, **options
) -> Iterator[tuple[str, Prediction]]:
    """What `auto` chooses from, one after the other: a name and what its training step takes. Options are those of
    `predict`."""
    for kind, recompute in WAYS:
        yield kind.__name__, predict(kind, model, optimizer, sample, T, recompute=recompute, steps=T, **options)

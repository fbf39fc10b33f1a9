"""Spatio-temporal decoupled learning: subnetworks under a memory budget, each learning online from an auxiliary
network.
"""

from __future__ import annotations

from typing import Any

from ..planning.auxiliary import VARIANTS
from ..planning.budgets import Budget, parse_budget
from ..planning.fit import plan_within_bytes
from ..planning.plan import Plan, plan_of_layers, plan_within
from ..planning.published import published_rows
from .base import Rule


class STDL(Rule):
    """Cuts the network by Algorithm 1 and gives every subnetwork but the last the deepest auxiliary network that fits.

    Args (beyond `Rule`):
        budget: a fraction of the whole network's footprint (0.5), bytes of a training step's peak ("2GiB", 2e9), or
            "published".
        variant: how auxiliary networks are made: "stdl", or an ablation: "conv3x3", "conv1x1", "two_layer", "linear",
            "depth_only".
        layerwise: make every unit a subnetwork instead (ablation).

    Example:
        >>> rule = STDL(model, optimizer=functools.partial(torch.optim.SGD, lr=0.1), sample=x, budget=0.5)
        >>> print(rule.plan)
        >>> result = rule.step(x, y, T=4)
    """

    budget: Budget

    def __init__(
        self,
        *args: Any,
        budget: float | str | Budget = 0.5,
        variant: str = "stdl",
        layerwise: bool = False,
        **options: Any,
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"unknown variant {variant!r}: choose from {', '.join(VARIANTS)}.")
        self.variant, self.layerwise = VARIANTS[variant], layerwise
        super().__init__(*args, budget=budget, **options)

    def read_budget(self, budget: float | str | Budget | None) -> Budget:
        return parse_budget(budget)  # type: ignore[arg-type]  # which refuses None with a message

    def cut(self) -> Plan:
        if self.budget.published:
            if self.layerwise or self.variant.max_depth is not None or self.variant.prefer != "footprint":
                raise ValueError(
                    'budget "published" fixes which layers are chosen, which this ablation would change: pass a '
                    "fraction such as 0.5, or bytes."
                )
            return plan_of_layers(self.network, published_rows(self.model), self.variant)
        assert self.budget.fraction is not None  # a plan for bytes is made in another way
        return plan_within(self.network, self.budget.fraction * self.network.total, self.variant, self.layerwise)

    def make_plan(self) -> Plan:
        if self.budget.size is None:
            return super().make_plan()
        return plan_within_bytes(
            self.network, self.budget.size, self.trial, self.sample, self.steps, self.variant,
            layerwise=self.layerwise, sequence=self.sequence, binary=self.budget.binary, recompute=self.recompute_all(),
            choose=self.recompute == "auto" and self.memory == "lean",
        )  # fmt: skip

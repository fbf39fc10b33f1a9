"""Spatio-temporal decoupled learning: subnetworks under a memory budget, each learning online from an auxiliary
network.
"""

from __future__ import annotations

from torch import Tensor

from ..planning.auxiliary import VARIANTS
from ..planning.budgets import Budget, format_bytes, parse_budget
from ..planning.fit import plan_within_bytes
from ..planning.plan import Plan, plan_of_layers, plan_within
from ..planning.published import published_rows
from .base import Rule, StepResult


class STDL(Rule):
    """Cuts the network by Algorithm 1 and gives every subnetwork but the last the deepest auxiliary network that fits.

    Args (beyond `Rule`):
        budget: a fraction of the whole network's footprint (0.5), bytes of a training step's peak ("2GiB", 2e9), or
            "published".
        variant: how auxiliary networks are made: "stdl", or an ablation: "conv3x3", "conv1x1", "two_layer", "linear",
            "depth_only".
        steps: time steps for which a budget in bytes is kept; the spikes between subnetworks are kept for all of them.
        layerwise: make every unit a subnetwork instead (ablation).

    Example:
        >>> rule = STDL(model, optimizer=functools.partial(torch.optim.SGD, lr=0.1), sample=x, budget=0.5)
        >>> print(rule.plan)
        >>> result = rule.step(x, y, T=4)
    """

    def __init__(
        self,
        *args,
        budget: float | str | Budget = 0.5,
        variant: str = "stdl",
        layerwise: bool = False,
        steps: int = 4,
        **options,
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"unknown variant {variant!r}: choose from {', '.join(VARIANTS)}.")
        self.budget, self.variant, self.layerwise = parse_budget(budget), VARIANTS[variant], layerwise
        self.steps = steps
        self.keeps_bytes = self.budget.size is not None and options.get("plan") is None
        super().__init__(*args, **options)

    def step(self, x: Tensor, y: Tensor, T: int) -> StepResult:
        if self.keeps_bytes:
            self._check_promise(x, T)
        return super().step(x, y, T)

    def _check_promise(self, x: Tensor, T: int) -> None:
        """Refuse a batch that takes more memory than the budget was planned for."""
        planned = f"the budget of {format_bytes(self.budget.size, self.budget.binary)} was planned for "
        is_sequence = x.ndim > 1 + len(self.network.in_shape)
        batch_size = x.shape[1] if is_sequence else len(x)
        if is_sequence and not self.sequence:
            raise ValueError(
                f"{planned}one image shown at every time step, and this batch is a sequence of frames, which takes "
                "more: pass sequence=True when the rule is made."
            )
        if batch_size > self.batch_size:
            raise ValueError(
                f"{planned}batches of {self.batch_size}, and this one has {batch_size} samples: make the rule with a "
                "sample of that size."
            )
        if isinstance(T, int) and self.steps < T:
            raise ValueError(
                f"{planned}{self.steps} time steps, and these are {T}: pass steps={T} when the rule is made."
            )

    def make_plan(self) -> Plan:
        if self.budget.published:
            if self.layerwise or self.variant.max_depth is not None or self.variant.prefer != "footprint":
                raise ValueError(
                    'budget "published" fixes which layers are chosen, which this ablation would change: pass a '
                    "fraction such as 0.5, or bytes."
                )
            return plan_of_layers(self.network, published_rows(self.model), self.variant)
        if self.budget.size is not None:
            return plan_within_bytes(
                self.network, self.budget.size, self.trial, self.sample, self.steps, self.variant,
                layerwise=self.layerwise, sequence=self.sequence, binary=self.budget.binary,
            )  # fmt: skip
        return plan_within(self.network, self.budget.fraction * self.network.total, self.variant, self.layerwise)

"""Plans tried before a run: the real training step of each on fake tensors, until one keeps to a budget in bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..kernels.layout import empty_steps
from .budgets import OverBudget, format_bytes
from .fake import fake_copy, fake_like
from .network import Network
from .plan import Plan
from .planner import Prediction, Trainable, measure

Trial = Callable[[Network, Plan], Trainable]
"""Makes a rule that trains a network cut by a plan."""


class Trials:
    """Training steps of one network on batches like `sample`, a fake tensor. To be made inside `faking()`.

    With `sequence` the input is T different frames. With `binary` plans are printed in GiB, otherwise in GB.
    """

    def __init__(
        self, network: Network, trial: Trial, sample: Tensor, T: int, *, sequence: bool = False, binary: bool = False
    ) -> None:
        self.network, self.trial, self.T, self.binary = network, trial, T, binary
        self.fake = Network.sharing(network, fake_copy(network.model))
        self.frame = fake_like(sample)
        self.x = empty_steps(self.frame, T, self.frame.dtype) if sequence else self.frame
        self.y = torch.empty(len(self.frame), dtype=torch.int64)

    def rule(self, plan: Plan) -> Trainable:
        """A rule that trains the fake network by a plan."""
        return self.trial(self.fake, plan)

    def whole_step(self, plan: Plan) -> Prediction:
        """What the training step of a plan takes."""
        return measure(self.rule(plan), self.x, self.y, self.T)

    def first_within(
        self, budget: int, propose: Callable[[int], Plan | None], smallest: Callable[[], Plan], trouble: str
    ) -> Plan:
        """The plan that `propose` says keeps to the budget, once a measurement has confirmed it.

        Proposals come from arithmetic. If the measured step takes more than that, the next proposal is asked for with a
        budget that is smaller by the difference. When there are no more, the smallest plan of all is tried; if that is
        too large as well, OverBudget is raised, and its message begins with `trouble`.
        """
        limit, tried = budget, None
        while (plan := propose(limit)) is not None:
            if plan != tried:  # a little less may lead to the same plan again
                tried, step = plan, self.whole_step(plan)
                if step.peak_bytes <= budget:
                    return self.noted(plan, step, budget)
            limit -= step.peak_bytes - budget
        plan = smallest()
        step = self.whole_step(plan)
        if step.peak_bytes <= budget:
            return self.noted(plan, step, budget)
        raise OverBudget(
            f"{trouble}: the smallest budget that works is {step.peak_bytes} bytes ({self.words(step.peak_bytes)}).",
            step.peak_bytes,
        )

    def noted(self, plan: Plan, step: Prediction, budget: int) -> Plan:
        """The plan with what its training step takes of a budget in bytes, and each of its subnetworks."""
        note = (
            f"peak {self.words(step.peak_bytes)} of a budget of {self.words(budget)}, batch {step.batch_size}, "
            f"{step.steps} time steps"
        )
        return replace(plan, notes=(note,), byte_shares=tuple(part["peak_bytes"] / budget for part in step.subnetworks))

    def words(self, size: int) -> str:
        """Bytes as the budget was written."""
        return format_bytes(size, self.binary)

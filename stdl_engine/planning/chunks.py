"""How many time steps run together: more are faster, because convolutions get more samples, but take more memory."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .budgets import OverBudget
from .fake import faking
from .network import Network
from .plan import Plan
from .trials import Trial, Trials

MORE = 1.25
"""Without a budget, how much a training step may take, relative to one that runs its time steps one by one."""


class Chunks(Trials):
    """The choice for one plan of a rule, one batch and one number of time steps. To be made inside `faking()`."""

    def most(self, plan: Plan, budget: int | None) -> Plan:
        """The plan with the most time steps together whose training step keeps to a budget, or without one takes at
        most a quarter more memory than one by one. Only equal parts of T are tried, because a shorter last part would
        save nothing. Each is tried, the largest first: through time more steps together may also take less memory."""
        limit = MORE * self.whole_step(plan).peak_bytes if budget is None else budget
        for size in sorted({-(-self.T // parts) for parts in range(1, self.T)}, reverse=True):
            chunked = replace(plan, chunk=size)
            step = self.whole_step(chunked)
            if step.peak_bytes <= limit:
                return chunked if budget is None else self.noted(chunked, step, budget)
        return plan

    def checked(self, plan: Plan, budget: int) -> Plan:
        """The plan as it is; raises OverBudget if it takes more than the budget."""
        step = self.whole_step(plan)
        if step.peak_bytes > budget:
            raise OverBudget(
                f"with {plan.chunk} time steps together a training step takes {self.words(step.peak_bytes)}, and the "
                f'budget is {self.words(budget)}: pass chunk="auto" for as many as it allows.',
                step.peak_bytes,
            )
        return self.noted(plan, step, budget)


def chunk_within(
    network: Network, plan: Plan, chunk: int | str, budget: int | None, trial: Trial, sample: Tensor, T: int, *,
    sequence: bool, binary: bool,
) -> Plan:  # fmt: skip
    """A plan with this many time steps together, or with "auto" as many as keep to a budget in bytes."""
    with unset_fake_temporarily(), faking():
        chunks = Chunks(network, trial, sample, T, sequence=sequence, binary=binary)
        if isinstance(chunk, str):
            return chunks.most(plan, budget)
        assert budget is not None, "there is nothing to be checked without one"
        return chunks.checked(replace(plan, chunk=chunk), budget)

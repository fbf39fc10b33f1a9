"""How STDL cuts a network for stages where one process could not keep to a budget in bytes: a subnetwork per stage.

A rank holds the weights and optimizers of its own stage only, so more fits onto stages than into one process. Among the
runs of units that fit onto a rank, those are taken whose slowest stage has the least work; then every auxiliary network
is made as deep as its rank allows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..memory.spikes import small_tensor
from ..planning.budgets import Budget, OverBudget, format_bytes, parse_budget
from ..planning.fake import faking
from ..planning.fit import TRIES_PER_DEPTH, Fitting, during_step, last_true
from ..planning.plan import Part, Plan, Recompute, plan_with_linear_heads
from ..planning.profile import Step
from ..rules import STDL
from .balance import balanced, counted_work
from .forecast import AHEAD, ALONE, Shards, forecast


def plan_for_stages(
    rule: STDL,
    budget: str | float | Budget,
    stages: int,
    shards: Shards = ALONE,
    levels: Sequence[Recompute] = (Recompute(),),
) -> Plan:
    """A subnetwork per stage, each of which keeps to a budget in bytes on its rank; pieces run again as the first of
    `levels` with which that can be. `rule` is one for the same network and batches, with as many time steps together,
    however it is cut.

    Example:
        >>> plan = plan_for_stages(STDL(model, optimizer, x, budget=1.0), "2GiB", stages=4)
        >>> rule = ParallelRule(STDL(model, optimizer, x, plan=plan), Ranks(stages=4))
    """
    budget = parse_budget(budget)
    if budget.size is None:
        raise ValueError('the budget of a rank is in bytes: write for example "2GiB" or 2e9.')
    units = len(rule.network.units)
    every_unit = [range(number, number + 1) for number in range(units)]
    work = counted_work(rule.trial(rule.network, plan_with_linear_heads(rule.network, every_unit)))
    for recompute in levels:
        with contextlib.suppress(OverBudget):
            return _measured(rule, budget, stages, shards, work, recompute)
    size = format_bytes(budget.size, budget.binary)
    raise OverBudget(
        f"the network cannot be cut into {stages} subnetworks, one per stage, that train within {size} per rank at a "
        f"batch of {rule.batch_size}: use more stages, a larger budget, or a smaller batch."
    )


def _measured(
    rule: STDL, budget: Budget, stages: int, shards: Shards, work: Sequence[float], recompute: Recompute
) -> Plan:
    """The same for one level, found by arithmetic and confirmed by a measurement of every stage; where a stage takes
    more than was expected, the search is repeated with a budget that is smaller by that."""
    assert budget.size is not None
    with rule.autocast("cpu"), faking():
        apart, limit = Apart(rule, recompute), budget.size
        while True:
            plan = replace(apart.within(limit, stages, work), chunk=rule.plan.chunk)
            with unset_fake_temporarily():
                cut = rule.trial(rule.network, plan)
                found = forecast(cut, stages, rule.steps, sequence=rule.sequence, shards=shards).stages
            excess = max(stage.rank_bytes for stage in found) - budget.size
            if excess <= 0:
                shares = tuple(stage.rank_bytes / budget.size for stage in found)
                note = f"a subnetwork per stage, within {format_bytes(budget.size, budget.binary)} per rank"
                return replace(plan, notes=(note,), byte_shares=shares)
            limit = min(limit - excess, apart.expected(plan) - 1)  # not the same plan again


class Apart(Fitting):
    """The search where every subnetwork is on a rank of its own. To be made and used inside `faking()`."""

    def __init__(self, rule: STDL, recompute: Recompute) -> None:
        given = rule.network, rule.trial, rule.sample, rule.steps, rule.variant, rule.sequence
        super().__init__(*given, binary=rule.budget.binary, recompute=recompute)

    def within(self, limit: int, stages: int, work: Sequence[float]) -> Plan:
        """The best balance of the units' work whose subnetworks keep to the limit, each on its rank."""

        def fits(run: range) -> bool:
            return any(self.alone(part) <= limit for part in self.choices(run))

        return self.plan([self.deepest_alone(run, limit) for run in balanced(work, stages, fits)])

    def deepest_alone(self, run: range, limit: int) -> Part:
        """A run of units with the deepest auxiliary network, of those roughly the largest, that keeps to the limit."""

        def first_that_fits(level: list) -> Part | None:
            parts = (self.part(run, layers) for layers in level[:TRIES_PER_DEPTH])
            return next((part for part in parts if self.alone(part) <= limit), None)

        simplest = next(part for part in self.choices(run) if self.alone(part) <= limit)
        if simplest.auxiliary is None:
            return simplest
        levels = self.search_bytes.by_depth(run.stop - 1)
        return first_that_fits(levels[last_true(levels, lambda level: first_that_fits(level) is not None)]) or simplest

    def expected(self, plan: Plan) -> int:
        """The most bytes that a rank takes, by arithmetic."""
        return max(self.alone(part) for part in plan.parts)

    def alone(self, part: Part) -> int:
        """About the bytes of a rank that trains this subnetwork and no other, with the batches in flight."""
        run, is_last = part.units, part.auxiliary is None
        units = [self.fake.model[number] for number in run] + ([self.fake.model[-1]] if is_last else [])
        received = small_tensor(self.boundaries[run.start]).nbytes * self.T if run.start else 0
        sent = 0 if is_last else small_tensor(self.boundaries[run.stop]).nbytes * self.T
        given = self.y.nbytes if run.start else self.x.nbytes + self.y.nbytes
        step = Step().then(self.profile(part))
        return given + during_step(units, self.optimizers) + step.peak + received + AHEAD * sent

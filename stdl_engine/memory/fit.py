"""A partition for a number of bytes: cut and fill subnetworks by their measured peaks, then check the whole step.

Footprints only guide the search; what decides is the peak of the real training of a subnetwork on fake tensors, plus
what the rest of the network holds meanwhile (its parameters and optimizer state). The whole step is measured at the
end, and should it exceed the budget the search is done again with that much less.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.optim import Optimizer

from ..auxiliary import Search, Variant
from ..budgets import format_bytes
from ..neurons import reset_states
from ..partition import partition_by
from ..rules.base import Rule
from ..stream import subnetwork_major
from ..subnetworks import Network, Part, Plan, build, make_part
from .planner import fake_copy, measure
from .spikes import Kept, keep, small_tensor
from .tracker import Tracker

STEPS_OF_LIMIT_SEARCH = 3
"""Tries at the limit on a subnetwork's own peak that uses the budget best."""

STEPS_OF_AUXILIARY_SEARCH = 6
"""Halvings of the range of footprints that an auxiliary network may have."""


def plan_within_bytes(
    network: Network,
    budget: int,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    batch_size: int,
    T: int,
    variant: Variant,
    *,
    order: str,
    layerwise: bool = False,
) -> Plan:
    """The fewest subnetworks, with the deepest auxiliary networks, whose training step peaks at no more than
    `budget`.
    """
    with unset_fake_temporarily(), FakeTensorMode():
        fitting = _Fitting(network, optimizer, batch_size, T, variant, order)
        return fitting.best(budget, layerwise)


class _Fitting:
    def __init__(self, network: Network, optimizer, batch_size: int, T: int, variant: Variant, order: str) -> None:
        self.network, self.optimizer, self.batch_size, self.T, self.order = network, optimizer, batch_size, T, order
        self.search = Search(network.units, network.shapes, network.memory, variant)
        self.variant = variant
        self.fake = Network.sharing(network, fake_copy(network.model))
        self.labels = torch.empty(batch_size, dtype=torch.int64)
        self._peaks: dict[tuple, int] = {}

    def best(self, budget: int, layerwise: bool) -> Plan:
        """The plan for the highest limit on each subnetwork's own peak that keeps the whole step within budget.

        The two differ by what only the whole plan shows: the parameters of other auxiliary networks, and in
        time-major order the states of other subnetworks.
        """
        with contextlib.suppress(LookupError):
            plan = self.plan(budget, layerwise)
            if self.whole_step(plan) <= budget:
                return plan
        units = range(len(self.network.units))
        low, high = max(self.peak(self.smallest(range(unit, unit + 1))) for unit in units), budget
        best = self.plan(low, layerwise)
        if (needed := self.whole_step(best)) > budget:
            raise ValueError(
                f"no partition of this network trains within {format_bytes(budget)} at a batch of {self.batch_size}: "
                f"the smallest budget that works is {needed} bytes ({format_bytes(needed)})."
            )
        for _ in range(STEPS_OF_LIMIT_SEARCH):
            limit = (low + high) // 2
            plan = self.plan(limit, layerwise)
            if self.whole_step(plan) <= budget:
                low, best = limit, plan
            else:
                high = limit
        return best

    def plan(self, limit: int, layerwise: bool) -> Plan:
        """The fewest subnetworks whose own peaks stay within limit, and the deepest auxiliary networks."""
        count = len(self.network.units)
        if layerwise:
            runs = [range(index, index + 1) for index in range(count)]
        else:
            runs = partition_by(count, lambda run: self.peak(self.smallest(run)) <= limit)
        parts = [self.smallest(run) if run.stop == count else self.deepest(run, limit) for run in runs]
        return Plan(tuple(parts), self.network.total, None, self.network.memory)

    def smallest(self, run: range) -> Part:
        """A run with the least auxiliary network it can have."""
        if run.stop == len(self.network.units):
            return self.part(run, None)
        layers, _ = self.search.best(run.stop - 1, self.search.smallest(run.stop - 1))
        return self.part(run, layers)

    def deepest(self, run: range, limit: int) -> Part:
        """The largest auxiliary network, by halving the footprint it may have, whose subnetwork stays within limit."""
        part = self.smallest(run)
        low, high = self.search.smallest(run.stop - 1), self.network.total
        for _ in range(STEPS_OF_AUXILIARY_SEARCH):
            middle = (low + high) / 2
            candidate = self.part(run, self.search.best(run.stop - 1, middle)[0])
            if self.peak(candidate) <= limit:
                low, part = middle, candidate
            else:
                high = middle
        return part

    def part(self, run: range, layers) -> Part:
        return make_part(self.network, self.search, run, layers)

    def peak(self, part: Part) -> int:
        """Peak bytes while this subnetwork trains, the parameters and optimizer state of the others included."""
        key = (part.units, part.auxiliary)
        if key not in self._peaks:
            rule = self.rule(Plan((part,), 0.0))
            (subnetwork,) = rule.subnetworks
            x = self.boundary(part.units.start)
            tracker = Tracker()
            tracker.follow([self.labels, small_tensor(x), *subnetwork.parameters(), *subnetwork.buffers()])
            with tracker:
                train(rule, [x] * min(self.T, 2))  # from the second step on every step is the same
            own = {id(p): p.nbytes for p in subnetwork.parameters()}
            others = sum(p.nbytes for p in self.fake.model.parameters() if id(p) not in own)
            state = self.state_per_parameter * (sum(own.values()) + others)
            waiting = 0 if part.units.start == 0 else small_tensor(x).nbytes * max(0, self.T - 2)
            self._peaks[key] = tracker.peak + others + int(state) + waiting
        return self._peaks[key]

    @functools.cached_property
    def state_per_parameter(self) -> float:
        """Bytes of optimizer state for each byte of parameters."""
        parameter = nn.Parameter(torch.empty(1000))
        optimizer = self.optimizer([parameter])
        parameter.grad = torch.empty(1000)
        optimizer.step()
        return sum(t.nbytes for t in optimizer.state[parameter].values() if isinstance(t, Tensor)) / parameter.nbytes

    def boundary(self, first: int) -> Kept:
        """What subnetworks that start at this unit are given, in its small form."""
        shape = (self.batch_size, *(self.network.shapes[first - 1] if first else self.network.in_shape))
        if first == 0:
            return torch.empty(shape)
        unit = self.fake.model[first - 1]
        before = (self.batch_size, *(self.network.shapes[first - 2] if first > 1 else self.network.in_shape))
        with torch.no_grad():
            output = unit(torch.empty(before))
            reset_states(unit)
        return keep(output) if self.network.memory == "lean" else output

    def rule(self, plan: Plan) -> Rule:
        rule = _Planned.__new__(_Planned)
        rule.variant = self.variant
        Rule.__init__(
            rule, self.fake.model, self.optimizer, torch.empty(self.batch_size, *self.network.in_shape),
            memory=self.network.memory, order=self.order, plan=plan, network=self.fake,
        )  # fmt: skip
        rule.labels = self.labels
        return rule

    def whole_step(self, plan: Plan) -> int:
        """Peak bytes of a training step with this plan."""
        key = tuple((part.units, part.auxiliary) for part in plan.parts)
        if key not in self._peaks:
            self._peaks[key] = self.measured(plan)
        return self._peaks[key]

    def measured(self, plan: Plan) -> int:
        x = torch.empty(self.batch_size, *self.network.in_shape)
        return measure(self.rule(plan), x, self.labels, self.T).peak_bytes


class _Planned(Rule):
    """A rule whose plan is given."""

    def build_subnetworks(self):
        return build(self.network, self.plan, self.variant)


def train(rule: Rule, frames: list) -> None:
    """Train the subnetworks of a rule on these inputs, outside of `step`, which takes only the network's own."""
    rule._start(rule.labels, len(frames))
    subnetwork_major(rule.subnetworks, frames, rule.learn, rule.finish)

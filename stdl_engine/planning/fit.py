"""A partition for a budget in bytes: the fewest subnetworks, then the deepest auxiliary networks, that keep to it.

What a subnetwork takes is not modelled: its real training runs alone on fake tensors, and the tracker says how much it
needs at most and how much it leaves behind. The peak of a step of any plan follows from those numbers, to the byte, so
partitions are compared by arithmetic. At the end the whole step of the chosen plan is measured. Should it exceed the
budget, the search is repeated with a budget that is smaller by the excess.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.optim import Optimizer

from ..memory.spikes import Kept, keep, small_tensor
from ..memory.tracker import Tracker
from ..neurons import borrowed
from ..units import shapes_only
from .auxiliary import Layer, Search, Shape, Variant, fitted
from .budgets import OverBudget
from .fake import faking
from .levels import Levels
from .network import Network
from .plan import Part, Plan, Recompute, make_part
from .planner import Trainable
from .profile import Profile, Step
from .trials import Trial, Trials

TRIES_PER_DEPTH = 4
"""Auxiliary networks of one depth that are tried, cheapest first, before that depth is given up."""


def plan_within_bytes(
    network: Network,
    budget: int,
    trial: Trial,
    sample: Tensor,
    T: int,
    variant: Variant,
    *,
    layerwise: bool = False,
    sequence: bool = False,
    binary: bool = False,
    recompute: Recompute = Recompute(),  # noqa: B008 - immutable
    choose: bool = False,
) -> Plan:
    """The fewest subnetworks, with the deepest auxiliary networks, whose training step peaks at no more than `budget`
    bytes, under the autocast in force.

    Pieces run again as `recompute` says. If that is left to choose, they do where it allows fewer subnetworks, and as
    few of them as possible.

    As in Algorithm 1 earlier subnetworks are the longer ones, and auxiliary networks grow in order. `trial` makes the
    rule whose steps are measured, on batches like `sample`, a fake tensor. With `sequence` the input is T different
    frames. With `binary` the plan is printed in GiB, otherwise in GB.
    """
    with unset_fake_temporarily(), faking():
        given = network, trial, sample, T, variant, sequence, binary
        if not choose:
            return Fitting(*given, recompute).best(budget, layerwise)
        plain = None
        with contextlib.suppress(OverBudget):
            plain = Fitting(*given).best(budget, layerwise)
        if plain is not None and len(plain.parts) == 1:
            return plain
        recomputing = Fitting(*given, Recompute(default=1))
        fewer = recomputing.fewest(budget, layerwise)
        if plain is not None and (fewer is None or len(fewer) >= len(plain.parts)):
            return plain
        plan = recomputing.best(budget, layerwise)
        plain = replace(plan, recompute=Recompute())
        return Levels(network, plain, trial, sample, T, sequence=sequence, binary=binary).within(budget)


class Fitting(Trials):
    """The search for one network, batch and number of time steps."""

    def __init__(
        self, network: Network, trial: Trial, sample: Tensor, T: int, variant: Variant, sequence: bool = False,
        binary: bool = False, recompute: Recompute = Recompute(),  # noqa: B008 - immutable
    ) -> None:  # fmt: skip
        super().__init__(network, trial, sample, T, sequence=sequence, binary=binary)
        self.variant, self.recompute, self.count = variant, recompute, len(network.units)
        self.search = Search(network.units, network.shapes, network.memory, variant)
        self._profiles: dict[tuple, Profile] = {}
        self._choices: dict[range, list[Part]] = {}
        whole = self.rule(Plan((make_part(network, self.search, range(self.count), None),), 0.0))
        self.order, self.optimizers = whole.order, whole.optimizers
        self.base = self.x.nbytes + self.y.nbytes + during_step(whole.subnetworks, whole.optimizers)
        self.boundaries = self.make_boundaries()
        parameters = size(network.model.parameters())
        per_parameter = 2 + size(states(self.fake.model.parameters(), whole.optimizers)) / parameters
        self.search_bytes = _SearchBytes(network, variant, len(sample) * self.frame.itemsize, per_parameter)

    def best(self, budget: int, layerwise: bool = False) -> Plan:
        """The plan for a budget; if there is none, raises ValueError, which names the smallest budget that has one."""

        def within(limit: int) -> Plan | None:
            parts = self.fewest(limit, layerwise)
            return None if parts is None else self.plan(self.deepened(parts, limit))

        trouble = f"no partition of this network trains within {self.words(budget)} at a batch of {len(self.y)}"
        return self.first_within(budget, within, lambda: self.plan(self.smallest_parts(layerwise)), trouble)

    def plan(self, parts: Sequence[Part]) -> Plan:
        return Plan(tuple(parts), self.network.total, None, self.network.memory, self.variant, self.recompute)

    def fewest(self, limit: float, layerwise: bool = False) -> list[Part] | None:
        """The fewest subnetworks that train within the limit, with auxiliary networks of one layer; None if none do."""
        failed: dict[tuple[int, int], list[Step]] = {}
        numbers = [self.count] if layerwise else range(1, self.count + 1)
        return next((parts for n in numbers if (parts := self.cut(0, n, Step(), limit, failed)) is not None), None)

    def cut(self, first: int, number: int, before: Step, limit: float, failed: dict) -> list[Part] | None:
        """Units from `first` on as this many subnetworks, the earlier as long as possible, after those before them."""
        if number == 0:
            return [] if first == self.count else None
        dead_ends = failed.setdefault((first, number), [])
        if any(other.takes_no_more_than(before) for other in dead_ends):
            return None
        if number == 1:
            runs = [range(first, self.count)]
        else:
            runs = [run for run in self.runs_from(first, limit) if run.stop <= self.count - number + 1]
        for part in (part for run in reversed(runs) for part in self.choices(run)):
            step = before.then(self.profile(part))
            if self.base + step.peak <= limit:
                rest = self.cut(part.units.stop, number - 1, step, limit, failed)
                if rest is not None:
                    return [part, *rest]
        dead_ends.append(before)
        return None

    def runs_from(self, first: int, limit: float) -> Iterator[range]:
        """Runs that start at a unit and have an auxiliary network, shortest first, until the units alone do not fit."""
        for stop in range(first + 1, self.count):
            run = range(first, stop)
            yield run
            if self.base + self.profile(self.choices(run)[0]).units > limit:
                return

    def smallest_parts(self, layerwise: bool) -> list[Part]:
        """The partition that takes the fewest bytes of all; auxiliary networks are exchanged while that helps."""
        limit, parts = float("inf"), []
        while (smaller := self.fewest(limit, layerwise)) is not None:
            parts, limit = smaller, self.predicted(smaller) - 1
        for place in range(len(parts) - 1):
            for layers in self.search_bytes.by_depth(parts[place].units.stop - 1)[0]:
                others = self.exchanged(parts, place, layers)
                if self.predicted(others) <= limit:
                    parts, limit = others, self.predicted(others) - 1
        return parts

    def deepened(self, parts: list[Part], limit: float) -> list[Part]:
        """These parts with auxiliary networks made deeper, then larger, one after the other, while the step stays
        within the limit."""
        for place in range(len(parts) - 1):
            parts = self.deepest(parts, place, limit)
        return parts

    def deepest(self, parts: list[Part], place: int, limit: float) -> list[Part]:
        """The same for one of the parts."""

        def fits(layers: list[Layer]) -> bool:
            return self.predicted(self.exchanged(parts, place, layers)) <= limit

        def first_that_fits(level: list[list[Layer]]) -> int | None:
            return next((number for number, layers in enumerate(level[:TRIES_PER_DEPTH]) if fits(layers)), None)

        levels = self.search_bytes.by_depth(parts[place].units.stop - 1)
        level = levels[last_true(levels, lambda level: first_that_fits(level) is not None)]
        number = first_that_fits(level) or 0
        if self.variant.prefer != "depth":
            number += last_true(level[number:], fits)
        return self.exchanged(parts, place, level[number])

    def exchanged(self, parts: list[Part], place: int, layers: list[Layer]) -> list[Part]:
        """The parts with another auxiliary network for one of them."""
        return [*parts[:place], self.part(parts[place].units, layers), *parts[place + 1 :]]

    def choices(self, run: range) -> list[Part]:
        """A run with each auxiliary network of one layer that is worth trying, roughly cheapest first, or with the
        head.

        None of them is worse than another in every respect: one may hold fewer parameters where another needs less
        memory while it runs.
        """
        if run not in self._choices:
            chains = [None] if run.stop == self.count else self.search_bytes.by_depth(run.stop - 1)[0][:TRIES_PER_DEPTH]
            parts = [self.part(run, layers) for layers in chains]
            steps = [Step().then(self.profile(part)) for part in parts]
            worse = {
                j for (i, one), (j, other) in itertools.permutations(enumerate(steps), 2)
                if one.takes_no_more_than(other) and (one != other or i < j)
            }  # fmt: skip
            self._choices[run] = [part for number, part in enumerate(parts) if number not in worse]
        return self._choices[run]

    def part(self, run: range, layers: Sequence[Layer] | None) -> Part:
        return make_part(self.network, self.search, run, layers)

    def predicted(self, parts: Iterable[Part]) -> int:
        """Peak bytes of a training step with these parts."""
        step = Step()
        for part in parts:
            step = step.then(self.profile(part))
        return self.base + step.peak

    def profile(self, part: Part) -> Profile:
        """What a subnetwork takes, measured over two time steps: from the second one on all steps are the same."""
        key = (part.units, part.auxiliary)
        if key not in self._profiles:
            self._profiles[key] = self.profiled(part)
        return self._profiles[key]

    def profiled(self, part: Part) -> Profile:
        rule = self.rule(replace(self.plan([part]), total=0.0))
        (subnetwork,) = rule.subnetworks
        x = self.boundaries[part.units.start]
        tracker = Tracker()
        tracker.follow([self.x, self.y, small_tensor(x), *held([subnetwork], rule.optimizers)])
        start, peaks = tracker.current, []
        flow = rule.flow(subnetwork)
        behind_units = {stage.name for stage in flow.stages[flow.boundary :]}
        until_units_end: list[int] = []

        def note_end(tracker: Tracker) -> None:
            """A longer run needs at least what these units need before there are gradients and auxiliary states."""
            if not until_units_end and tracker.place.unit in behind_units:
                until_units_end.append(tracker.peak - start)

        tracker.on_change = note_end
        with rule.started(self.y, self.T, still=x if self.x is x else None), tracker:
            for t in range(min(self.T, 2)):
                tracker.peak = tracker.current
                output = small_tensor(rule.learn(subnetwork, t, x)).nbytes
                peaks.append(tracker.peak - start)
            between_steps = tracker.current - start
            tracker.peak = tracker.current
            rule.finish(subnetwork)
            finish, left = tracker.peak - start, tracker.current - start
        is_last = part.auxiliary is None
        auxiliary = 0 if is_last else during_step([subnetwork.classifier], rule.optimizers)
        taken = small_tensor(x).nbytes if part.units.start else 0  # the network's own input is alive anyway
        units = until_units_end[0] + taken
        if self.order == "subnetwork":  # it runs alone; inputs not yet read and outputs made so far wait
            waiting = [taken * (self.T - t) + output * t for t in range(self.T + 1)]
            steps = [peaks[min(t, 1)] + waiting[t] for t in range(self.T)]
            return Profile(auxiliary, units, max(*steps, finish + waiting[-1]), stays=left, left=left)
        later = peaks[1] + taken - between_steps if self.T > 1 else 0
        at_end = output if is_last else 0
        return Profile(auxiliary, units, peaks[0] + taken, later, finish, between_steps, left, at_end)

    def make_boundaries(self) -> list[Kept]:
        """For each unit, the input of a subnetwork that starts there, in the form it is kept in."""
        x = self.frame
        boundaries: list[Kept] = [x]
        memory = self.network.memory
        with torch.no_grad(), borrowed(self.fake.model.modules(), training=True, online=True, memory=memory):
            for unit in list(self.fake.model)[:-2]:
                x = unit(x)
                boundaries.append(keep(x) if memory == "lean" else x)
        torch.clear_autocast_cache()  # else the next measurement would miss its cached low-precision weights
        return boundaries

    def rule(self, plan: Plan) -> Trainable:
        """A rule that trains these parts, whose optimizers already have their state."""
        rule = super().rule(plan)
        give_states(rule.optimizers)
        return rule


class _SearchBytes(Search):
    """The search for auxiliary networks where a layer's cost is about the bytes it will take, with its parameters."""

    def __init__(self, network: Network, variant: Variant, per_element: float, per_parameter: float) -> None:
        super().__init__(network.units, network.shapes, network.memory, variant)
        self.per_element, self.per_parameter = per_element, per_parameter
        self._bytes: dict[tuple, float] = {}
        self._levels: dict[int, list[list[list[Layer]]]] = {}

    def cost(self, index: int, in_shape: Shape) -> float:
        key = (self._kinds[index], self.shapes[index], in_shape)
        if key not in self._bytes:
            layer = fitted(self.units[index], index, self.shapes[index], in_shape)
            with shapes_only():
                parameters = size(p for module in self._modules(layer, in_shape) for p in module.parameters())
            activations = super().cost(index, in_shape) * self.per_element
            self._bytes[key] = activations + parameters * self.per_parameter
        return self._bytes[key]

    def by_depth(self, last: int) -> list[list[list[Layer]]]:
        """The auxiliary networks after unit `last` by number of layers, cheapest first, one of each cost."""
        if last not in self._levels:
            levels: list[list[list[Layer]]] = []
            choices: dict = {last: {0.0: ()}}
            while len(levels) != self.variant.max_depth and (choices := self._one_deeper(choices, float("inf"))):
                one_of_each = {total: path for ending in choices.values() for total, path in ending.items()}
                levels.append([self.layers(last, path) for _, path in sorted(one_of_each.items())])
            self._levels[last] = levels or [[[]]]  # a variant may allow the classifier alone
        return self._levels[last]

    def layers(self, last: int, path: Iterable[int]) -> list[Layer]:
        """Units, given by number, as auxiliary layers after unit `last`."""
        layers, shape = [], self.shapes[last]
        for index in path:
            layers.append(fitted(self.units[index], index, self.shapes[index], shape))
            shape = self.shapes[index]
        return layers


def last_true(items: Sequence[Any], test: Callable[[Any], bool]) -> int:
    """The index of the last item that passes, by bisection: the first items pass and the others do not."""
    low, high = 0, len(items)  # the first is assumed to pass
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if test(items[middle]) else (low, middle)
    return low


def held(modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Bytes that modules hold between training steps: parameters, buffers and their optimizer state."""
    tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    return [*tensors, *states(tensors, optimizers)]


def give_states(optimizers: Iterable[Optimizer]) -> None:
    """Have optimizers of fake parameters make their state, as their first step does."""
    for optimizer in optimizers:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def during_step(modules: Sequence[nn.Module], optimizers: Iterable[Optimizer]) -> int:
    """Bytes that modules hold throughout a training step: the same, but buffers twice, because a step that fails
    restores the old ones."""
    return size(held(modules, optimizers)) + size(b for module in modules for b in module.buffers())


def states(parameters: Iterable[Tensor], optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Bytes that optimizers hold for parameters."""
    entries = [o.state.get(p, {}) for o in optimizers for p in parameters]
    return [t for entry in entries for t in entry.values() if isinstance(t, Tensor)]


def size(tensors: Iterable[Tensor]) -> int:
    """Their bytes."""
    return sum(t.nbytes for t in tensors)

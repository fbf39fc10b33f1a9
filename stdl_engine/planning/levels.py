"""Which pieces run again in backward: among the choices whose training step fits a budget, one of least cost in time.

The step is traced on fake tensors, once for each level with every stage at that level. A trace says what each stage
adds to what is kept for backward, and how far memory rises above that while the stage runs. What a mixture of levels
takes follows by addition, so the cheapest mixture that fits is found stage by stage, weighing what is saved so far
against what it costs. The step of that mixture is then measured. Should it exceed the budget, the search is repeated
with a budget that is smaller by the excess.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..memory.tracker import Event
from .budgets import OverBudget
from .fake import faking
from .network import Network
from .plan import Plan, Recompute, StageKey
from .planner import traced_step
from .trials import Trial, Trials
from .work import Work


def recompute_within(
    network: Network,
    plan: Plan,
    budget: int,
    trial: Trial,
    sample: Tensor,
    T: int,
    *,
    sequence: bool,
    binary: bool,
    choose: bool,
) -> Plan:
    """A plan whose training step peaks at no more than `budget` bytes, under the autocast in force: the given plan if
    it fits, otherwise, where recomputation may be chosen, the plan with the pieces run again that cost least. `trial`
    makes the rule that is measured. With `binary` the plan is printed in GiB, otherwise in GB."""
    with unset_fake_temporarily(), faking():
        levels = Levels(network, plan, trial, sample, T, sequence=sequence, binary=binary)
        return levels.within(budget) if choose else levels.checked(budget)


@dataclass(frozen=True)
class StageBytes:
    """What one stage takes, with all stages at one level: what it keeps for backward, and the most that is alive while
    it runs, forward or backward."""

    kept: int
    peak: int


@dataclass(frozen=True)
class Mixture:
    """Levels for the first stages of a subnetwork, with what they save against keeping every graph, and what they cost
    in multiply-adds."""

    saved: int = 0
    cost: int = 0
    levels: tuple[int, ...] = ()


class Levels(Trials):
    """The choice for one plan of a rule, one batch and one number of time steps. To be made inside `faking()`."""

    def __init__(
        self,
        network: Network,
        plan: Plan,
        trial: Trial,
        sample: Tensor,
        T: int,
        *,
        sequence: bool,
        binary: bool = False,
    ) -> None:
        super().__init__(network, trial, sample, T, sequence=sequence, binary=binary)
        self.plan = plan
        rule = self.rule(self.with_levels(Recompute()))
        self.deepest = 1 if rule.online else 2
        self.work = Work.of(rule.subnetworks, rule.flow, self.frame)
        self._traces: dict[tuple[int, int | None], tuple[dict[int, int], dict[StageKey, StageBytes]]] = {}

    def checked(self, budget: int) -> Plan:
        """The plan as it is; raises OverBudget if it takes more than the budget."""
        step = self.whole_step(self.plan)
        if step.peak_bytes > budget:
            raise OverBudget(
                f"a training step takes {self.words(step.peak_bytes)} ({step.peak_bytes} bytes) at a batch of "
                f"{len(self.y)} and {self.T} time steps, and the budget is {self.words(budget)}: let pieces run again "
                '(recompute="auto"), or take a smaller batch.',
                step.peak_bytes,
            )
        return self.noted(self.plan, step, budget)

    def within(self, budget: int) -> Plan:
        """The plan with the cheapest recomputation that fits; raises OverBudget if none does."""
        step = self.whole_step(self.plan)
        if step.peak_bytes <= budget:
            return self.noted(self.plan, step, budget)

        def cheapest(limit: int) -> Plan | None:
            recompute = self.cheapest(limit)
            return None if recompute is None else self.with_levels(recompute)

        trouble = (
            f"a training step takes more than {self.words(budget)} at a batch of {len(self.y)} and {self.T} time "
            "steps, even if every piece runs again"
        )
        return self.first_within(budget, cheapest, lambda: self.with_levels(self.everything(self.deepest)), trouble)

    def cheapest(self, limit: int) -> Recompute | None:
        """The choice that costs least, by addition, with backward in one segment of time or in several."""
        found = [self.mixture(limit, None, range(self.deepest + 1))]
        segment = self.network.segment_for(self.T)
        if self.deepest == 2 and segment < self.T:
            found.append(self.mixture(limit, segment, (1, 2)))
        return min(filter(None, found), key=self.work.again, default=None)

    def mixture(self, limit: int, segment: int | None, levels: Sequence[int]) -> Recompute | None:
        """The cheapest mixture of some levels for which no stage rises above the limit; None if there is none."""
        traces = {level: self.trace(level, segment) for level in levels}
        chosen: dict[StageKey, int] = {}
        for number in range(len(self.plan.parts)):
            names = [name for part, name in self.work.stages if part == number]
            mixtures = [Mixture()]
            held = dict.fromkeys(levels, 0)
            for name in names:
                stages = {level: traces[level][1][number, name] for level in levels}
                base = {level: traces[level][0][number] + held[level] for level in levels}
                least = levels[0]
                mixtures = _undominated(
                    Mixture(
                        mixture.saved + stages[least].kept - stage.kept,
                        mixture.cost + level * self.work.stages[number, name],
                        (*mixture.levels, level),
                    )
                    for mixture in mixtures
                    for level, stage in stages.items()
                    if base[least] - mixture.saved + stage.peak - base[level] <= limit
                    and (level or any(mixture.levels) or name != names[-1])  # otherwise it would not be a mixture
                )
                for level, stage in stages.items():
                    held[level] += stage.kept
            if not mixtures:
                return None
            best = min(mixtures, key=lambda mixture: mixture.cost)
            chosen |= {(number, name): level for name, level in zip(names, best.levels, strict=True) if level}
        return Recompute(chosen, segment=segment)

    def everything(self, level: int) -> Recompute:
        """Every stage at one level. At level 0 each subnetwork's classifier, which costs little, still runs again, so
        that stages run as they do in mixtures."""
        lasts = dict(self.work.stages.keys())
        levels = {key: max(level, int(lasts[key[0]] == key[1])) for key in self.work.stages}
        return Recompute(levels, segment=self.network.segment_for(self.T) if level == 2 else None)

    def trace(self, level: int, segment: int | None) -> tuple[dict[int, int], dict[StageKey, StageBytes]]:
        """With every stage at one level: for each subnetwork what is alive before its last time step runs (through
        time, before all of them), and for each stage what it takes."""
        if (level, segment) not in self._traces:
            rule = self.rule(self.with_levels(replace(self.everything(level), segment=segment)))
            events = traced_step(rule, self.x, self.y, self.T)
            self._traces[level, segment] = _by_stage(events, None if self.deepest == 2 else self.T - 1)
        return self._traces[level, segment]

    def with_levels(self, recompute: Recompute) -> Plan:
        return replace(self.plan, recompute=recompute)


def _by_stage(events: Sequence[Event], step: int | None) -> tuple[dict[int, int], dict[StageKey, StageBytes]]:
    """For one time step, or for all: bytes alive before each subnetwork's stages, and what each stage takes."""
    base: dict[int, int] = {}
    kept: dict[StageKey, int] = defaultdict(int)
    peak: dict[StageKey, int] = defaultdict(int)
    before = 0
    for place, group in itertools.groupby(events, key=lambda event: event.place):
        sizes = [event.bytes for event in group]
        if place.unit is not None and place.subnetwork is not None and step in (None, place.step):
            key = place.subnetwork, place.unit
            base.setdefault(place.subnetwork, before)
            peak[key] = max(peak[key], before, *sizes)
            if place.phase == "forward":
                kept[key] += sizes[-1] - before
        before = sizes[-1]
    return base, {key: StageBytes(kept[key], peak[key]) for key in peak}


def _undominated(mixtures: Iterable[Mixture]) -> list[Mixture]:
    """Those that no other beats in both respects."""
    found: list[Mixture] = []
    for mixture in sorted(mixtures, key=lambda m: (m.cost, -m.saved)):
        if not found or mixture.saved > found[-1].saved:
            found.append(mixture)
    return found

"""What each rank will need, send and compute, before there are any ranks: the real training step of every stage on fake
tensors. With a budget in bytes it decides which subnetworks go onto which stage.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory.chunks import in_chunks
from ..memory.spikes import Kept, restore
from ..memory.tracker import Tracker
from ..planning.budgets import Budget, OverBudget, format_bytes
from ..planning.fake import fake_like, faking
from ..planning.fit import give_states, held
from ..planning.subnetworks import Subnetwork
from ..planning.work import Work
from ..rules import Rule
from ..rules.batch import split_frames
from .balance import balanced, counted_work, work_by_subnetwork
from .gradients import SharedGradients
from .links import Message, header_bytes
from .norm import synchronised
from .peers import AbsentPeers
from .stage import train_stage, training_message
from .wire import Wire, decode, decoded, payload_bytes

CPU = torch.device("cpu")
AHEAD = 2
"""How many batches may wait to be sent, unless something else is asked for."""


@dataclass(frozen=True)
class Shards:
    """How many ranks share each batch, and whether they compute batch norm together."""

    count: int = 1
    sync_norm: bool = False


ALONE = Shards()


@dataclass(frozen=True)
class StageForecast:
    """One stage, on each of the ranks that have it.

    Attributes:
        subnetworks: which ones, from 0.
        units, auxiliary: the names of their layers.
        peak_bytes: of a training step: weights, optimizer, its input, and all that it computes and exchanges.
        in_flight_bytes: at most, of batches that wait to be sent or were received ahead, with a header on each side.
        work: the share of all multiply-adds.
        parameters: trained here, and exchanged where several ranks share a batch.
        sent_bytes: to the next stage per batch, labels and losses included.
        header_bytes: sent with them.
        dense_bytes: the same maps in float32.
    """

    subnetworks: range
    units: list[str]
    auxiliary: list[str]
    peak_bytes: int
    in_flight_bytes: int
    work: float
    parameters: int
    sent_bytes: int
    header_bytes: int
    dense_bytes: int

    @property
    def rank_bytes(self) -> int:
        """The most that it takes on a rank, and what a budget in bytes limits: the peak, and what is in flight."""
        return self.peak_bytes + self.in_flight_bytes

    @property
    def bptt_bytes(self) -> int:
        """What a pipeline with BPTT would send over the same boundary: maps forward and their gradients back, in
        float32."""
        return 2 * self.dense_bytes


@dataclass(frozen=True)
class Forecast:
    """All stages of a rule. `multiply_adds` are those of a training step on one rank's batch."""

    stages: list[StageForecast]
    multiply_adds: float

    @property
    def runs(self) -> list[range]:
        """The subnetworks of each stage."""
        return [stage.subnetworks for stage in self.stages]

    @property
    def speedup(self) -> float:
        """The speed-up of this many stages over one rank, if only the work of the slowest stage counted."""
        return 1 / max(stage.work for stage in self.stages)


def stages_of(
    rule: Rule, stages: int, *, work: Sequence[float] | None = None, ahead: int = AHEAD, shards: Shards = ALONE
) -> Sequence[range]:
    """The subnetworks of each stage: among the ways that keep to the rule's budget in bytes on every rank, if it has
    one, that whose slowest stage has the least work."""
    if stages > 1 and _limit(rule) is not None:
        return forecast(rule, stages, rule.steps, sequence=rule.sequence, work=work, ahead=ahead, shards=shards).runs
    return balanced(counted_work(rule) if work is None else list(work), stages)


def forecast(
    rule: Rule, stages: int, T: int, *, sequence: bool = False, work: Sequence[float] | None = None,
    ahead: int = AHEAD, shards: Shards = ALONE,
) -> Forecast:  # fmt: skip
    """What the stages of a rule need for a batch like its sample, which is the part of one rank if several share it.
    The model is not touched. `work` is that of each subnetwork, if it was measured. Where the rule has a budget in
    bytes every stage keeps to it; if that cannot be, OverBudget is raised."""
    with faking():
        trials = StageTrials(rule, T, sequence=sequence, ahead=ahead, shards=shards)
        share = trials.work if work is None else list(work)
        limit = _limit(rule)
        runs = balanced(share, stages)
        if limit is not None and stages > 1:
            runs = _within(limit, runs, share, trials)
        return Forecast([trials.stage(run) for run in runs], sum(trials.work) * rule.batch_size * T)


def _limit(rule: Rule) -> Budget | None:
    return rule.budget if rule.budget is not None and rule.budget.size is not None else None


def _within(budget: Budget, runs: list[range], work: Sequence[float], trials: StageTrials) -> list[range]:
    """The best balance whose stages keep to the budget. Runs are measured when a balance proposes them: those that do
    not fit are left out of the next one."""
    assert budget.size is not None
    limit, stages = budget.size, len(runs)
    too_large: set[range] = set()
    tried: list[list[range]] = []

    def may_fit(run: range) -> bool:
        """A run takes at least the peak of any part of it."""
        within = (other for other in too_large if run.start <= other.start and other.stop <= run.stop)
        return not any(other == run or trials.stage(other).peak_bytes > limit for other in within)

    while over := [run for run in runs if trials.stage(run).rank_bytes > limit]:
        too_large.update(over)
        tried.append(runs)
        try:
            runs = balanced(work, stages, may_fit)
        except OverBudget:
            nearest = min(tried, key=lambda way: max(trials.stage(run).rank_bytes for run in way))
            raise OverBudget(_too_much(budget, [trials.stage(run) for run in nearest], len(tried))) from None
    return runs


def _too_much(budget: Budget, stages: Sequence[StageForecast], ways: int) -> str:
    """Which stages exceed the budget, and by how much."""
    assert budget.size is not None

    def words(size: int) -> str:
        return format_bytes(size, budget.binary)

    excesses, remedy = [], "use more stages, or a larger budget"
    for number, stage in enumerate(stages, 1):
        if (excess := stage.rank_bytes - budget.size) > 0:
            flight = f", {words(stage.in_flight_bytes)} of it in flight" if stage.in_flight_bytes else ""
            taken = f"{words(stage.rank_bytes)}{flight}, which is {words(excess)} too much"
            excesses.append(f"stage {number} ({stage_name(stage.subnetworks)}) takes {taken}")
            if len(stage.subnetworks) == 1:
                remedy = "use a larger budget, or a smaller batch"  # a single subnetwork cannot be spread
    tried = "the way that was tried" if ways == 1 else f"the best of {ways} ways that were tried"
    return (
        f"the subnetworks do not fit onto {len(stages)} stages within {words(budget.size)} per rank: in {tried} "
        f"{' and '.join(excesses)}: {remedy}."
    )


def stage_name(run: range) -> str:
    """The subnetworks of a stage for people, counted from 1."""
    return f"subnetwork {run.stop}" if len(run) == 1 else f"subnetworks {run.start + 1} to {run.stop}"


class StageTrials:
    """The training steps of stages on fake tensors, each measured once. To be used inside `faking()`."""

    def __init__(
        self, rule: Rule, T: int, *, sequence: bool = False, ahead: int = AHEAD, shards: Shards = ALONE
    ) -> None:
        self.rule, self.T, self.ahead = rule.without_numbers(), T, ahead
        peers = AbsentPeers(shards.count)
        if shards.count > 1:
            self.rule.exchange = SharedGradients(self.rule, peers)
        self.norms_over = peers if shards.count > 1 and shards.sync_norm else None
        self.rule.device = CPU  # fake tensors are there, whatever the device of the real ones, and so is their autocast
        frame = fake_like(rule.sample)
        self.work = work_by_subnetwork(Work.of(self.rule.subnetworks, self.rule.flow, frame), rule.plan)
        self.x = torch.empty(T, *frame.shape, dtype=frame.dtype) if sequence else frame
        self.y = torch.empty(len(frame), dtype=torch.int64)
        give_states(self.rule.optimizers)
        self._stages: dict[range, StageForecast] = {}
        self._messages: dict[int, Message | None] = {0: None}
        """What a stage that starts at each subnetwork receives."""

    def stage(self, run: range) -> StageForecast:
        """What a run of subnetworks takes as a stage."""
        if run not in self._stages:
            self._stages[run] = self._measured(run)
        return self._stages[run]

    def _received(self, start: int) -> tuple[list[Wire], int]:
        """What the stage before sends, and the bytes of its header. Each use has tensors of its own, which are freed as
        on a rank."""
        if start not in self._messages:
            self.stage(range(start - 1, start))
        message = self._messages[start]
        if message is None:
            return [], 0
        return [Wire(torch.empty_like(wire.payload), wire.meta) for wire in message.wires], header_bytes(message)

    def _norms(self, parts: Sequence[Subnetwork]) -> contextlib.AbstractContextManager[None]:
        """Inside, batch norm is computed as on ranks."""
        if self.norms_over is None:
            return contextlib.nullcontext()
        return synchronised((module for part in parts for module in part.modules()), self.norms_over)

    def _measured(self, run: range) -> StageForecast:
        rule, parts = self.rule, self.rule.subnetworks[run.start : run.stop]
        wires, received_header = self._received(run.start)
        received_bytes = payload_bytes(wires) + received_header
        tracker = Tracker()
        tracker.follow(held(parts, rule.optimizers))
        tracker.follow([wire.payload for wire in wires] if wires else [self.x, self.y])
        with tracker:
            if wires:
                labels, earlier, *maps = wires
                y, losses = _tensor(labels), list(_tensor(earlier))
                frames: Iterable[Kept] = decoded(maps, CPU)
                del wires, maps
            else:
                y, losses = self.y, []
                frames = in_chunks(split_frames(self.x, self.T, rule.network.in_shape), rule.plan.chunk)
            with self._norms(parts):
                sent, own, _ = train_stage(rule, parts, frames, y, self.T)
        message = None if parts[-1].is_last else training_message(y, sent, [*losses, *own], self.T)
        sent_bytes, header = (0, 0) if message is None else (payload_bytes(message.wires), header_bytes(message))
        self._messages[run.stop] = message
        planned = rule.plan.parts[run.start : run.stop]
        return StageForecast(
            run,
            [name for part in planned for name in part.names],
            [name for part in planned for name in part.auxiliary_names],
            tracker.peak,
            received_bytes + self.ahead * sent_bytes + header,
            sum(self.work[run.start : run.stop]) / sum(self.work),
            sum(p.numel() for part in parts for p in part.parameters() if p.requires_grad),
            sent_bytes,
            header,
            sum(math.prod(wire.meta["shape"]) * torch.float32.itemsize for wire in sent),
        )


def _tensor(wire: Wire) -> Tensor:
    return restore(decode(wire.payload, wire.meta, CPU))

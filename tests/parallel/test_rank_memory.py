"""A budget in bytes on every rank: what was predicted is what a rank takes, and stages are balanced among what fits."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from torch import Tensor

from stdl_engine.memory.tracker import Tracker
from stdl_engine.parallel import ParallelRule, Ranks
from stdl_engine.parallel import rule as parallel_rule
from stdl_engine.parallel.forecast import Shards, StageTrials, forecast, stages_of
from stdl_engine.parallel.links import CLOSED, Message, header_bytes
from stdl_engine.parallel.peers import GroupPeers, Pending
from stdl_engine.planning.budgets import OverBudget, parse_budget
from stdl_engine.planning.fake import faking
from stdl_engine.planning.fit import held
from stdl_engine.rules import Rule

from ..rules.nets import batch, make, small
from .processes import run
from .test_stages import CASES, build, steps

BATCHES = 3


class Settled(GroupPeers):
    """gloo's threads hold on to a tensor until a moment after its exchange has ended, however long the machine lets
    them. What gloo holds is not counted, so that moment is waited for."""

    def begin_sum(self, values: Tensor) -> Settling:
        users = values._use_count()
        return Settling(super().begin_sum(values), values, users)

    def gathered(self, values: Tensor) -> list[Tensor]:
        users = values._use_count()
        parts = super().gathered(values)
        for part in parts:
            wait_for_gloo(part, torch.empty_like(part)._use_count())
        wait_for_gloo(values, users)
        return parts


class Settling:
    def __init__(self, pending: Pending, values: Tensor, users: int) -> None:
        self.pending, self.values, self.users = pending, values, users

    def wait(self) -> None:
        self.pending.wait()
        self.pending = None
        wait_for_gloo(self.values, self.users)


def wait_for_gloo(tensor: Tensor, users: int) -> None:
    """Returns when a tensor has no more users than before an exchange; if that never comes, its test fails anyway."""
    deadline = time.monotonic() + 5
    while tensor._use_count() > users and time.monotonic() < deadline:
        time.sleep(0)


def measured_on(stages: int, cases: list[str], sync_norm: bool = False) -> dict:
    """What this rank takes in the last training step of each case, and what it sends in all. Ranks that share batches
    are given the same samples, as only sizes count."""
    found = {}
    parallel_rule.GroupPeers = Settled
    ranks = Ranks(stages)
    for case in cases:
        built, data = build(*CASES[case])
        rule, T = ParallelRule(built, ranks, sync_norm=sync_norm), steps(CASES[case][2])
        for number, given in enumerate(data[:BATCHES]):
            x, y = given if ranks.is_first else (None, None)
            tracker = Tracker()
            if not ranks.is_first:
                assert rule.has_more()
            if number == BATCHES - 1:
                tracker.follow([*held(rule.mine, built.optimizers), *([x, y] if ranks.is_first else rule.received)])
                with tracker:
                    rule.step(x, y, T)
            else:
                rule.step(x, y, T)
        sent = rule.traffic["sent"] if not ranks.is_last else None
        rule.close()
        found[case] = {"peak": tracker.peak, "sent": (0, 0)}
        if sent is not None:
            found[case]["sent"] = sent.payload_bytes, sent.header_bytes - header_bytes(Message(CLOSED))
    ranks.close()
    return found


def test_a_rank_takes_what_was_predicted():
    left_out = {"stdl, lean, sequences", "stdl, recomputing, sequences", "stdl, chunks, images"}
    cases = [case for case in CASES if case not in left_out]
    by_rank = run(3, measured_on, 3, cases)[::-1]
    for case in cases:
        rule, _ = build(*CASES[case])
        frames = CASES[case][2]
        found = forecast(rule, 3, steps(frames), sequence=bool(frames))
        assert [rank[case]["peak"] for rank in by_rank] == [stage.peak_bytes for stage in found.stages], case
        sent = [(BATCHES * stage.sent_bytes, BATCHES * stage.header_bytes) for stage in found.stages]
        assert [rank[case]["sent"] for rank in by_rank] == sent, case


@pytest.mark.parametrize(
    ("sync_norm", "cases"),
    [
        (False, ["stdl, lean, images", "even, bfloat16"]),
        (True, ["ell, pooled maps", "stdl, recomputing, chunks, sequences"]),
    ],
)
def test_a_rank_that_shares_batches_takes_what_was_predicted(sync_norm, cases):
    by_rank = run(4, measured_on, 2, cases, sync_norm)
    for case in cases:
        rule, _ = build(*CASES[case])
        frames = CASES[case][2]
        found = forecast(rule, 2, steps(frames), sequence=bool(frames), shards=Shards(2, sync_norm))
        peaks = [stage.peak_bytes for stage in found.stages[::-1]]
        assert [rank[case]["peak"] for rank in by_rank] == [*peaks, *peaks], case


@pytest.fixture(scope="module")
def rule() -> Rule:
    return make("ell", small("vgg11"), batch("vgg11")[0], steps=2)


@pytest.fixture(scope="module")
def ways(rule) -> dict[tuple[range, ...], tuple[float, int]]:
    """Every way to put the subnetworks onto three stages: the most work of a stage, and the most bytes of a rank."""
    count = len(rule.subnetworks)
    found = {}
    with faking():
        trials = StageTrials(rule, 2)
        for first, second in itertools.combinations(range(1, count), 2):
            runs = range(first), range(first, second), range(second, count)
            stages = [trials.stage(run) for run in runs]
            found[runs] = max(stage.work for stage in stages), max(stage.rank_bytes for stage in stages)
    return found


def budgeted(rule: Rule, size: int) -> Rule:
    """The rule as it is, with a budget."""
    rule.budget = parse_budget(f"{size}B")
    return rule


def test_stages_are_balanced_among_the_ways_that_fit(rule, ways):
    sizes = sorted({size for _, size in ways.values()})
    chosen = set()
    for size in sizes[:: len(sizes) // 6]:
        runs = tuple(stages_of(budgeted(rule, size), 3))
        assert ways[runs][1] <= size
        assert ways[runs][0] == min(work for work, taken in ways.values() if taken <= size)
        assert runs == tuple(forecast(rule, 3, 2).runs)
        chosen.add(runs)
    assert len(chosen) > 1


def test_work_that_was_measured_counts_only_among_the_ways_that_fit(rule, ways):
    by_size = sorted(ways, key=lambda runs: ways[runs][1])
    smallest, largest = by_size[0], by_size[-1]
    work = [1 / len(run) for run in largest for _ in run]  # perfectly balanced where it takes most
    assert tuple(stages_of(budgeted(rule, ways[largest][1]), 3, work=work)) == largest
    assert tuple(stages_of(budgeted(rule, ways[smallest][1]), 3, work=work)) == smallest


def test_more_batches_ahead_take_more(rule, ways):
    least = min(size for _, size in ways.values())
    stages_of(budgeted(rule, least), 3)
    with pytest.raises(OverBudget, match=r"in flight"):
        stages_of(rule, 3, ahead=50)


def test_nothing_fits(rule, ways):
    least = min(size for _, size in ways.values())
    sentence = r"do not fit onto 3 stages within .* stage \d \(subnetworks? [\d to]+\) takes .* which is 1 B too much"
    with pytest.raises(OverBudget, match=sentence + r".*: use more stages, or a larger budget\.$"):
        stages_of(budgeted(rule, least - 1), 3)
    stages_of(rule, 4)  # more stages help
    with pytest.raises(
        OverBudget, match=r"stage 1 \(subnetwork 1\) takes .*: use a larger budget, or a smaller batch\.$"
    ):
        stages_of(budgeted(rule, 1000), len(rule.subnetworks))

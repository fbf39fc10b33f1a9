"""Which subnetworks go onto which stage: runs of them such that the slowest stage is as fast as possible."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from ..planning.budgets import OverBudget
from ..planning.fake import fake_like, faking
from ..planning.plan import Plan
from ..planning.work import BACKWARD, FORWARD, Work
from ..rules import Rule


def balanced(work: Sequence[float], stages: int, fits: Callable[[range], bool] = lambda run: True) -> list[range]:
    """Runs of subnetworks, one per stage, whose largest sum of work is as small as possible; each run must fit.

    Example:
        >>> balanced([3, 1, 1, 1], stages=2)
        [range(0, 1), range(1, 4)]
    """
    count = len(work)
    if stages > count:
        raise ValueError(
            f"{stages} stages were asked for, and the network is cut into {count} "
            f"{'subnetwork' if count == 1 else 'subnetworks'}: use at most {count}, or have it cut further (a smaller "
            "budget for STDL, more groups for EvenLocal, or ELL, which makes every unit one)."
        )
    sums = [0.0, *itertools.accumulate(work)]
    # best[end]: the best split of the first `end` subnetworks over the stages so far: its slowest stage's work, its
    # runs.
    best: dict[int, tuple[float, list[range]]] = {0: (0.0, [])}
    for stage in range(1, stages + 1):
        further: dict[int, tuple[float, list[range]]] = {}
        for end in range(stage, count - (stages - stage) + 1):
            ways = [
                (max(slowest, sums[end] - sums[start]), [*runs, range(start, end)])
                for start, (slowest, runs) in best.items()
                if start < end and fits(range(start, end))
            ]
            if ways:
                further[end] = min(ways, key=lambda way: way[0])
        best = further
    if count not in best:
        raise OverBudget(f"the subnetworks do not fit onto {stages} stages in this budget: use more stages.")
    return best[count][1]


def counted_work(rule: Rule) -> list[float]:
    """Multiply-adds of a training step of each subnetwork, for one sample and time step, counted on shapes alone."""
    with faking():
        twin = rule.without_numbers()
        work = Work.of(twin.subnetworks, twin.flow, fake_like(rule.sample))
    return work_by_subnetwork(work, rule.plan)


def work_by_subnetwork(work: Work, plan: Plan) -> list[float]:
    """The work of each subnetwork of a plan, with pieces that run again."""
    totals = [0.0] * len(plan.parts)
    for (number, name), once in work.stages.items():
        totals[number] += once * (FORWARD + BACKWARD + plan.recompute.level(number, name))
    return totals

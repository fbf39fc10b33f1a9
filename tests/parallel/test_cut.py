"""A network too large for one process is cut for its stages: each keeps to the budget, and work is balanced."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from stdl_engine.neurons import FusedLIF
from stdl_engine.parallel.balance import counted_work
from stdl_engine.parallel.cut import plan_for_stages
from stdl_engine.parallel.forecast import forecast
from stdl_engine.planning.budgets import OverBudget
from stdl_engine.planning.plan import Plan, Recompute, plan_of_layers, plan_with_linear_heads
from stdl_engine.rules import STDL, Rule
from stdl_engine.units import ConvUnit, Head, ResidualBlock

from ..planning.fit_nets import IMAGE, SGD

RECOMPUTE = Recompute(default=1)


def made(budget: float | str) -> STDL:
    """For a network whose weights take more than a small batch does."""
    blocks = [ResidualBlock(8, 16, FusedLIF, stride=2), ResidualBlock(16, 32, FusedLIF, stride=2)]
    model = nn.Sequential(ConvUnit(3, 8), *blocks, Head(32, 10))
    return STDL(model, SGD, torch.randn(2, *IMAGE), budget=budget, steps=2, recompute="none")


@pytest.fixture(scope="module")
def rule() -> STDL:
    return made(1.0)


@pytest.fixture(scope="module")
def least() -> int:
    """What one process takes at least."""
    with pytest.raises(OverBudget) as refused:
        made("2kB")
    return refused.value.least


def largest(rule: Rule, plan: Plan) -> int:
    """The most that a rank takes, with a subnetwork on each."""
    found = forecast(rule.trial(rule.network, plan), len(plan.parts), rule.steps)
    return max(stage.rank_bytes for stage in found.stages)


def cuts(rule: STDL, recompute: Recompute) -> dict[tuple, int]:
    """Every cut in two, with every auxiliary network, and what its ranks take at most."""
    units = len(rule.network.units)
    found = {}
    for first in range(1, units):
        later = range(first, units)
        chains = [(one,) for one in later] + [(one, other) for one in later for other in later if one < other]
        for chain in chains:
            plan = plan_of_layers(rule.network, [(range(first), chain), (range(first, units), None)])
            found[first, chain] = largest(rule, replace(plan, recompute=recompute))
    return found


def test_a_budget_that_only_stages_keep_to(rule, least):
    ways = cuts(rule, Recompute())
    units = [range(number, number + 1) for number in range(len(rule.network.units))]
    work = counted_work(rule.trial(rule.network, plan_with_linear_heads(rule.network, units)))
    sizes = sorted(set(ways.values()))
    chosen = set()
    for size in sizes:
        plan = plan_for_stages(rule, f"{size}B", 2)
        (first, auxiliary), (last, _) = ((part.units, part.auxiliary) for part in plan.parts)
        assert largest(rule, plan) <= size
        possible = {stop for (stop, _), taken in ways.items() if taken <= size}
        slowest = {stop: max(sum(work[:stop]), sum(work[stop:])) for stop in possible}
        assert slowest[first.stop] == min(slowest.values())
        deepest = max(len(chain) for (stop, chain), taken in ways.items() if stop == first.stop and taken <= size)
        assert len(auxiliary) == deepest
        assert last.stop == len(units)
        assert max(plan.byte_shares) <= 1
        chosen.add((first.stop, len(auxiliary)))
    assert len(chosen) > 1
    assert sizes[0] < least  # so that there is something to gain


def test_pieces_run_again_where_nothing_else_fits(rule):
    plain, again = (min(cuts(rule, recompute).values()) for recompute in (Recompute(), RECOMPUTE))
    assert again < plain
    with pytest.raises(OverBudget):
        plan_for_stages(rule, f"{plain - 1}B", 2)
    for size, recompute in ((plain, Recompute()), (plain - 1, RECOMPUTE), (again, RECOMPUTE)):
        plan = plan_for_stages(rule, f"{size}B", 2, levels=(Recompute(), RECOMPUTE))
        assert plan.recompute == recompute
        assert largest(rule, plan) <= size
    with pytest.raises(
        OverBudget, match=r"cannot be cut into 2 subnetworks, one per stage, .* use more stages, a larger"
    ):
        plan_for_stages(rule, f"{again - 1}B", 2, levels=(Recompute(), RECOMPUTE))


def test_only_bytes_can_be_kept_to(rule):
    with pytest.raises(ValueError, match="the budget of a rank is in bytes"):
        plan_for_stages(rule, 0.5, 2)


def test_more_stages_than_units(rule):
    with pytest.raises(ValueError, match="9 stages were asked for"):
        plan_for_stages(rule, "1GB", 9)

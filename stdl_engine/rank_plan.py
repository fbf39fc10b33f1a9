"""What ranks will need and compute, for `python -m stdl_engine.plan RECIPE --stages N`, and how far that scales."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from .building import for_shard, make_rule, sample_batch, shapes_of
from .parallel.cut import plan_for_stages
from .parallel.forecast import Forecast, Shards, forecast
from .parallel.simulate import Layout, Machine, layout
from .planning.budgets import OverBudget, format_bytes, parse_budget
from .planning.plan import Plan, Recompute
from .recipes import SMALLEST_BATCH, Recipe, chunk_of
from .rules import STDL, Rule

FLOAT = 4
"""Bytes of a gradient."""


@dataclass(frozen=True)
class RankPlan:
    """A recipe on ranks = stages × shards."""

    recipe: Recipe
    shards: int
    forecast: Forecast

    @property
    def batch(self) -> int:
        """Samples per rank."""
        return self.recipe.batch_size // self.shards


def rule_of(recipe: Recipe) -> Rule:
    """The recipe's rule on shapes alone."""
    model = shapes_of(recipe)
    return make_rule(recipe, model, sample_batch(recipe, next(model.parameters()).device), 1)


def rule_on_stages(
    recipe: Recipe, stages: int, shards: Shards, model: nn.Sequential, sample: Tensor, batches: int,
    saved: dict[str, Any] | None = None,
) -> Rule:  # fmt: skip
    """The rule of a rank, whose batches are the recipe's, as `make_rule` makes it. Where one process could not keep to
    a budget in bytes, STDL gets a subnetwork per stage, and with other rules every piece runs again."""
    numbers = torch.get_rng_state()
    try:
        rule = make_rule(recipe, model, sample, batches, saved)
    except OverBudget as error:
        if stages == 1 or error.least is None:
            raise
        recipe = replace(recipe, rule="stdl" if recipe.rule == "auto" else recipe.rule)
        return make_rule(recipe, model, sample, batches, plan=_plan_on_stages(recipe, stages, shards, error.least))
    if _takes_chunks(rule, recipe, stages, shards):
        return rule
    torch.set_rng_state(numbers)  # auxiliary networks are drawn once more
    return make_rule(replace(recipe, chunk=1), model, sample, batches)


def _takes_chunks(rule: Rule, recipe: Recipe, stages: int, shards: Shards) -> bool:
    """Whether stages keep to a budget in bytes with as many time steps together as one process does: batches wait on
    stages, too."""
    if stages == 1 or not rule.keeps_bytes or rule.plan.chunk == 1 or chunk_of(recipe) != "auto":
        return True
    try:
        forecast(rule, stages, recipe.steps, sequence=recipe.events, shards=shards)
    except OverBudget:
        return False
    return True


def _plan_on_stages(recipe: Recipe, stages: int, shards: Shards, least: int) -> Plan:
    """How the network is cut, and what runs again; `least` is the smallest budget that one process could keep to."""
    one_by_one = replace(recipe, chunk=1 if chunk_of(recipe) == "auto" else recipe.chunk)
    if recipe.rule != "stdl" or recipe.layerwise:
        return rule_of(replace(one_by_one, budget=f"{least}B")).plan
    uncut = rule_of(replace(one_by_one, budget="1", recompute="none"))
    assert isinstance(uncut, STDL), "the recipe's rule is stdl"
    may_choose = recipe.recompute == "auto" and recipe.memory == "lean"
    levels = [0, 1] if may_choose else [int(recipe.recompute in ("all", "twice"))]
    return plan_for_stages(uncut, str(recipe.budget), stages, shards, [Recompute(default=level) for level in levels])


def plan_ranks(recipe: Recipe, stages: int, ranks: int | None) -> RankPlan:
    """The stages of a recipe on this many ranks, or on one rank per stage."""
    ranks = stages if ranks is None else ranks
    if stages < 1 or ranks % stages:
        raise ValueError(f"--ranks {ranks} cannot be {stages} stages: make it a multiple of {stages}.")
    here, shards = for_shard(recipe, ranks // stages), Shards(ranks // stages, recipe.sync_norm)
    model = shapes_of(here)
    sample = sample_batch(here, next(model.parameters()).device)
    rule = rule_on_stages(here, stages, shards, model, sample, batches=1)
    found = forecast(rule, stages, recipe.steps, sequence=recipe.events, shards=shards)
    return RankPlan(recipe, shards.count, found)


def as_json(plan: RankPlan) -> dict[str, Any]:
    """The documented JSON form."""
    stages = []
    for stage in plan.forecast.stages:
        values = asdict(stage) | {"rank_bytes": stage.rank_bytes, "bptt_bytes": stage.bptt_bytes}
        values["subnetworks"] = [number + 1 for number in stage.subnetworks]
        stages.append(values)
    return {
        "recipe": plan.recipe.name,
        "rule": plan.recipe.rule,
        "ranks": plan.shards * len(stages),
        "data_ranks": plan.shards,
        "batch_per_rank": plan.batch,
        "steps": plan.recipe.steps,
        "speedup_by_balance": plan.shards * plan.forecast.speedup,
        "stages": stages,
    }


def table(plan: RankPlan) -> Group:
    """The plan for people."""
    binary = plan.recipe.budget is not None and parse_budget(plan.recipe.budget).binary
    stages = plan.forecast.stages
    title = f"{plan.recipe.name} by {plan.recipe.rule}: {len(stages)} stages × {plan.shards} data ranks"
    found = Table(title=f"{title}, batch {plan.batch} per rank, T={plan.recipe.steps}", title_justify="left")
    for name in ("stage", "subnetworks", "peak", "work", "sends", "in float32", "BPTT, both ways"):
        found.add_column(name, justify="left" if name in ("stage", "subnetworks") else "right")
    for number, stage in enumerate(stages, 1):
        first, last = stage.subnetworks.start + 1, stage.subnetworks.stop
        sizes = (stage.sent_bytes, stage.dense_bytes, stage.bptt_bytes)
        shown = [format_bytes(size, binary) if size else "-" for size in sizes]
        which = str(first) if first == last else f"{first} to {last}"
        found.add_row(str(number), which, format_bytes(stage.peak_bytes, binary), f"{stage.work:.1%}", *shown)
    lines = [
        f"stage {number}: {'-'.join(stage.units)}, auxiliary {'-'.join(stage.auxiliary) or 'none'}; up to "
        f"{format_bytes(stage.in_flight_bytes, binary)} in flight"
        for number, stage in enumerate(stages, 1)
    ]
    speedup = plan.shards * plan.forecast.speedup
    lines.append(
        f"sizes per batch; speed-up from the balance alone: {speedup:.2f} on {plan.shards * len(stages)} ranks"
    )
    return Group(found, Text("\n".join(lines)))


def scaling(recipe: Recipe, most: int, machine: Machine) -> list[Layout]:
    """For 1, 2, 4, ... ranks the fastest way to use them, in a simulation."""
    rule = rule_of(recipe)
    by_stages: dict[int, Forecast] = {}
    found = []
    for ranks in _doublings(most):
        ways = []
        for stages in range(1, min(ranks, len(rule.subnetworks)) + 1):
            shards = ranks // stages
            if ranks % stages or recipe.batch_size // shards < SMALLEST_BATCH or recipe.batch_size % shards:
                continue
            if stages not in by_stages:
                by_stages[stages] = forecast(rule, stages, recipe.steps, sequence=recipe.events)
            ways.append(_layout(by_stages[stages], recipe.batch_size, shards, machine))
        if ways:
            found.append(max(ways, key=lambda way: way.speedup))
    return found


def _layout(found: Forecast, batch: int, shards: int, machine: Machine) -> Layout:
    work = [stage.work * found.multiply_adds for stage in found.stages]
    sent = [stage.sent_bytes for stage in found.stages]
    gradients = [stage.parameters * FLOAT for stage in found.stages]
    return layout(work, sent, gradients, batch, shards, machine)


def _doublings(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def scaling_table(recipe: Recipe, layouts: list[Layout], machine: Machine) -> Group:
    """The curve for people."""
    found = Table(
        title=f"{recipe.name} by {recipe.rule}, batch {recipe.batch_size} in all: simulated", title_justify="left"
    )
    for name in ("ranks", "stages × data", "speed-up", "of ideal", "limited by"):
        found.add_column(name, justify="left" if name == "limited by" else "right")
    for one in layouts:
        share = f"{one.speedup / one.ranks:.0%}"
        found.add_row(str(one.ranks), f"{one.stages} × {one.shards}", f"{one.speedup:.1f}", share, one.limit)
    assumed = (
        f"a simulation, not a measurement: ranks of {machine.multiply_adds:.3g} multiply-adds per second, links of "
        f"{machine.bandwidth:.3g} bytes per second and {machine.latency * 1e6:.0f} µs"
    )
    return Group(found, Text(assumed))

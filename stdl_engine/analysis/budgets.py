"""Accuracy, peak memory and time of STDL against its budget, and how the network is cut for each."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from ..building import rule_options, shapes_of
from ..planning.auxiliary import VARIANTS
from ..planning.budgets import parse_budget
from ..planning.network import Network
from ..planning.plan import BudgetError, Plan, plan_of_layers, plan_within
from ..planning.published import published_rows
from ..recipes import Recipe, by_rule
from .exhibits import Section
from .runs_of_report import Trained
from .study import Study
from .sweeps import Point, exhibit

FRACTIONS = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2)
"""The budgets that are tried, as fractions of the whole network's footprint; of those with the same cut one is used."""


def plan_for(recipe: Recipe, budget: str) -> Plan:
    """How STDL cuts the recipe's network under a budget that is not in bytes; BudgetError if no cut meets it."""
    network = Network(shapes_of(recipe), recipe.in_shape, recipe.memory)
    meant = parse_budget(budget)
    if meant.published:
        return plan_of_layers(network, published_rows(network.model))
    assert meant.fraction is not None, "callers refuse budgets in bytes"
    return plan_within(network, meant.fraction * network.total, VARIANTS[recipe.variant], recipe.layerwise)


def choices(study: Study) -> list[tuple[str, Plan]]:
    """The recipe's own budget and others that cut the network differently, from the largest to the smallest that
    works."""
    recipe = by_rule(study.recipe, "stdl")
    own = str(rule_options(recipe)["budget"])
    if parse_budget(own).size is not None:
        raise ValueError(f"budgets are compared as fractions, and --budget is {own}: write one up to 1, such as 0.5.")
    plans = {own: plan_for(recipe, own)}
    for fraction in FRACTIONS:
        try:
            budget, plan = str(fraction), plan_for(recipe, str(fraction))
        except BudgetError as error:
            budget = str(ceil(1e4 * error.least / plans[own].total) / 1e4)
            plan = plan_for(recipe, budget)
        if all(_cuts(plan) != _cuts(other) for other in plans.values()):
            plans[budget] = plan
    return sorted(plans.items(), key=lambda choice: -max(part.footprint for part in choice[1].parts))


def _cuts(plan: Plan) -> list[tuple[object, ...]]:
    return [(part.units, part.auxiliary) for part in plan.parts]


def points(study: Study) -> list[Point]:
    found = []
    for budget, plan in choices(study):
        depths = [len(part.auxiliary) for part in plan.parts if part.auxiliary is not None]
        depth = f"{sum(depths) / len(depths):.1f}" if depths else "–"
        runs = study.over_seeds("stdl", budget=budget)
        found.append(Point("stdl", budget, runs, more=(str(len(plan.parts)), depth)))
    return found


def needs(study: Study) -> list[Trained]:
    return [*(run for point in points(study) for run in point.runs), *study.over_seeds("bptt")]


def analyse(study: Study) -> Section:
    caption = (
        f"STDL under budgets that are fractions of the whole network's footprint, and BPTT beside it. "
        f"{study.described(replace(study.recipe, rule='stdl'))}, budgets as given."
    )
    text = (
        "A smaller budget cuts the network into more subnetworks with shallower auxiliary networks. In the paper STDL "
        "reaches 95.25 % with ResNet-18 on CIFAR-10 at 3.6 times less memory than BPTT, which reaches 95.12 %."
    )
    beside = Point("bptt", "BPTT", study.over_seeds("bptt"), more=("1", "–"))
    more = ("subnetworks", "auxiliary depth")
    all_points = [*points(study), beside]
    shown = exhibit("budgets", "Memory budgets of STDL", "budget", all_points, caption, "", more=more, together=True)
    return Section("Memory against accuracy", text, [shown])

"""The paper's ablations: how auxiliary networks are made, which of equally deep ones is taken, and where the network is
cut. Accuracy is that of the report's own network; memory is that of the paper's network at the paper's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..building import rule_options
from ..planning.budgets import format_bytes, parse_budget
from ..recipes import RECIPES, Recipe, by_rule
from . import charts, published
from .budgets import plan_for
from .exhibits import Exhibit, Section, mean_of, said
from .runs_of_report import Trained
from .study import Study

PAPERS = "cifar10"
"""The recipe that memory is predicted for: ResNet-18, batch 512, T=4."""
HALF = "0.5"
"""The budget that gives ResNet-18 its published partition."""
GROUPS = (3, 5)


@dataclass(frozen=True)
class Row:
    """One ablation: what is changed, how the page calls it, and what the paper reports."""

    label: str
    rule: str
    changes: dict[str, Any]
    paper: str


ROWS = (
    Row("STDL: later layers, greedy", "stdl", {}, published.said(published.RULES["stdl"])),
    Row("auxiliary: 3×3 convs", "stdl", {"variant": "conv3x3"}, "lower"),
    Row("auxiliary: 1×1 convs", "stdl", {"variant": "conv1x1"}, "lower"),
    Row("auxiliary: two layers", "stdl", {"variant": "two_layer"}, "about 1 point lower"),
    Row("auxiliary: linear", "stdl", {"variant": "linear"}, "lower than two layers"),
    Row("tie-break: depth only", "stdl", {"variant": "depth_only"}, "lower"),
    Row("layer-wise, auxiliary nets", "stdl", {"layerwise": True}, "lower"),
    Row("layer-wise, linear", "ell", {}, f"{published.LAYERWISE_LINEAR:.1f} %"),
    *(Row(f"even, K={K}, linear", "even", {"groups": K}, f"{published.said(published.EVEN[K])}, T=1") for K in GROUPS),
)


def settings(row: Row, budget: str) -> dict[str, Any]:
    return {"budget": budget, **row.changes} if row.rule == "stdl" else row.changes


def budget_of(study: Study) -> str:
    """The recipe's own budget if it is a fraction, otherwise half; the published partition cannot be varied."""
    own = str(rule_options(by_rule(study.recipe, "stdl"))["budget"])
    return own if parse_budget(own).fraction is not None else HALF


def rows(study: Study) -> list[tuple[Row, list[Trained], bool]]:
    """Each ablation with its runs, and whether it changes nothing in this network; it then has STDL's own runs."""
    budget, count = budget_of(study), len(study.unit_names())
    recipe = by_rule(study.recipe, "stdl")
    whole = _made(recipe, ROWS[0], budget)
    found = []
    for row in ROWS:
        if row.rule == "even" and row.changes["groups"] >= count:
            continue  # every unit alone is another row
        same = row.rule == "stdl" and bool(row.changes) and _made(recipe, row, budget) == whole
        changes = settings(ROWS[0] if same else row, budget)
        found.append((row, study.over_seeds(row.rule, **changes), same))
    return found


def _made(recipe: Recipe, row: Row, budget: str) -> list[tuple[object, ...]]:
    """Where the network is cut, and the layers of its auxiliary networks."""
    plan = plan_for(replace(recipe, **settings(row, budget)), budget)
    return [(part.units, part.auxiliary_names) for part in plan.parts]


def needs(study: Study) -> list[Trained]:
    return [run for _, runs, _ in rows(study) for run in runs]


def papers_recipe(row: Row) -> Recipe:
    """The ablation at the paper's size, in plain memory as the paper measures it."""
    return replace(by_rule(RECIPES[PAPERS], row.rule, "paper"), **settings(row, HALF))


def analyse(study: Study) -> Section:
    values, shown, accuracies, peaks = [], [], [], []
    for row, runs, same in rows(study):
        study.printer.say(f"  {row.label}")
        found = [run.summary["test_accuracy"] for run in runs]
        peak = study.peak(papers_recipe(row))["peak_bytes"]
        accuracy, deviation = mean_of(found)
        assert accuracy is not None, "there is a run for each seed"
        values.append((row.label, accuracy, deviation, same, runs[0].summary["peak_bytes"], peak))
        accuracies.append((row.label, 100 * accuracy, 100 * deviation if deviation else None))
        peaks.append((row.label, peak / 1e9, None))
        cell = said(found, 100) + (" (as STDL)" if same else "")
        shown.append((row.label, cell, format_bytes(runs[0].summary["peak_bytes"]), format_bytes(peak), row.paper))
    return Section("Ablations", TEXT, [_exhibit(study, values, shown, accuracies, peaks)])


TEXT = (
    "Auxiliary networks are made of a subnetwork's later layers, as deep as the budget allows and of equally deep ones "
    "the largest; the network is cut greedily. Each row changes one of these. A row that changes nothing in this "
    "network (one without residual blocks has none to replace by convolutions) has the figures of STDL and says so."
)


def _exhibit(study: Study, values: Sequence, shown: Sequence, accuracies: Sequence, peaks: Sequence) -> Exhibit:
    return Exhibit(
        "ablations", "Ablations",
        f"Accuracy: {study.described()}, STDL's budget {budget_of(study)}. Memory: the predicted peak of ResNet-18 on "
        f"CIFAR-10, batch 512, T=4, plain memory, budget {HALF}. The paper's column is of that network.",
        ("ablation", "accuracy", "deviation", "same_as_stdl", "peak_bytes", "peak_bytes_at_papers_size"), values,
        [charts.bars("Test accuracy, this network", "ablation", "test accuracy, %", accuracies),
         charts.bars("Peak memory at the paper's size", "ablation", "peak of a training step, GB", peaks)],
        table=(("ablation", "accuracy, %", "peak here", "peak at the paper's size", "paper"), shown),
    )  # fmt: skip

"""What networks that were trained by different rules have in common, and where they differ. A new analysis is one file
and one line in `ANALYSES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import ablations, budgets, cka, neurons, probe, rates, rules, steps, trace
from .exhibits import Section
from .runs_of_report import Trained
from .study import Study


@dataclass(frozen=True)
class Analysis:
    """The runs that an analysis needs, and the section that it makes from them once they are over."""

    needs: Callable[[Study], list[Trained]]
    analyse: Callable[[Study], Section]
    of_trained: bool = False
    """Whether it looks at trained networks, so that it also works on a user's own runs."""


ANALYSES: dict[str, Analysis] = {
    "rules": Analysis(rules.needs, rules.analyse, of_trained=True),
    "trace": Analysis(trace.needs, trace.analyse, of_trained=True),
    "cka": Analysis(cka.needs, cka.analyse, of_trained=True),
    "probe": Analysis(probe.needs, probe.analyse, of_trained=True),
    "rates": Analysis(rates.needs, rates.analyse, of_trained=True),
    "ablations": Analysis(ablations.needs, ablations.analyse),
    "steps": Analysis(steps.needs, steps.analyse),
    "budgets": Analysis(budgets.needs, budgets.analyse),
    "neurons": Analysis(neurons.needs, neurons.analyse),
}

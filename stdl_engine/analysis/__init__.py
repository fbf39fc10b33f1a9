"""What networks that were trained by different rules have in common and where they differ. A new analysis is one file
and one line in `ANALYSES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import cka, probe, rates
from .exhibits import Section
from .study import Study, Trained


@dataclass(frozen=True)
class Analysis:
    """Which runs it needs, and what it makes of them once they are over."""

    needs: Callable[[Study], list[Trained]]
    analyse: Callable[[Study], Section]
    of_trained: bool = False
    """Whether it looks at trained networks, and so at runs that a user has made."""


ANALYSES: dict[str, Analysis] = {
    "cka": Analysis(cka.needs, cka.analyse, of_trained=True),
    "probe": Analysis(probe.needs, probe.analyse, of_trained=True),
    "rates": Analysis(rates.needs, rates.analyse, of_trained=True),
}

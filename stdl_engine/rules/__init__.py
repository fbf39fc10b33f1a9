"""How a network learns from one batch. A new rule is one file and one line in `RULES`."""

from __future__ import annotations

from collections.abc import Callable

from .auto import auto, candidates
from .base import Rule, StepResult
from .bptt import BPTT
from .local import DECOLLE, ELL, EvenLocal
from .sltt import SLTT
from .stdl import STDL

RULES: dict[str, type[Rule]] = {
    "bptt": BPTT,
    "sltt": SLTT,
    "decolle": DECOLLE,
    "ell": ELL,
    "even": EvenLocal,
    "stdl": STDL,
}
CHOICES: dict[str, Callable[..., Rule]] = {**RULES, "auto": auto}
"""What can be asked for by name: a rule, or "auto" for the most exact one that fits a budget."""

__all__ = [
    "BPTT", "CHOICES", "DECOLLE", "ELL", "RULES", "SLTT", "STDL", "EvenLocal", "Rule", "StepResult", "auto",
    "candidates",
]  # fmt: skip

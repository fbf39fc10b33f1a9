"""How a network learns from one batch. A new rule is one file and one line in `RULES`."""

from __future__ import annotations

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

__all__ = ["BPTT", "DECOLLE", "ELL", "RULES", "SLTT", "STDL", "EvenLocal", "Rule", "StepResult"]

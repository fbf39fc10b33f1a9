"""Memory layouts: every contender runs in the one in which it is fastest, and its row says which."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .markdown import figure
from .results import Row
from .session import Session
from .timing import Case, interleave, spread

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def fastest(
    session: Session, build: Callable[[Tensor, torch.memory_format], Any], x: Tensor, y: Tensor, T: int
) -> tuple[str, Any]:
    """The layout in which the object that `build` makes is faster, by the median of a few interleaved steps `step(x, y,
    T)`, and that object."""
    steppers, cases = {}, {}
    for name, layout in LAYOUTS.items():
        batch = x.to(memory_format=layout)
        steppers[name] = build(batch, layout)
        cases[name] = Case(functools.partial(steppers[name].step, batch, y, T))
    times = interleave(cases, 2 if session.quick else 3, warmup=1, device=session.device)
    best = min(times, key=lambda name: spread(times[name]).p50)
    return best, steppers[best]


def figure_and_layout(row: Row) -> str:
    """A cell of a table."""
    return f"{figure(row)}, {row.note}" if row.note else figure(row)

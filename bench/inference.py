"""Images per second of prediction, ours and SpikingJelly's.

ResNet-18 in evaluation mode without gradients: `predict` of a rule of ours, and the same network written with
SpikingJelly's layers, with the same weights, in both step modes. Batch norm's running statistics are first set to those
of the batch, so that neurons fire as they do in a trained network. Before anything is timed, logits are compared in
float64. Each contender runs in the memory layout it is fastest in, which its row says, and all are interleaved.
"Together" is all time steps in one chunk, which SpikingJelly's multi-step mode does, too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stdl_engine.rules import SLTT

from . import jelly, profile
from .layouts import LAYOUTS, fastest, figure_and_layout
from .libraries import missing
from .markdown import figure, pivot
from .results import Row
from .session import Session
from .timing import Case, ratios
from .training import SIZES, Size, T, network
from .workload import SGD, batch_of

WHAT = "resnet18, prediction"
OURS = {"predict": 1, "predict, together": T}
"""Our contenders, and how many time steps each runs together."""
THEIRS = {"SpikingJelly, multi-step": "m", "SpikingJelly, step by step": "s"}
GOAL = 2.0
"""The target ratio of images per second to SpikingJelly's, at the first of the sizes."""
PROFILED = "predict"
"""Whose profile is kept where a target is missed."""
QUICK_SIZES = (Size(width=0.25, batch=16),)
DRY_SIZES = (Size(width=0.125, batch=2),)
DIFFERENCE = 1e-9
"""How far logits may differ in float64."""


@dataclass(frozen=True)
class Predictor:
    """A contender; `step` has the form of a training step, so that it can be timed like one."""

    predict: Callable[[Tensor, int], Tensor]

    def step(self, x: Tensor, y: Tensor, T: int) -> Tensor:
        """The mean logits; labels are not read."""
        return self.predict(x, T)


def run(session: Session) -> None:
    for size in session.sizes(SIZES, QUICK_SIZES, DRY_SIZES):
        compare(session, size)


def compare(session: Session, size: Size) -> None:
    """Images per second of everyone at one size."""
    x, y = batch_of(size.batch, session.device)
    fields = {"shape": str(size), "dtype": "float32"}
    predictors, layouts = {}, {}
    for name in (*OURS, *THEIRS):
        if name in THEIRS and (reason := missing("spikingjelly") or differs(name)):
            session.refuse(WHAT, "images/s", reason, who=name, **fields)
            continue
        session.show(f"{name}, {size}: which layout is faster")
        layouts[name], predictors[name] = fastest(session, functools.partial(build, name, size.width), x, y, T)
    batches = {name: x.to(memory_format=layout) for name, layout in LAYOUTS.items()}
    cases = {name: Case(functools.partial(p.step, batches[layouts[name]], y, T)) for name, p in predictors.items()}
    times = session.time(f"prediction, {size}", cases)
    for name in predictors:
        session.record(WHAT, "images/s", [size.batch / t for t in times[name]], who=name, note=layouts[name], **fields)
    for ours, theirs in itertools.product(OURS, (name for name in THEIRS if name in predictors)):
        goal = GOAL if size.width == SIZES[0].width else None
        pair = {"who": ours, "against": theirs}
        session.record(WHAT, "x", ratios(times[theirs], times[ours]), at_least=goal, **pair, **fields)
    if any(row.shape == str(size) and row.target and not row.reached for row in session.rows):
        profile.keep(session, PROFILED, predictors[PROFILED], batches[layouts[PROFILED]], y, T, str(size))


def build(name: str, width: float, x: Tensor, layout: torch.memory_format) -> Predictor:
    """A contender on a network that fires, always with the same weights."""
    ours = network(width, x, layout)
    jelly.settle(ours, x, T)
    if name in OURS:
        return Predictor(SLTT(ours.eval(), SGD, x, chunk=OURS[name]).predict)
    theirs = jelly.resnet18(THEIRS[name], width=width)
    theirs.load_state_dict(ours.state_dict())
    return Predictor(functools.partial(evaluate, theirs.to(x.device, memory_format=layout).eval(), THEIRS[name]))


@torch.no_grad()
def evaluate(model: nn.Module, mode: str, x: Tensor, T: int) -> Tensor:
    """The mean logits of one of SpikingJelly's networks."""
    return jelly.logits(model, x, T, mode).mean(0)


@functools.cache
def differs(name: str) -> str:
    """How the logits of a contender differ from ours, on a narrow network in float64; empty if they do not."""
    torch.manual_seed(0)
    x, layout = torch.randn(4, 3, 16, 16), torch.contiguous_format
    x = x.double()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        ours, theirs = (build(who, 0.125, x, layout).predict(x, T) for who in (PROFILED, name))
    finally:
        torch.set_default_dtype(before)
    error = (ours - theirs).abs().max().item()
    return "" if error <= DIFFERENCE and ours.std() > 0 else f"differs: logits by {error:.1e}"


def tables(rows: Sequence[Row]) -> list[str]:
    """Images per second of each size, then the ratios."""
    parts = []
    for shape in dict.fromkeys(row.shape for row in rows if row.what == WHAT):
        mine = [row for row in rows if row.what == WHAT and row.shape == shape]
        totals, versus = ([row for row in mine if row.unit == unit] for unit in ("images/s", "x"))
        parts.append(f"### ResNet-18, {shape}")
        parts.append(pivot(totals, lambda row: row.who, lambda _: "images per second", figure_and_layout))
        parts.append(pivot(versus, lambda row: row.who, lambda row: f"/ {row.against}", figure, "ratio of speeds"))
    return parts

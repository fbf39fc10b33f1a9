"""Samples per second and peak bytes of whole training steps, ours and SpikingJelly's.

Whole training steps of ResNet-18, including the optimizer: every rule of ours, and the same network written with
SpikingJelly's layers, trained by BPTT in both step modes, by BPTT with its memory optimiser at each level, and by SLTT.
First weights are copied, and logits and gradients compared. "Together" is all time steps in one chunk. BPTT that
recomputes also runs in the memory that each level of SpikingJelly's optimiser takes. Each contender runs in the memory
layout it is fastest in, which its row says. STDL's auxiliary networks are counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stdl_engine.memory.tracker import CudaTracker
from stdl_engine.models import build_model
from stdl_engine.planning.planner import measure
from stdl_engine.rules import RULES

from . import jelly, memopt, plots, profile
from .layouts import LAYOUTS, fastest, figure_and_layout
from .libraries import missing
from .markdown import figure, number, pivot, table, under
from .memory import fake_peak
from .results import Row
from .session import Session
from .timing import Case, ratios
from .workload import SGD, batch_of

T = 4
WHAT = "resnet18, training step"
COLUMNS = {"samples/s": "samples per second", "MB": "peak MB", "MB allocated": "MB allocated by CUDA in a step"}
PLOTTED = ("samples/s", "MB")
PEER = "SpikingJelly BPTT"
GOALS = {
    ("STDL, together", 0.25): 1.3, ("SLTT, together", 0.25): 2.0, ("BPTT, together", 0.25): 1.7,
    ("STDL, together", 1.0): 1.1, ("SLTT, together", 1.0): 1.6, ("BPTT, together", 1.0): 1.5,
}  # fmt: skip
"""The target ratio of samples per second to those of PEER, by trainee and width."""
PROFILED = "STDL, lean"
"""Whose profile is kept where a target is missed; it should be as fast as PEER."""
QUICK_PEERS = (PEER, "SpikingJelly SLTT")


@dataclass(frozen=True, kw_only=True)
class Size:
    """A network's width and the batch it is trained with."""

    width: float
    batch: int

    def __str__(self) -> str:
        return f"width {self.width:g}, batch {self.batch}, T={T}"


SIZES = (Size(width=0.25, batch=64), Size(width=1.0, batch=8))
QUICK_SIZES = (Size(width=0.25, batch=32),)
GPU_SIZES = (*SIZES, Size(width=1.0, batch=128))
DRY_SIZES = (Size(width=0.125, batch=2),)
SEARCHED = ("2", "4")
"""Levels of SpikingJelly's memory optimiser that search for minutes."""


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """A contender: `build(width, x, layout)` returns an object with `step(x, y, T)`."""

    build: Callable[[float, Tensor, torch.memory_format], object]
    mode: str = ""
    """SpikingJelly's step mode; empty for ours."""
    online: bool = False
    """Whether SpikingJelly's gradient is SLTT's."""
    quick: bool = True
    dry: bool = True
    """Whether it takes part with --quick and --dry-run."""


def ours(rule: str, memory: str = "lean", recompute: str = "none", **options) -> Callable:
    def build(width: float, x: Tensor, layout: torch.memory_format):
        made = network(width, x, layout), SGD, x
        return RULES[rule](*made, memory=memory, recompute=recompute, steps=T, **options)

    return build


def within(peer: str) -> Callable:
    """BPTT that recomputes as few pieces as will do to fit the memory of one of SpikingJelly's ways."""

    def build(width: float, x: Tensor, layout: torch.memory_format):
        budget = fake_peak(peer, T, len(x), width)
        return RULES["bptt"](network(width, x, layout), SGD, x, budget=budget, steps=T)

    return build


def theirs(variant: jelly.Variant) -> Callable:
    def build(width: float, x: Tensor, layout: torch.memory_format):
        def with_our_weights(model: nn.Sequential) -> nn.Sequential:
            model.load_state_dict(network(width, x, layout).state_dict())
            return model.to(x.device, memory_format=layout)

        return memopt.trainer(variant, width, len(x), T, with_our_weights)

    return build


TRAINEES = {
    "STDL, lean": Trainee(build=ours("stdl", budget="published")),
    "SLTT, lean": Trainee(build=ours("sltt")),
    "ELL, lean": Trainee(build=ours("ell"), quick=False),
    "DECOLLE, lean": Trainee(build=ours("decolle"), quick=False),
    "four even parts, lean": Trainee(build=ours("even", K=4), quick=False),
    "BPTT, lean": Trainee(build=ours("bptt")),
    "STDL, together": Trainee(build=ours("stdl", chunk=T, budget="published")),
    "SLTT, together": Trainee(build=ours("sltt", chunk=T)),
    "BPTT, together": Trainee(build=ours("bptt", chunk=T)),
    "BPTT, plain": Trainee(build=ours("bptt", "paper"), quick=False),
    "BPTT, recomputing": Trainee(build=ours("bptt", recompute="all")),
    "SLTT, recomputing": Trainee(build=ours("sltt", recompute="all"), quick=False),
    "STDL, recomputing": Trainee(build=ours("stdl", recompute="all", budget="published"), quick=False),
}
MATCHED = {
    f"BPTT, in the memory of {name.removeprefix('SpikingJelly ')}": name
    for name, variant in jelly.VARIANTS.items()
    if variant.optimized
}
"""Our BPTT, and the contender whose memory it keeps to."""
TRAINEES |= {
    name: Trainee(build=within(peer), quick=False, dry=jelly.VARIANTS[peer].optimized not in SEARCHED)
    for name, peer in MATCHED.items()
}
TRAINEES |= {
    name: Trainee(
        build=theirs(variant), mode=variant.mode, online=variant.online, quick=name in QUICK_PEERS,
        dry=variant.optimized not in SEARCHED,
    )
    for name, variant in jelly.VARIANTS.items()
}  # fmt: skip


def run(session: Session) -> None:
    full = GPU_SIZES if session.device == "cuda" else SIZES
    for size in session.sizes(full, QUICK_SIZES, DRY_SIZES):
        with session.attempt(WHAT, "samples/s", shape=str(size), dtype="float32"):
            compare(session, size)


def compare(session: Session, size: Size, trainees: dict[str, Trainee] = TRAINEES) -> None:
    """Samples per second and peak bytes of everyone at one size."""
    x, y = batch_of(size.batch, session.device)
    fields = {"shape": str(size), "dtype": "float32"}
    steppers, layouts = {}, {}
    for name, trainee in trainees.items():
        if not session.sizes(True, trainee.quick, trainee.dry):
            continue
        reason = missing("spikingjelly") if trainee.mode or name in MATCHED else ""
        if trainee.mode and not reason:
            reason = differs(trainee.mode, trainee.online)
        if reason:
            session.refuse(WHAT, "samples/s", reason, who=name, **fields)
            continue
        session.show(f"{name}, {size}: which layout is faster")
        with session.attempt(WHAT, "samples/s", who=name, **fields):
            layouts[name], steppers[name] = fastest(session, functools.partial(trainee.build, size.width), x, y, T)
    batches = {name: x.to(memory_format=layout) for name, layout in LAYOUTS.items()}
    cases = {
        name: Case(functools.partial(stepper.step, batches[layouts[name]], y, T)) for name, stepper in steppers.items()
    }
    rounds = max(3, session.rounds // 2)  # a step takes a second or more
    times = session.time(f"training steps, {size}", cases, warmup=1, rounds=rounds)
    for name, stepper in steppers.items():
        note = layouts[name]
        session.record(WHAT, "samples/s", [size.batch / t for t in times[name]], who=name, note=note, **fields)
        session.record(WHAT, "MB", peak_bytes(stepper, batches[note], y) / 1e6, who=name, **fields)
        if session.device == "cuda":
            session.record(WHAT, "MB allocated", allocated(stepper, batches[note], y) / 1e6, who=name, **fields)
    for name in steppers:
        for peer in (peer for peer in steppers if trainees[peer].mode and not trainees[name].mode):
            goal = GOALS.get((name, size.width)) if peer == PEER else None
            if (name, peer) == (PROFILED, PEER) or MATCHED.get(name) == peer:
                goal = 1.0
            pair = {"who": name, "against": peer}
            session.record(WHAT, "x", ratios(times[peer], times[name]), at_least=goal, **pair, **fields)
    for name in (name for name in steppers if name.endswith(", recomputing")):
        pair = {"who": name, "against": name.replace("recomputing", "lean")}
        if pair["against"] not in steppers:
            continue
        slower = ratios(times[name], times[pair["against"]])
        session.record(WHAT, "x slower", slower, at_most=1.35, **pair, **fields)
    missed = [row for row in session.rows if row.shape == str(size) and row.target and not row.reached]
    if missed and PROFILED in steppers:
        profile.keep(session, PROFILED, steppers[PROFILED], batches[layouts[PROFILED]], y, T, str(size))


@functools.cache
def differs(mode: str, online: bool = False) -> str:
    """How SpikingJelly's network differs from ours, checked on a narrow one; empty if it does not."""
    torch.manual_seed(0)
    width = 0.125
    x, y = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))
    theirs = jelly.resnet18(mode, online=online, width=width)
    return jelly.difference(build_model("resnet18", width=width), theirs, x, y, T, mode, online=online)


def network(width: float, x: Tensor, layout: torch.memory_format) -> nn.Sequential:
    """Our ResNet-18, always with the same weights."""
    torch.manual_seed(1)
    return build_model("resnet18", width=width).to(x.device, memory_format=layout)


def peak_bytes(stepper: object, x: Tensor, y: Tensor) -> int:
    """Peak memory of a training step, counted by the same tracker for all."""
    if isinstance(stepper, jelly.Trainer):
        return jelly.peak_bytes(stepper, x, y, T)
    return measure(stepper, x, y, T).peak_bytes


def allocated(stepper: object, x: Tensor, y: Tensor) -> int:
    """The peak of CUDA's allocator in a step, with operators' workspaces, beyond everyone's weights and optimizers."""
    with CudaTracker() as tracker:
        before = tracker.current
        stepper.step(x, y, T)
    return tracker.peak - before


def tables(rows: Sequence[Row]) -> list[str]:
    """Samples per second and peaks, then ratios, then the profile where there is one."""
    parts = []
    step = [row for row in rows if row.what == WHAT]
    for shape in dict.fromkeys(row.shape for row in step):
        mine = [row for row in step if row.shape == shape]
        totals = [row for row in mine if row.unit in COLUMNS]
        versus, slower = ([row for row in mine if row.unit == unit] for unit in ("x", "x slower"))
        parts.append(f"### ResNet-18, {shape}")
        parts.append(pivot(totals, _who, lambda row: COLUMNS[row.unit], figure_and_layout))
        parts.append(pivot(versus, _who, lambda row: f"/ {row.against}", figure, "ratio of speeds"))
        again = pivot(slower, _who, lambda row: f"/ {row.against}", figure)
        parts.extend(under("Time of a step that recomputes:", again))
    profiled = [row for row in rows if row.what == profile.WHAT.format(PROFILED)]
    for shape in dict.fromkeys(row.shape for row in profiled):
        lines = [(f"`{row.who}`", number(row.spread.p50), row.note) for row in profiled if row.shape == shape]
        parts.append(f"{PROFILED}, {shape}: own time of the longest operators")
        parts.append(table(("operator", "% of the step", ""), lines))
    return parts


def _who(row: Row) -> str:
    return row.who


def plot(rows: Sequence[Row]) -> bytes | None:
    """Samples per second beside peak memory, one line of panels for each size."""
    step = [row for row in rows if row.what == WHAT and row.unit in PLOTTED]
    panels = {
        (shape, COLUMNS[unit]): plots.bars_of([row for row in step if (row.shape, row.unit) == (shape, unit)])
        for shape in dict.fromkeys(row.shape for row in step)
        for unit in PLOTTED
    }
    return plots.bars(panels, marked=jelly.VARIANTS) if panels else None

"""STDL in lean memory trains as many samples per second as SpikingJelly's BPTT, auxiliary networks counted, T=4.

Whole training steps of ResNet-18, optimizer included: every rule of ours, and the same network written with
SpikingJelly's layers, trained by BPTT in both step modes, with its memory optimiser, and by SLTT. Weights are copied
and logits and gradients compared first. Each contender runs in the memory layout it is fastest in, which its row says.
Below it, the engine's own overhead and what lean memory costs, and a linear layer with neurons over 500 steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stdl_engine.models import build_model
from stdl_engine.planning.planner import measure
from stdl_engine.rules import RULES

from . import jelly, plots, profile, protocol, training_step
from .memory import batch_of
from .session import Session
from .timing import Case, interleave, ratios, spread

T = 4
SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
PEER = "SpikingJelly BPTT"


@dataclass(frozen=True, kw_only=True)
class Size:
    """A network's width and the batch it is trained with."""

    width: float
    batch: int

    def __str__(self) -> str:
        return f"width {self.width:g}, batch {self.batch}, T={T}"


SIZES = (Size(width=0.25, batch=64), Size(width=1.0, batch=8))
QUICK_SIZES = (Size(width=0.25, batch=32),)


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """Who trains: `build(width, x, layout)` gives an object with `step(x, y, T)`."""

    build: Callable[[float, Tensor, torch.memory_format], object]
    mode: str = ""
    """SpikingJelly's step mode; nothing for ours."""
    online: bool = False
    """Whether SpikingJelly's gradient is SLTT's."""
    quick: bool = True


def ours(rule: str, memory: str = "lean") -> Callable:
    def build(width: float, x: Tensor, layout: torch.memory_format):
        options = {"budget": "published"} if rule == "stdl" else {}
        return RULES[rule](network(width, x, layout), SGD, x, memory=memory, **options)

    return build


def theirs(mode: str, *, online: bool = False, optimized: bool = False) -> Callable:
    def build(width: float, x: Tensor, layout: torch.memory_format):
        model = jelly.resnet18(mode, online=online, width=width)
        model.load_state_dict(network(width, x, layout).state_dict())
        model = model.to(x.device, memory_format=layout)
        return jelly.Trainer(jelly.optimized(model) if optimized else model, SGD, mode, online=online)

    return build


TRAINEES = {
    "STDL, lean": Trainee(build=ours("stdl")),
    "SLTT, lean": Trainee(build=ours("sltt")),
    "ELL, lean": Trainee(build=ours("ell"), quick=False),
    "BPTT, lean": Trainee(build=ours("bptt")),
    "BPTT, plain": Trainee(build=ours("bptt", "paper"), quick=False),
    PEER: Trainee(build=theirs("m"), mode="m"),
    "SpikingJelly BPTT, step by step": Trainee(build=theirs("s"), mode="s", quick=False),
    "SpikingJelly BPTT, memory optimiser": Trainee(build=theirs("m", optimized=True), mode="m", quick=False),
    "SpikingJelly SLTT": Trainee(build=theirs("s", online=True), mode="s", online=True),
}


def run(session: Session) -> None:
    for size in QUICK_SIZES if session.quick else SIZES:
        compare(session, size)
    rates = [row for row in session.rows if row.unit == "samples/s"]
    session.keep("training.png", plots.bars(rates, "samples/s"))
    training_step.run(session)
    protocol.run(session)


def compare(session: Session, size: Size, trainees: dict[str, Trainee] = TRAINEES) -> None:
    """Samples per second and peak bytes of everyone at one size."""
    x, y = batch_of(size.batch, session.device)
    what, fields = "resnet18, training step", {"shape": str(size), "dtype": "float32"}
    steppers, layouts = {}, {}
    for name, trainee in trainees.items():
        if session.quick and not trainee.quick:
            continue
        reason = differs(trainee.mode, trainee.online) if trainee.mode else ""
        if reason:
            session.refuse(what, "samples/s", reason, who=name, **fields)
            continue
        session.show(f"{name}, {size}: which layout is faster")
        layouts[name], steppers[name] = fastest(session, trainee, size.width, x, y)
    batches = {name: x.to(memory_format=layout) for name, layout in LAYOUTS.items()}
    cases = {
        name: Case(functools.partial(stepper.step, batches[layouts[name]], y, T)) for name, stepper in steppers.items()
    }
    rounds = max(3, session.rounds // 2)  # a step takes a second or more
    times = session.time(f"training steps, {size}", cases, warmup=1, rounds=rounds)
    for name, stepper in steppers.items():
        note = layouts[name]
        session.record(what, "samples/s", [size.batch / t for t in times[name]], who=name, note=note, **fields)
        session.record(what, "MB", peak_bytes(stepper, batches[note], y) / 1e6, who=name, **fields)
    for name in steppers:
        for peer in (peer for peer in steppers if trainees[peer].mode and not trainees[name].mode):
            goal = 1.0 if (name, peer) == ("STDL, lean", PEER) else None
            pair = {"who": name, "against": peer}
            session.record(what, "x", ratios(times[peer], times[name]), at_least=goal, **pair, **fields)
    missed = [row for row in session.rows if row.shape == str(size) and row.target and not row.reached]
    if missed:
        profile.keep(session, steppers["STDL, lean"], batches[layouts["STDL, lean"]], y, T, str(size))


@functools.cache
def differs(mode: str, online: bool = False) -> str:
    """How SpikingJelly's network differs from ours, checked on a narrow one; nothing if it does not."""
    torch.manual_seed(0)
    width = 0.125
    x, y = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))
    theirs = jelly.resnet18(mode, online=online, width=width)
    return jelly.difference(build_model("resnet18", width=width), theirs, x, y, T, mode, online=online)


def network(width: float, x: Tensor, layout: torch.memory_format) -> nn.Sequential:
    """Our ResNet-18, always with the same weights."""
    torch.manual_seed(1)
    return build_model("resnet18", width=width).to(x.device, memory_format=layout)


def fastest(session: Session, trainee: Trainee, width: float, x: Tensor, y: Tensor) -> tuple[str, object]:
    """The layout in which a trainee is faster, by the median of a few interleaved steps, and the trainee in it."""
    steppers, cases = {}, {}
    for name, layout in LAYOUTS.items():
        batch = x.to(memory_format=layout)
        steppers[name] = trainee.build(width, batch, layout)
        cases[name] = Case(functools.partial(steppers[name].step, batch, y, T))
    times = interleave(cases, 2 if session.quick else 3, warmup=1, device=session.device)
    best = min(times, key=lambda name: spread(times[name]).p50)
    return best, steppers[best]


def peak_bytes(stepper: object, x: Tensor, y: Tensor) -> int:
    """Peak memory of a training step, counted by the same tracker for all."""
    if isinstance(stepper, jelly.Trainer):
        return jelly.peak_bytes(stepper, x, y, T)
    return measure(stepper, x, y, T).peak_bytes

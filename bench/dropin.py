"""SpikingJelly's own models before and after `stdl_engine.optimize`, in SpikingJelly's own training loop.

`spiking_resnet18` and `sew_resnet18` of `spikingjelly.activation_based.model` with LIF neurons, in step mode "m", T=4:
as they come, with `convert_neurons`, with `optimize`, and with `optimize(recompute=True)`. A training step is forward,
backward and SGD with momentum. Outputs and gradients are compared first, in float64. Each contender runs in the memory
layout it is fastest in, which its row says, and all are interleaved. Activation bytes are those that a forward pass
leaves for backward. Batch norm's weights are made larger than SpikingJelly initialises them, because deep layers would
hardly fire otherwise; the note says how many neurons fire.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stdl_engine.convert import convert_neurons, optimize
from stdl_engine.memory.tracker import Tracker

from . import jelly
from .layouts import LAYOUTS, fastest, figure_and_layout
from .libraries import missing
from .markdown import figure, pivot
from .results import Row
from .session import Session
from .timing import Case, ratios
from .workload import SGD

DEVICE = "cpu"
T = 4
WHAT = "{}, training step"
BEFORE = "as it comes"
WAYS: dict[str, Callable[[nn.Module], object]] = {
    BEFORE: lambda model: None,
    "convert_neurons": convert_neurons,
    "optimize": optimize,
    "optimize, recomputing": functools.partial(optimize, recompute=True),
}
MODELS = ("spiking_resnet18", "sew_resnet18")
GOALS = {"optimize": (1.6, 0.7), "optimize, recomputing": (1.6, 0.35)}
"""What `optimize` should reach: the factor in speed, and the share of the activation bytes."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A batch of images."""

    batch: int
    side: int

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.side}×{self.side}, T={T}"


SIZES = (Size(batch=16, side=64), Size(batch=32, side=32))
QUICK_SIZES = (Size(batch=4, side=64),)


def run(session: Session) -> None:
    for name in MODELS:
        for size in QUICK_SIZES if session.quick else SIZES:
            compare(session, name, size)


def compare(session: Session, name: str, size: Size) -> None:
    """Samples per second and activation bytes of one model in all ways."""
    what, fields = WHAT.format(name), {"shape": str(size), "dtype": "float32"}
    x, y = batch_of(size)
    trainers, layouts = {}, {}
    for way in WAYS:
        if reason := missing("spikingjelly") or (way != BEFORE and differs(name, way)):
            session.refuse(what, "samples/s", reason, who=way, **fields)
            continue
        session.show(f"{name}, {way}, {size}: which layout is faster")
        layouts[way], trainers[way] = fastest(session, functools.partial(trainer_of, name, way), x, y, T)
    batches = {layout: x.to(memory_format=order) for layout, order in LAYOUTS.items()}
    cases = {
        way: Case(functools.partial(trainer.step, batches[layouts[way]], y, T)) for way, trainer in trainers.items()
    }
    times = session.time(f"{name}, {size}", cases, warmup=1, rounds=max(3, session.rounds // 2))
    held = {way: held_bytes(trainer.model, batches[layouts[way]], y) for way, trainer in trainers.items()}
    for way in trainers:
        note = layouts[way]
        session.record(what, "samples/s", [size.batch / t for t in times[way]], who=way, note=note, **fields)
        session.record(what, "MB", held[way] / 1e6, who=way, **fields)
    for way in (way for way in trainers if way != BEFORE and BEFORE in trainers):
        speed, share = GOALS.get(way, (None, None))
        pair = {"who": way, "against": BEFORE}
        session.record(what, "x", ratios(times[BEFORE], times[way]), at_least=speed, **pair, **fields)
        session.record(what, "of the bytes", held[way] / held[BEFORE], at_most=share, **pair, **fields)
    if BEFORE in trainers:
        rate = firing_rate(trainers[BEFORE].model, batches[layouts[BEFORE]])
        session.note(f"{name}, {size}: {100 * rate:.0f}% of its neurons fire in a time step.")


def batch_of(size: Size) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size.batch, 3, size.side, size.side, generator=generator)
    return x, torch.randint(10, (size.batch,), generator=generator)


def build(name: str, way: str) -> nn.Module:
    """One of SpikingJelly's models, always with the same weights, changed in one of the ways."""
    from spikingjelly.activation_based import functional, neuron
    from spikingjelly.activation_based.model import sew_resnet, spiking_resnet

    torch.manual_seed(1)
    makers = {
        "sew_resnet18": functools.partial(sew_resnet.sew_resnet18, cnf="ADD"),
        "spiking_resnet18": spiking_resnet.spiking_resnet18,
    }
    model = makers[name](spiking_neuron=neuron.LIFNode, num_classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 1.0, 2.5)
    functional.set_step_mode(model, "m")
    WAYS[way](model)
    return model


def trainer_of(name: str, way: str, x: Tensor, layout: torch.memory_format) -> jelly.Trainer:
    """The same model in a layout, with what trains it."""
    return jelly.Trainer(build(name, way).to(memory_format=layout), SGD, "m")


def held_bytes(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """The bytes that a forward pass allocates and leaves alive."""
    from spikingjelly.activation_based import functional

    with Tracker() as tracker:
        loss = jelly.loss_of(jelly.logits(model, x, T, "m"), y)
        held = tracker.current
        del loss
        functional.reset_net(model)
    return held


def firing_rate(model: nn.Module, x: Tensor) -> float:
    """Spikes per neuron and time step."""
    from spikingjelly.activation_based import neuron

    spikes: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _, __, output: spikes.append(output.mean()))
        for module in model.modules()
        if isinstance(module, neuron.BaseNode)
    ]
    with torch.no_grad():
        jelly.logits(model, x, T, "m")
    for hook in hooks:
        hook.remove()
    return torch.stack(spikes).mean().item()


@functools.cache
def differs(name: str, way: str) -> str:
    """How the changed model differs from SpikingJelly's in outputs or gradients; empty if it does not. The check is
    strict in float64, where rounding hardly ever decides whether a neuron fires, and coarse in float32, where
    convolutions read bits and single spikes may differ."""
    x, y = batch_of(Size(batch=2, side=64))
    for dtype, bound in ((torch.float64, 1e-8), (torch.float32, 1e-2)):
        results = []
        for one in (BEFORE, way):
            model = build(name, one).to(dtype=dtype, memory_format=torch.channels_last)
            steps = jelly.logits(model, x.to(dtype, memory_format=torch.channels_last), T, "m")
            gradients = torch.autograd.grad(jelly.loss_of(steps, y), list(model.parameters()))
            results.append([steps.detach().flatten(), torch.cat([gradient.flatten() for gradient in gradients])])
        for what, before, after in zip(("outputs", "gradients"), *results, strict=True):
            error = ((after - before).norm() / before.norm()).item()
            if not error <= bound:
                return f"differs: its {what} by {error:.1e} in {str(dtype).removeprefix('torch.')}"
    return ""


def tables(rows: Sequence[Row]) -> list[str]:
    """Speeds and bytes of each model, then their ratios to the model as it came."""
    parts = []
    columns = {"samples/s": "samples per second", "MB": "activation MB"}
    for what, shape in dict.fromkeys((row.what, row.shape) for row in rows):
        mine = [row for row in rows if (row.what, row.shape) == (what, shape)]
        totals = [row for row in mine if row.unit in columns]
        versus = [row for row in mine if row.against]
        parts.append(f"### {what}, {shape}")
        parts.append(pivot(totals, _who, lambda row: columns[row.unit], figure_and_layout))
        parts.append(pivot(versus, _who, lambda row: row.unit, _figure_and_target, f"against {BEFORE}"))
    return parts


def _who(row: Row) -> str:
    return row.who


def _figure_and_target(row: Row) -> str:
    return f"{figure(row)} ({row.target})" if row.target else figure(row)

"""Milliseconds of a linear layer with LIF neurons, 500 time steps, batch 16, forward and backward.

This is Open Neuromorphic's protocol. Its published form times libraries whose neurons compute different things. Here
all have the same weights, the same input spikes and the same equation; spikes and the gradient of the weights are first
compared with the reference's, and the clock waits for a GPU to finish. For everyone the linear layer runs once for all
time steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .kernels import pairs
from .markdown import figure, pivot
from .peers import CONTENDERS, Contender, Layer, Plain, plain
from .results import Row
from .session import Session
from .timing import Case, ratios

STEPS, BATCH = 500, 16
SIZES, QUICK_SIZES = (256, 512, 1024), (256,)
FLIPS, ERROR = 1e-4, 1e-2
"""How much rounding may change: a share of the spikes, and the weights' gradient relative to its norm. A flip changes
the spikes of one neuron for a step or two."""


def run(session: Session) -> None:
    for width in QUICK_SIZES if session.quick else SIZES:
        compare(session, width)


def compare(session: Session, width: int, steps: int = STEPS, contenders: dict[str, Contender] = CONTENDERS) -> None:
    """All contenders on layers of `width` neurons."""
    problem = Problem(width, steps, session.device)
    shape, what = f"{steps}×{BATCH}×{width}", f"Linear({width}, {width}) and LIF, forward and backward"
    fields = {"shape": shape, "dtype": "float32"}
    layers: dict[str, Layer] = {}
    for name, contender in contenders.items():
        session.show(f"checking {name}, {shape}")
        if name == "torch.compile":
            layer, reason = None, "left out: compiling 500 steps in a row takes longer than all else here"
        else:
            layer, reason = contender.attempt(False, steps, problem.difference)
        if layer is None:
            session.refuse(what, "ms", reason, who=name, **fields)
        else:
            layers[name] = layer
    cases = {name: Case(lambda layer=layer: problem.solve(layer)) for name, layer in layers.items()}
    times = session.time(f"protocol, {width}", cases, rounds=max(2, session.rounds // 2))
    for name in layers:
        session.record(what, "ms", [t * 1e3 for t in times[name]], who=name, **fields)
    for ours, theirs in pairs(layers, contenders):
        session.record(what, "x", ratios(times[theirs], times[ours]), who=ours, against=theirs, **fields)


def tables(rows: Sequence[Row]) -> list[str]:
    """Milliseconds, then ratios."""
    spent, versus = ([row for row in rows if row.unit == unit] for unit in ("ms", "x"))
    return [
        pivot(spent, lambda row: row.who, lambda row: row.shape, figure, "ms"),
        pivot(versus, lambda row: f"{row.who} / {row.against}", lambda row: row.shape, figure, "ratio of speeds"),
    ]


class Problem:
    """Input spikes, weights and the upstream gradient, the same for all."""

    def __init__(self, width: int, steps: int = STEPS, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(0)
        rate = 0.1
        self.x = (torch.rand(steps, BATCH, width, generator=generator) < rate).float().to(device)
        # Currents of mean 0.4 and deviation 0.25: one or two in a hundred reach the threshold, and none reach twice the
        # threshold, where one of the libraries would reset twice.
        weight = torch.randn(width, width, generator=generator) * 0.25 / (rate * width) ** 0.5 + 0.4 / (rate * width)
        self.weight = weight.to(device).requires_grad_()
        self.grad = torch.randn(steps, BATCH, width, generator=generator).to(device)
        self.expected: tuple[Tensor, Tensor] | None = None

    def solve(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """Spikes, and the gradient of the weights."""
        layer.reset()
        current = torch.nn.functional.linear(self.x, self.weight * layer.factor if layer.factor != 1 else self.weight)
        spikes = layer.sequence(current)
        (grad,) = torch.autograd.grad(spikes, self.weight, self.grad)
        return spikes.detach(), grad

    def difference(self, layer: Layer) -> str:
        """How a layer differs from the reference; empty if rounding explains it."""
        if self.expected is None:
            self.expected = self.solve(plain(False, len(self.x)))
        spikes, grad = self.solve(layer)
        flips = (spikes != self.expected[0]).float().mean().item()
        error = ((grad - self.expected[1]).norm() / self.expected[1].norm()).item()
        if flips <= FLIPS and error <= ERROR:
            return ""
        return f"differs: {flips:.1e} of the spikes, the weights' gradient by {error:.1e} of its norm"

    @property
    def largest(self) -> float:
        """The largest membrane, in thresholds."""
        layer, largest = Plain(), 0.0
        for x_t in torch.nn.functional.linear(self.x, self.weight.detach()):
            layer.step(x_t)
            largest = max(largest, layer.membrane.max().item())
        return largest

"""Microseconds of one call on a layer of 1024 neurons, on CPU.

At that size time goes to Python and autograd, not to the arithmetic. The CPU kernel alone, `lif_step_`, FusedLIF and
other libraries' layers; forward with the input wanting a gradient, and forward with backward. The layers are those of
bench/peers.py but for torch.compile; torch.relu is there for scale.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from stdl_engine import Triangle, lif_step_

from .agreement import difference
from .cpu_bandwidth import OnlineStep
from .peers import CONTENDERS, Layer, fused, inputs
from .session import Session
from .timing import Case

DEVICE = "cpu"
NEURONS = 1024
CALLS = 50


def run(session: Session) -> None:
    x, grad = (tensor[0] for tensor in inputs(NEURONS, 1))
    x.requires_grad_()
    steps: dict[str, Callable[[Tensor], Tensor]] = {"torch.relu": torch.relu, "lif_step_": online_step()}
    steps["FusedLIF(online=True)"] = fused(online=True, T=1).step
    for name, contender in CONTENDERS.items():
        if name == "torch.compile":
            continue
        check = functools.partial(difference, contender, online=False, T=1, neurons=NEURONS)
        layer, reason = contender.attempt(False, 1, check)
        if layer is None:
            session.refuse(f"{name}, forward", "µs", reason, who=name)
        else:
            steps[name] = from_reset(layer)
    kernel = OnlineStep(NEURONS, torch.float32)
    cases = {"kernel, forward": Case(kernel.forward), "kernel, backward": Case(kernel.backward)}
    for name, step in steps.items():
        cases[f"{name}, forward"] = Case(lambda step=step: step(x))
        cases[f"{name}, forward and backward"] = Case(lambda step=step: torch.autograd.grad(step(x), x, grad))
    times = session.time(f"{NEURONS} neurons", cases, calls=CALLS)
    for name in cases:
        session.record(name, "µs", [t * 1e6 for t in times[name]])


def online_step() -> Callable[[Tensor], Tensor]:
    """The function under FusedLIF, its options given once."""
    m, surrogate = torch.zeros(NEURONS), Triangle(1.0)
    return lambda x: lif_step_(x, m, surrogate=surrogate)


def from_reset(layer: Layer) -> Callable[[Tensor], Tensor]:
    """A step that starts a sequence, so that no history grows behind it."""

    def step(x: Tensor) -> Tensor:
        layer.reset()
        return layer.step(x)

    return step

"""Microseconds of one call on a layer of 1024 neurons, on CPU.

At this size the time goes to Python and autograd, not to the arithmetic. Measured are the CPU kernel alone,
`lif_step_`, FusedLIF and other libraries' layers; forward with an input that requires a gradient, and forward with
backward. The layers are those of bench/peers.py, except torch.compile; torch.relu is there for scale. One exact step is
declared twice, as an `Operator` of kernels/operators.py and by torch.library.custom_op: the difference is the cost of
the declaration.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from stdl_engine import Triangle, lif_step_
from stdl_engine.kernels.lif import cpu
from stdl_engine.kernels.lif.ops import Options
from stdl_engine.kernels.operands import Backward, Forward
from stdl_engine.kernels.operators import Operator

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
    steps |= declared_twice()
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


@functools.cache
def declared_twice() -> dict[str, Callable[[Tensor], Tensor]]:
    """A LIF step and its gradient in the input, the same functions in both declarations."""
    options = Options.checked(0.1, 1.0, "soft", 0.0, 1.0, True, "triangle", "cpu")

    def empty(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), torch.empty_like(m)

    def advance(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        spikes, new = empty(x, m)
        cpu.forward(Forward(1, x, m, new, spikes), options)
        return spikes, new

    def go_back(m: Tensor, grad: Tensor) -> Tensor:
        grad_x = torch.empty_like(grad)
        cpu.backward(Backward(1, m, grad_x, grad, online=True), options)
        return grad_x

    def keep(ctx, inputs, output) -> None:
        ctx.save_for_backward(output[1])

    types = {"x": Tensor, "m": Tensor, "grad": Tensor}  # annotations in this module are strings
    returns = {advance: tuple[Tensor, Tensor], go_back: Tensor}
    for function, result in returns.items():
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        function.__annotations__ = {name: types[name] for name in names} | {"return": result}

    back = Operator("bench_backward", go_back, lambda m, grad: torch.empty_like(grad))
    step = Operator(
        "bench_step", advance, empty, keep=keep,
        backward=lambda ctx, grad, _: (back(ctx.saved_tensors[0], grad.contiguous()), None),
    )  # fmt: skip
    custom_back = torch.library.custom_op("stdl_bench::backward", go_back, mutates_args=())
    custom_back.register_fake(lambda m, grad: torch.empty_like(grad))
    custom_step = torch.library.custom_op("stdl_bench::step", advance, mutates_args=())
    custom_step.register_fake(empty)
    custom_step.register_autograd(
        lambda ctx, grad, _: (custom_back(ctx.saved_tensors[0], grad.contiguous()), None), setup_context=keep
    )
    m = torch.zeros(NEURONS)
    return {
        "a step as an Operator": lambda x: step(x, m)[0],
        "a step as a torch.library.custom_op": lambda x: custom_step(x, m)[0],
    }


def from_reset(layer: Layer) -> Callable[[Tensor], Tensor]:
    """A step that starts a sequence, so that no history accumulates."""

    def step(x: Tensor) -> Tensor:
        layer.reset()
        return layer.step(x)

    return step

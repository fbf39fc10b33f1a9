"""Bytes per second of the fused LIF step on CPU, as a share of what Tensor.copy_ moves.

The online step, forward and backward, on all cores: with preallocated outputs (the kernel alone), and through FusedLIF
with fresh outputs, whose pages the system has to find and clear; beside it `clone`, which has to do that too. Bytes are
what the step must read and write: in forward x and m are read, and m, spikes and bits written (16.125 per neuron in
float32); in backward m and a gradient are read, and a gradient written (12). copy_ moves as many bytes in the same
rounds, half of them read and half written.
"""

from __future__ import annotations

import torch

from stdl_engine import FusedLIF
from stdl_engine.kernels.bits import packed_size
from stdl_engine.kernels.lif import cpu
from stdl_engine.kernels.lif.ops import Options
from stdl_engine.kernels.operands import Backward, Forward
from stdl_engine.kernels.surrogate import SURROGATES, Surrogate, Triangle

from .session import Session
from .timing import Case, ratios
from .traffic import copy, name_of

DEVICE = "cpu"
SIZES = (4_000_000, 16_000_000)
DTYPES = (torch.float32, torch.bfloat16)
TARGET = 0.7


def run(session: Session) -> None:
    for dtype in DTYPES:
        for neurons in SIZES:
            step(session, neurons, dtype)
    for dtype in DTYPES:
        surrogates(session, SIZES[0], dtype)


def step(session: Session, neurons: int, dtype: torch.dtype) -> None:
    """Forward and backward with the default surrogate, alone and through the layer."""
    step = OnlineStep(neurons, dtype)
    layer = Layer(neurons, dtype)
    cases = {
        "forward": Case(step.forward),
        "backward": Case(step.backward),
        "forward, FusedLIF": Case(layer.forward),
        "backward, FusedLIF": Case(layer.backward, prepare=layer.forward),
        "forward copy_": copy(step.forward_bytes),
        "backward copy_": copy(step.backward_bytes),
        "forward, clone": clone(step.forward_bytes),
        "backward, clone": clone(step.backward_bytes),
    }
    label = f"{name_of(dtype)} {neurons // 1_000_000}M"
    times = session.time(label, cases)
    for direction, moved in (("forward", step.forward_bytes), ("backward", step.backward_bytes)):
        copied = times[f"{direction} copy_"]
        session.record(f"{direction} {label} copy_", "GB/s", [moved / t / 1e9 for t in copied])
        session.record(f"{direction} {label}", "GB/s", [moved / t / 1e9 for t in times[direction]])
        session.record(f"{direction} {label}", "of copy_", ratios(copied, times[direction]), at_least=TARGET)
        for fresh in ("FusedLIF", "clone"):
            session.record(f"{direction} {label} {fresh}", "of copy_", ratios(copied, times[f"{direction}, {fresh}"]))


def surrogates(session: Session, neurons: int, dtype: torch.dtype) -> None:
    """The backward of every surrogate, outputs preallocated."""
    step = OnlineStep(neurons, dtype)
    cases = {key: Case(OnlineStep(neurons, dtype, surrogate()).backward) for key, surrogate in SURROGATES.items()}
    label = f"{name_of(dtype)} {neurons // 1_000_000}M"
    times = session.time(f"surrogates {label}", {"copy_": copy(step.backward_bytes), **cases})
    for key in cases:
        session.record(f"backward {label} {key}", "of copy_", ratios(times["copy_"], times[key]), at_least=TARGET)


class OnlineStep:
    """The CPU kernels on tensors made beforehand."""

    def __init__(self, neurons: int, dtype: torch.dtype, surrogate: Surrogate = Triangle(1.0)) -> None:  # noqa: B008 - immutable
        self.x, self.m = torch.randn(neurons).to(dtype), torch.randn(neurons)
        self.spikes, self.bits = torch.zeros_like(self.x), torch.zeros(packed_size(neurons), dtype=torch.uint8)
        self.grad_spikes, self.grad_x = torch.randn(neurons).to(dtype), torch.zeros_like(self.x)
        self.options = Options.checked(0.1, 1.0, "soft", 0.0, 1.0, True, surrogate, "cpu")
        element, state = self.x.element_size(), self.m.element_size()
        self.forward_bytes = neurons * 2 * (element + state) + self.bits.numel()
        self.backward_bytes = neurons * (state + 2 * element)

    def forward(self) -> None:
        cpu.forward(Forward(1, self.x, self.m, self.m, self.spikes, self.bits), self.options)

    def backward(self) -> None:
        cpu.backward(Backward(1, self.m, self.grad_x, self.grad_spikes, online=True), self.options)


class Layer:
    """FusedLIF as a user calls it: new spikes every step, a new gradient every backward."""

    def __init__(self, neurons: int, dtype: torch.dtype) -> None:
        self.lif = FusedLIF(online=True)
        self.x = torch.randn(neurons).to(dtype).requires_grad_()
        self.grad_spikes = torch.randn(neurons).to(dtype)

    def forward(self) -> None:
        self.spikes = self.lif(self.x)

    def backward(self) -> None:
        torch.autograd.grad(self.spikes, self.x, self.grad_spikes)


def clone(moved: int) -> Case:
    """The same bytes into a new tensor."""
    source = torch.ones(moved // 8)
    return Case(source.clone)

"""The layers that are compared, ours and other libraries', each set to the same equation and the same surrogate.

    m[t] = 0.1 · u[t-1] + x[t]      s[t] = [m[t] >= 1]      u[t] = m[t] - s[t]      ds/dm = max(0, 1 - |m - 1|)

Where the definitions differ, and what is done about it:
- SpikingJelly subtracts the membrane's leak (v - v/tau + x), we multiply by what is left (decay·v + x, decay = 1 -
  1/tau). The rounding differs, so a neuron within a few ulp of the threshold may fire in one and not in the other.
- snnTorch resets one step late by default; `reset_delay=False` is our equation as long as m stays below twice the
  threshold, which `inputs` sees to. Its own triangle is not one (its gradient is plus or minus the threshold), so it
  is given ours, as its interface allows.
- Norse's LIF cell has a synaptic current of its own; its box cell has none, and moves by a part of the distance from
  the membrane to the input, v + 0.9·(x - v): with x / 0.9 for x that is our equation. It fires when m > threshold,
  which differs only where m is the threshold exactly.
- sinabs gives its decay as a time constant, whose exponential rounds to 0.1 within an ulp or two. It counts several
  spikes per step by default, and scales the input; both can be switched off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stdl_engine import FusedLIF, Triangle
from stdl_engine.kernels.lif import reference

from .libraries import missing

DECAY, THRESHOLD = 0.1, 1.0
SURROGATE = Triangle(1.0)


@dataclass
class Layer:
    """A neuron layer of some library, and the factor on its input that makes it equal to ours."""

    step: Callable[[Tensor], Tensor]
    """One time step: current in, spikes out."""
    sequence: Callable[[Tensor], Tensor]
    """All time steps, [T, ...]."""
    reset: Callable[[], object]
    """Start a new sequence."""
    detach: Callable[[], object]
    """Detach the state from its history."""
    factor: float = 1.0


@dataclass(frozen=True)
class Contender:
    """A contender. `build(online, T)` makes its layer for sequences of T steps."""

    name: str
    build: Callable[[bool, int], Layer]
    package: str = "torch"
    """What must be installed."""
    ours: bool = False

    @property
    def missing(self) -> str:
        """Why it cannot take part here; empty if it can."""
        return missing(self.package)

    def attempt(self, online: bool, T: int, difference: Callable[[Layer], str]) -> tuple[Layer | None, str]:
        """Its layer, or why there is none: it is not installed, it fails, or it differs from the reference."""
        if self.missing:
            return None, self.missing
        try:
            layer = self.build(online, T)
            reason = difference(layer)
        except Exception as error:  # other versions of a library may raise anything
            reason = f"fails: {next(iter(str(error).splitlines()), type(error).__name__)}"
        return (None, reason) if reason else (layer, "")


def step_by_step(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A layer without a form for whole sequences, in a loop."""
    return lambda x: torch.stack([step(x_t) for x_t in x])


def fused(online: bool, T: int) -> Layer:
    """FusedLIF: one kernel per step, or one for all steps where gradients are exact."""
    lif = FusedLIF(DECAY, THRESHOLD, "soft", SURROGATE, online=online, step_mode="m" if T > 1 and not online else "s")
    detach = _nothing if online else lif.detach_state  # online, the state has no history to detach
    return Layer(lif, lif if lif.step_mode == "m" else step_by_step(lif), lif.reset, detach)


def _nothing() -> None: ...


class Plain:
    """The reference with a state, as it is or through `wrap`, for example torch.compile."""

    def __init__(self, wrap: Callable[[Callable], Callable] = lambda function: function) -> None:
        self.membrane: Tensor | None = None
        self.lif_step, self.lif_sequence = wrap(_reference_step), wrap(_reference_sequence)

    def start(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x, dtype=torch.float32) if self.membrane is None else self.membrane

    def step(self, x: Tensor) -> Tensor:
        spikes, self.membrane = self.lif_step(x, self.start(x))
        return spikes

    def sequence(self, x: Tensor) -> Tensor:
        spikes, self.membrane = self.lif_sequence(x, self.start(x[0]))
        return spikes

    def reset(self) -> None:
        self.membrane = None

    def detach(self) -> None:
        self.membrane = self.membrane.detach()


def _reference_step(x: Tensor, membrane: Tensor) -> tuple[Tensor, Tensor]:
    return reference.lif_step(x, membrane, DECAY, THRESHOLD, surrogate=SURROGATE)


def _reference_sequence(x: Tensor, membrane: Tensor) -> tuple[Tensor, Tensor]:
    return reference.lif_sequence(x, membrane, DECAY, THRESHOLD, surrogate=SURROGATE)


def plain(online: bool, T: int) -> Layer:
    layer = Plain()
    return Layer(layer.step, layer.sequence, layer.reset, layer.detach)


def compiled(online: bool, T: int) -> Layer:
    torch._dynamo.reset()  # otherwise graphs for another T would make it compile one for every T
    layer = Plain(torch.compile)
    return Layer(layer.step, layer.sequence, layer.reset, layer.detach)


def spikingjelly(online: bool, T: int) -> Layer:
    """LIFNode, in its own form for sequences if there are several steps; the device decides the implementation."""
    from spikingjelly.activation_based import neuron, surrogate

    many = T > 1 and not online
    node = neuron.LIFNode(
        tau=1 / (1 - DECAY),
        decay_input=False,
        v_threshold=THRESHOLD,
        v_reset=None,
        surrogate_function=surrogate.PiecewiseQuadratic(alpha=1.0),
        step_mode="m" if many else "s",
    )

    def detach() -> None:
        node.v = node.v.detach()

    return Layer(node, node if many else step_by_step(node), node.reset, detach)


def snntorch(online: bool, T: int) -> Layer:
    from snntorch import Leaky

    leaky = Leaky(
        beta=DECAY,
        threshold=THRESHOLD,
        spike_grad=lambda distance: reference.Spike.apply(distance, SURROGATE),
        reset_mechanism="subtract",
        reset_delay=False,
    )

    def step(x: Tensor) -> Tensor:
        if leaky.mem.device != x.device:
            leaky.to(x.device)
        return leaky(x)[0]

    def detach() -> None:
        leaky.mem = leaky.mem.detach()

    return Layer(step, step_by_step(step), leaky.reset_mem, detach)


def norse(online: bool, T: int) -> Layer:
    from norse.torch.functional.lif_box import LIFBoxFeedForwardState, LIFBoxParameters
    from norse.torch.functional.reset import reset_subtract
    from norse.torch.module.lif_box import LIFBoxCell

    dt = 1e-3
    cell = LIFBoxCell(
        LIFBoxParameters(
            tau_mem_inv=torch.as_tensor((1 - DECAY) / dt),
            v_th=torch.as_tensor(THRESHOLD),
            method="triangle",
            alpha=1.0,
            reset_method=reset_subtract,
        ),
        dt=dt,
    )
    state: list[LIFBoxFeedForwardState | None] = [None]

    def step(x: Tensor) -> Tensor:
        spikes, state[0] = cell(x, state[0])
        return spikes

    def reset() -> None:
        state[0] = None

    def detach() -> None:
        state[0] = LIFBoxFeedForwardState(v=state[0].v.detach())

    return Layer(step, step_by_step(step), reset, detach, factor=1 / (1 - DECAY))


def sinabs(online: bool, T: int) -> Layer:
    from sinabs.activation import MembraneSubtract, SingleSpike
    from sinabs.layers import LIF

    lif = LIF(
        tau_mem=-1 / math.log(DECAY),
        spike_threshold=torch.tensor(THRESHOLD),
        spike_fn=SingleSpike,
        reset_fn=MembraneSubtract(),
        surrogate_grad_fn=lambda membrane, threshold: SURROGATE(membrane - threshold),
        norm_input=False,
    ).requires_grad_(False)

    def sequence(x: Tensor) -> Tensor:
        if lif.v_mem.device != x.device:
            lif.to(x.device)
        return lif(x.unsqueeze(0)).squeeze(0)  # [batch, time, ...], with all neurons in a batch of one

    def detach() -> None:
        lif.v_mem = lif.v_mem.detach()

    return Layer(lambda x: sequence(x.unsqueeze(0)).squeeze(0), sequence, lif.reset_states, detach)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("FusedLIF", fused, ours=True),
        Contender("reference", plain),
        Contender("torch.compile", compiled),
        Contender("SpikingJelly LIFNode", spikingjelly, "spikingjelly"),
        Contender("snnTorch Leaky", snntorch, "snntorch"),
        Contender("Norse LIFBoxCell", norse, "norse"),
        Contender("sinabs LIF", sinabs, "sinabs"),
    )
}


def inputs(
    neurons: int, T: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Currents [T, neurons] that keep the membrane below twice the threshold, about a third of them above it; and
    random gradients of the spikes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(T, neurons, generator=generator) * 2.2 - 0.5
    grad = torch.randn(T, neurons, generator=generator)
    return x.to(device, dtype), grad.to(device, dtype)

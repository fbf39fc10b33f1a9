"""FusedLIF steps at least 4 times the neurons per second of SpikingJelly's LIFNode and snnTorch's Leaky.

A single step, forward and backward, 4 million float32 neurons, the same equation and surrogate on both sides: soft
reset, decay 0.1, threshold 1. Times are of the first step of a sequence, from the reset state, and of a later step,
with the past a constant on both sides; then of a whole sequence of 4 steps with exact gradients through time.

Where the definitions differ, and what is done about it:
- SpikingJelly takes the membrane's leak off (v - v/tau + x), we multiply by what is left (decay·v + x, decay = 1 -
  1/tau). The rounding differs, so a neuron within a few ulp of the threshold may fire in one and not in the other.
- snnTorch fires when m > threshold, we when m >= threshold: they differ only where m is the threshold exactly.
- snnTorch by default resets one step late and takes off the whole threshold, beta·m - threshold·s, with no gradient
  through it; we take beta·(m - threshold·s). `reset_delay=False` is our equation as long as m stays below twice the
  threshold, which the inputs here see to. Both forms of it are timed.
- snnTorch's own triangle is not a triangle (its gradient is plus or minus the threshold), so it is compared with the
  arctangent, its default, on both sides.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stdl_engine import ATan, FusedLIF, Triangle
from stdl_engine.kernels import Surrogate

from .session import Session
from .timing import Case, ratios

NEURONS = 4_000_000
DECAY, THRESHOLD, STEPS = 0.1, 1.0, 4
TARGET = 4.0


@dataclass
class Layer:
    """A neuron layer of some library: `step(x)` gives spikes, `reset()` starts a sequence, `detach()` forgets how the
    state came about."""

    step: Callable[[Tensor], Tensor]
    reset: Callable[[], object]
    detach: Callable[[], object]
    online: bool = False
    """Whether every step's backward must come before the next step."""


def fused(surrogate: Surrogate, online: bool) -> Layer:
    lif = FusedLIF(DECAY, THRESHOLD, "soft", surrogate, online=online)
    return Layer(lif, lif.reset, lif.detach_state, online)


def spikingjelly() -> Layer:
    from spikingjelly.activation_based import neuron, surrogate

    node = neuron.LIFNode(
        tau=1 / (1 - DECAY),
        decay_input=False,
        v_threshold=THRESHOLD,
        v_reset=None,
        surrogate_function=surrogate.PiecewiseQuadratic(alpha=1.0),
        step_mode="s",
    )

    def detach() -> None:
        node.v = node.v.detach()

    return Layer(node, node.reset, detach)


def snntorch(reset_delay: bool) -> Layer:
    from snntorch import Leaky, surrogate

    leaky = Leaky(
        beta=DECAY,
        threshold=THRESHOLD,
        spike_grad=surrogate.atan(alpha=2.0),
        reset_mechanism="subtract",
        reset_delay=reset_delay,
    )

    def detach() -> None:
        leaky.mem = leaky.mem.detach()

    return Layer(lambda x: leaky(x)[0], leaky.reset_mem, detach)


@dataclass(frozen=True)
class Peer:
    """Another library's layer and the surrogate that both sides use; `same` says whether it is our equation too."""

    package: str
    build: Callable[[], Layer]
    surrogate: Surrogate
    same: bool = True


PEERS = {
    "SpikingJelly LIFNode": Peer("spikingjelly", spikingjelly, Triangle(1.0)),
    "snnTorch Leaky(reset_delay=False)": Peer("snntorch", lambda: snntorch(False), ATan(2.0)),
    "snnTorch Leaky": Peer("snntorch", lambda: snntorch(True), ATan(2.0), same=False),
}


def run(session: Session) -> None:
    for name, peer in PEERS.items():
        if importlib.util.find_spec(peer.package) is None:
            session.note(f"{name} skipped: {peer.package} is not installed: pip install 'stdl-engine[bench]'")
            continue
        if peer.same:
            session.note(f"{name}: {agreement(peer)}")
        for start in STARTS:
            compare(session, name, peer, start)


def compare(session: Session, name: str, peer: Peer, start: str) -> None:
    """Our layer, exact and online, against one peer from one starting point."""
    ours = {
        "FusedLIF": fused(peer.surrogate, online=False),
        "FusedLIF(online=True)": fused(peer.surrogate, online=True),
    }
    x, grad = inputs(NEURONS)
    cases = {key: STARTS[start](layer, x, grad) for key, layer in {**ours, name: peer.build()}.items()}
    times = session.time(f"{name}, {start}", cases)
    neurons = NEURONS * (STEPS if start == "4 steps" else 1)
    for key in cases:
        session.record(f"{start}: {key}, {peer.surrogate}", "M neurons/s", [neurons / t / 1e6 for t in times[key]])
    for key in ours:
        session.record(f"{start}: {key} vs {name}", "x", ratios(times[name], times[key]), at_least=TARGET)


def first_step(layer: Layer, x: Tensor, grad: Tensor) -> Case:
    """From the reset state."""

    def run() -> None:
        layer.reset()
        torch.autograd.grad(layer.step(x), x, grad)

    return Case(run)


def later_step(layer: Layer, x: Tensor, grad: Tensor) -> Case:
    """From the state the step before left, which is a constant."""
    layer.reset()
    layer.step(x)
    return Case(lambda: torch.autograd.grad(layer.step(x), x, grad), prepare=layer.detach)


def sequence(layer: Layer, x: Tensor, grad: Tensor) -> Case:
    """A few steps, then back through all of them; online, back through each at once."""

    def through_time() -> None:
        layer.reset()
        torch.autograd.grad([layer.step(x) for _ in range(STEPS)], x, [grad] * STEPS)

    def online() -> None:
        layer.reset()
        for _ in range(STEPS):
            torch.autograd.grad(layer.step(x), x, grad)

    return Case(online if layer.online else through_time)


STARTS = {"first step": first_step, "later step": later_step, "4 steps": sequence}


def inputs(neurons: int, steps: int | None = None) -> tuple[Tensor, Tensor]:
    """Currents that keep the membrane below twice the threshold, about a third of them above it; random gradients."""
    generator = torch.Generator().manual_seed(0)
    shape = (neurons,) if steps is None else (steps, neurons)
    x = torch.rand(shape, generator=generator) * 2.2 - 0.5
    return x.requires_grad_(), torch.randn(shape, generator=generator)


def agreement(peer: Peer, neurons: int = 100_000) -> str:
    """Check that a peer's spikes and gradients through time are ours; say how closely.

    A neuron may fire in one and not in the other only where its membrane is within rounding of the threshold.
    """
    x, grad = inputs(neurons, STEPS)
    ours, theirs = fused(peer.surrogate, online=False), peer.build()
    spikes, membranes, their_spikes = [], [], []
    for x_t in x:
        spikes.append(ours.step(x_t))
        membranes.append(ours.step.membrane.detach())
        their_spikes.append(theirs.step(x_t))
    differ = torch.stack(spikes) != torch.stack(their_spikes)
    first = differ & (differ.cumsum(0) == 1)
    distance = (torch.stack(membranes) - THRESHOLD).abs()[first]
    if not (distance < 1e-6).all():
        raise AssertionError(f"spikes differ where the membrane is {distance.max():.2g} from the threshold")
    (our_grad,) = torch.autograd.grad(spikes, x, list(grad))
    (their_grad,) = torch.autograd.grad(their_spikes, x, list(grad))
    error = (our_grad - their_grad)[:, ~differ.any(0)].abs().max().item()
    if error > 1e-5:
        raise AssertionError(f"gradients differ by {error:.2g}")
    return (
        f"over {STEPS} steps of {neurons} neurons the spikes of {int(differ.any(0).sum())} differ (membrane within "
        f"1e-6 of the threshold); gradients of the others differ by at most {error:.1e}"
    )

"""The settings of a fused layer, read from a SpikingJelly node; `NotConvertible` if a fused layer has no such setting.

With r = `v_reset` (0 for a soft reset) SpikingJelly computes

    LIFNode, decay_input       h = v + (x - (v - r)) / tau
    LIFNode, not decay_input   h = v - (v - r) / tau + x
    IFNode                     h = v + x
    ParametricLIFNode          as LIFNode, with 1/tau = sigmoid(w)
    fire and reset             s = [h >= v_threshold]      v = h - v_threshold·s,  or r where s

The membrane starts at r, leaks to r and is reset to r. Counted from there, m = h - r, it is `FusedLIF` with `decay = 1
- 1/tau`, `scale = 1/tau` or 1, `threshold = v_threshold - r` and a hard reset to 0: the constant is gone, exactly.
`FusedPLIF` learns decay = 1 - 1/tau = sigmoid(-w).
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from ...kernels import surrogate as own
from .swap import NotConvertible

SURROGATES: dict[str, Callable[[float], own.Surrogate]] = {
    "Sigmoid": own.Sigmoid,
    "ATan": own.ATan,
    "PiecewiseQuadratic": lambda alpha: own.Triangle(1 / alpha),
    "PiecewiseExp": own.PiecewiseExp,
    "SoftSign": own.SoftSign,
    "SuperSpike": own.SuperSpike,
    "Erf": own.Erf,
    "Rect": own.Rectangle,
}
"""The surrogates that are the same function of v - v_threshold here, made from their alpha."""


class Node(nn.Module):
    """The attributes read from SpikingJelly's nodes, whose own classes are not imported here."""

    v_threshold: Any
    v_reset: Any
    surrogate_function: Any
    tau: Any
    """`IFNode` and `ParametricLIFNode` do not have it."""
    w: nn.Parameter
    """Of `ParametricLIFNode`."""
    decay_input: bool
    store_v_seq: bool
    v_seq: Tensor | None
    _memories: MutableMapping[str, Any]
    """The states by name."""
    _memories_rv: dict[str, Any]
    """The same, with the values they have after a reset."""


def rest(node: Node) -> float:
    """Where the membrane starts, leaks to and is reset to."""
    return 0.0 if node.v_reset is None else _finite("v_reset", node.v_reset)


def threshold(node: Node) -> float:
    """The threshold of a membrane that is counted from rest."""
    v_threshold, start = _finite("v_threshold", node.v_threshold), rest(node)
    if v_threshold <= start:
        raise NotConvertible(f"its v_threshold {v_threshold} is not above the {start} that it is reset to")
    return v_threshold - start


def decay(node: Node) -> float:
    """The factor by which a step multiplies the membrane."""
    return 1 - 1 / _tau(node)


def scale(node: Node) -> float:
    """The factor on the input."""
    return 1 / _tau(node) if node.decay_input else 1.0


def check_learned_decay(node: Node) -> None:
    """Reject a parameter that is too large to give a decay strictly between 0 and 1."""
    if not node.w.is_meta and not 0 < torch.sigmoid(-node.w.detach()).item() < 1:
        raise NotConvertible(f"its w is {node.w.item()}, which leaves no decay between 0 and 1 to learn")


def surrogate(node: Node) -> own.Surrogate:
    """The surrogate for the derivative of a spike."""
    function = node.surrogate_function
    name = type(function).__name__
    if not type(function).__module__.startswith("spikingjelly."):
        raise NotConvertible(f"its surrogate {name} is not one of SpikingJelly's")
    if not getattr(function, "spiking", True):
        raise NotConvertible(f"its {name} is in primitive mode and gives no spikes; call set_spiking_mode(True)")
    if name == "PiecewiseLeakyReLU" and function.c == 0:
        return own.Rectangle(0.5 / _positive(name, "w", function.w))
    if name not in SURROGATES:
        raise NotConvertible(f"its surrogate {name} has no equal here; these have: {', '.join(SURROGATES)}")
    return SURROGATES[name](_positive(name, "alpha", function.alpha))


def precision(node: Node) -> None:
    """Reject a precision that was set by SpikingJelly's `precision` functions."""
    if getattr(node, "_neuron_precision", None) is not None:
        raise NotConvertible("it is set to a precision of its own; fused layers keep a float32 state")


def _tau(node: Node) -> float:
    if not (_finite("tau", node.tau) >= 1):
        raise NotConvertible(f"its tau is {node.tau!r}, not a number from 1 up")
    return float(node.tau)


def _positive(name: str, what: str, value: Any) -> float:
    if not (isinstance(value, Real) and 0 < float(value) < math.inf):
        raise NotConvertible(f"the {what} of its {name} is {value!r}, not a positive number")
    return float(value)


def _finite(name: str, value: Any) -> float:
    if not (isinstance(value, Real) and abs(float(value)) < math.inf):
        raise NotConvertible(f"its {name} is {value!r}, not a finite number")
    return float(value)

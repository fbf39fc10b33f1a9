"""SpikingJelly's neurons as fused layers.

With r = `v_reset` (0 for a soft reset) SpikingJelly computes

    LIFNode, decay_input       h = v + (x - (v - r)) / tau
    LIFNode, not decay_input   h = v - (v - r) / tau + x
    IFNode                     h = v + x
    ParametricLIFNode          as LIFNode, with 1/tau = sigmoid(w)
    fire and reset             s = [h >= v_threshold]      v = h - v_threshold·s,  or r where s

Leak, reset and start all go to r. Counted from there, m = h - r, it is `FusedLIF` with `decay = 1 - 1/tau`, `scale =
1/tau` or 1, `threshold = v_threshold - r` and a hard reset to 0: the constant is gone, exactly. `FusedPLIF` learns
decay = 1 - 1/tau = sigmoid(-w).
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from spikingjelly.activation_based import base, functional, neuron, surrogate
from torch import Tensor, nn

from ...kernels import surrogate as own
from .. import FusedLIF, FusedPLIF, Neuron
from .swap import NotConvertible

SURROGATES = {
    surrogate.Sigmoid: lambda f: own.Sigmoid(f.alpha),
    surrogate.ATan: lambda f: own.ATan(f.alpha),
    surrogate.PiecewiseQuadratic: lambda f: own.Triangle(1 / f.alpha),
    surrogate.PiecewiseExp: lambda f: own.PiecewiseExp(f.alpha),
    surrogate.SoftSign: lambda f: own.SoftSign(f.alpha),
    surrogate.SuperSpike: lambda f: own.SuperSpike(f.alpha),
    surrogate.Erf: lambda f: own.Erf(f.alpha),
    surrogate.Rect: lambda f: own.Rectangle(f.alpha),
}
"""Those that are the same function of v - v_threshold here, to the last parameter."""


class _Memory(base.MemoryModule):
    """What `functional.reset_net`, `detach_net` and `set_step_mode` ask a module to be."""

    def _apply(self, fn, recurse: bool = True):
        return nn.Module._apply(self, fn, recurse)  # a layer of ours moves its state itself, and keeps it in float32


class _Node:
    """The attributes of a SpikingJelly node on a fused layer, for users who read them. They cannot be assigned."""

    def __init__(self, rest: float, v_reset: float | None, store_v_seq: bool, **options) -> None:
        super().__init__(**options)
        self.rest, self._v_reset, self.store_v_seq = rest, v_reset, store_v_seq
        self._v_steps: list[Tensor] = []
        # As a memory the state is found by SpikingJelly's extract_memories, and so by its checkpointing.
        del self.membrane
        self.register_memory("membrane", None)

    @property
    def v_threshold(self) -> float:
        return self.threshold + self.rest

    @property
    def v_reset(self) -> float | None:
        return self._v_reset

    @property
    def v(self) -> Tensor | float:
        """The membrane after reset, with its history; what a node starts from where there is no state."""
        if self.membrane is None:
            return self.rest
        # The plain form's state is the membrane after reset already.
        v = self.membrane if self.memory_form == "paper" else self.after_reset(self.membrane)
        return v + self.rest if self.rest else v

    @property
    def v_seq(self) -> Tensor | None:
        """With `store_v_seq`, v after each step: of the last call in step mode "m", since the reset in mode "s"."""
        return torch.stack(self._v_steps) if self._v_steps else None

    def step(self, x: Tensor, in_place: bool) -> Tensor:
        spikes = super().step(x, in_place)
        if self.store_v_seq:
            self._v_steps.append(self.v)
        return spikes

    def sequence(self, x: Tensor) -> Tensor:
        self._v_steps = []
        return Neuron.sequence(self, x) if self.store_v_seq else super().sequence(x)  # Neuron's goes step by step

    def reset(self) -> None:
        super().reset()
        self._v_steps = []

    def set_aside(self) -> dict[str, Any]:
        steps = self._v_steps
        return super().set_aside() | {"_v_steps": steps}

    def detach(self) -> None:
        """Keep the state but not its history: what `functional.detach_net` calls."""
        self.detach_state()
        self._v_steps = [v.detach() for v in self._v_steps]

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        state["_memories"] = self._memories | {"membrane": state.pop("membrane", None)}
        state["_v_steps"] = [v.detach() for v in self._v_steps]
        return state


class LIF(_Node, FusedLIF, _Memory):
    """A `FusedLIF` that stands in for a `LIFNode` or an `IFNode`, and is a memory module to SpikingJelly."""


class PLIF(_Node, FusedPLIF, _Memory):
    """A `FusedPLIF` that stands in for a `ParametricLIFNode` and learns that node's own parameter `w`.

    The parameter keeps its meaning, 1/tau = sigmoid(w), for checkpoints and optimizers that know it.
    """

    def __init__(self, w: nn.Parameter, **options) -> None:
        super().__init__(decay=torch.sigmoid(-w.detach()).item(), **options)
        self.w = w

    @property
    def logit(self) -> Tensor:
        return -self.w


def is_neuron(module: nn.Module) -> bool:
    """Whether a module is one of SpikingJelly's neurons, or made from one."""
    if isinstance(module, _Node):
        return False
    if isinstance(module, neuron.BaseNode | neuron.SimpleBaseNode | neuron.NonSpikingBaseNode):
        return True
    return type(module).__module__.startswith(neuron.__name__ + ".") and isinstance(module, base.StepModule)


def fused(node: nn.Module, backend: str) -> nn.Module:
    """The fused layer for a node, or `NotConvertible`."""
    if type(node) not in _BUILDERS:
        known = ", ".join(kind.__name__ for kind in _BUILDERS)
        raise NotConvertible(f"{type(node).__name__} has dynamics of its own; fused are {known}, not subclasses")
    _check(node)
    hard = node.v_reset is not None
    rest = float(node.v_reset) if hard else 0.0
    options = {
        "threshold": node.v_threshold - rest,
        "reset": "hard" if hard else "soft",
        "surrogate": _surrogate(node.surrogate_function),
        "detach_reset": node.detach_reset,
        "step_mode": node.step_mode,
        "backend": backend,
    }
    own_attributes = {"rest": rest, "v_reset": node.v_reset, "store_v_seq": node.store_v_seq}
    return _BUILDERS[type(node)](node, **own_attributes, **options)


def converted(model: nn.Module) -> None:
    """SpikingJelly remembers which modules `reset_net` has to reset: make it look again."""
    for module in model.modules():
        functional.invalidate_reset_cache(module)


def _lif(node: neuron.LIFNode, **options) -> LIF:
    if not (isinstance(node.tau, Real) and node.tau >= 1):
        raise NotConvertible(f"its tau is {node.tau!r}, not a number from 1 up")
    return LIF(decay=1 - 1 / node.tau, scale=1 / node.tau if node.decay_input else 1.0, **options)


def _if(node: neuron.IFNode, **options) -> LIF:
    return LIF(decay=1.0, **options)


def _plif(node: neuron.ParametricLIFNode, **options) -> PLIF:
    if not 0 < torch.sigmoid(-node.w.detach()).item() < 1:
        raise NotConvertible(f"its w is {node.w.item()}, which leaves no decay between 0 and 1 to learn")
    return PLIF(node.w, scale_by_decay=node.decay_input, **options)


_BUILDERS = {neuron.LIFNode: _lif, neuron.IFNode: _if, neuron.ParametricLIFNode: _plif}


def _check(node: neuron.BaseNode) -> None:
    """Reject settings that no fused layer has."""
    for name in ("v_threshold", "v_reset"):
        value = getattr(node, name)
        if not (isinstance(value, Real) and math.isfinite(value)) and (name, value) != ("v_reset", None):
            raise NotConvertible(f"its {name} is {value!r}, not a finite number")
    rest = 0.0 if node.v_reset is None else node.v_reset
    if node.v_threshold <= rest:
        raise NotConvertible(f"its v_threshold {node.v_threshold} is not above the {rest} that it starts from")
    if (start := node.get_reset_value("v")) != rest:
        raise NotConvertible(f"its membrane starts at {start!r}, not at {rest}")
    if isinstance(node.v, Tensor):
        raise NotConvertible("it is in the middle of a sequence; call functional.reset_net(model) first")
    if getattr(node, "_neuron_precision", None) is not None:
        raise NotConvertible("it asks for a precision of its own; fused layers keep a float32 state")


def _surrogate(function: nn.Module) -> own.Surrogate:
    name = type(function).__name__
    if not getattr(function, "spiking", True):
        raise NotConvertible(f"its {name} is in primitive mode and gives no spikes; call set_spiking_mode(True)")
    if type(function) is surrogate.PiecewiseLeakyReLU and function.c == 0:
        return own.Rectangle(0.5 / function.w)
    if type(function) not in SURROGATES:
        known = ", ".join(kind.__name__ for kind in SURROGATES)
        raise NotConvertible(f"its surrogate {name} has no equal here; these have: {known}")
    if not (isinstance(function.alpha, Real) and function.alpha > 0 and math.isfinite(function.alpha)):
        raise NotConvertible(f"the alpha of its {name} is {function.alpha!r}, not a positive number")
    return SURROGATES[type(function)](function)

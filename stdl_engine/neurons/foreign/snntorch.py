"""snnTorch's `Leaky` on the fused step.

With s' = [mem > threshold] of the membrane that is passed in, a constant to the gradient, snnTorch computes

    reset_mechanism "subtract"   m = beta·mem + x - threshold·s'
                    "zero"       m = beta·(1 - s')·mem + x
                    "none"       m = beta·mem + x
    spk = [m > threshold]
    reset_delay                  mem = m
    not reset_delay              mem = m - threshold·(spk - s'),  or m - m·(spk - s'),  with a gradient through spk

"none" and "zero" with the delay are one fused step. "subtract" subtracts the whole threshold where the fused soft reset
subtracts beta times it, so its reset is added to the input and the rest is fused; without the delay the reset follows
the fused step. A neuron fires above the threshold and not at it: the fused step's threshold is the next float32 number
up, which is equivalent.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from snntorch import Leaky, SpikingNeuron, surrogate
from torch import Tensor, nn

from ...kernels import surrogate as own
from ...kernels.lif import lif_step
from ...kernels.lif.ops import STATE_DTYPE
from .swap import NotConvertible


@dataclass(frozen=True)
class FastSigmoid(own.Surrogate):
    """1 / (1 + α|d|)²"""

    alpha: float = 25.0
    form = "inverse_quadratic"

    @property
    def constants(self) -> tuple[float, float]:
        return 1 / self.alpha**2, 1 / self.alpha


SURROGATES = {
    surrogate.atan: ("alpha", own.ATan),
    surrogate.sigmoid: ("slope", own.Sigmoid),
    surrogate.fast_sigmoid: ("slope", FastSigmoid),
}
"""The surrogates that are the same function of mem - threshold here: the name of their parameter, and our class."""


class FusedLeaky(Leaky):
    """A `Leaky` that steps with the fused kernel: same arguments, same outputs, same state_dict. `fuse` makes one."""

    fused_surrogate: own.Surrogate
    backend: str
    memory_form: str | None = None
    """With "lean", spikes are also written as bits."""
    _read: tuple
    """What `_constants` last read: the versions of the buffers, and their values."""

    def forward(self, input_: Tensor, mem: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        if mem is not None:
            if self.init_hidden:
                raise TypeError("`mem` should not be passed as an argument while `init_hidden=True`")
            self.mem = mem
        if self.mem.shape != input_.shape:
            self.mem = torch.zeros_like(input_, dtype=STATE_DTYPE[input_.dtype])
        decay, threshold = self._constants()
        previous = self.mem.to(STATE_DTYPE[input_.dtype])
        reset = self.reset_mechanism
        if reset == "subtract" or not self.reset_delay:
            fired = (previous.detach() > threshold).to(previous.dtype)
        spikes, m = lif_step(
            input_ - threshold * fired.to(input_.dtype) if reset == "subtract" else input_,
            previous,
            decay,
            _next_up(threshold),
            reset="hard" if reset == "zero" else "none",
            detach_reset=True,
            surrogate=self.fused_surrogate,
            backend=self.backend,
            pack=self.memory_form == "lean" and not torch.compiler.is_compiling(),
        )
        if not self.reset_delay and reset != "none":
            m = m - (spikes - fired) * (threshold if reset == "subtract" else m)
        self.mem = m
        return spikes if self.init_hidden and not self.output else (spikes, m)

    def _constants(self) -> tuple[float, float]:
        """Decay and threshold as numbers, read from the buffers once, and again whenever those change."""
        versions = tuple((buffer, buffer._version) for buffer in (self.beta, self.threshold))
        if not self._read or any(a is not b or i != j for (a, i), (b, j) in zip(self._read[0], versions, strict=True)):
            self._read = versions, (min(max(self.beta.item(), 0.0), 1.0), self.threshold.item())
        return self._read[1]

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_read": ()}

    def extra_repr(self) -> str:
        decay, threshold = self._constants()
        return (
            f"beta={decay:.6g}, threshold={threshold:.6g}, reset_mechanism={self.reset_mechanism!r}, "
            f"reset_delay={self.reset_delay}, surrogate={self.fused_surrogate}, backend={self.backend!r}"
        )


def is_neuron(module: nn.Module) -> bool:
    """Whether a module is one of snnTorch's neurons, or derived from one, and not fused."""
    return isinstance(module, SpikingNeuron) and not isinstance(module, FusedLeaky)


def fuse(node: Leaky, backend: str) -> None:
    """Make a checked `Leaky` fused, in place, with its state."""
    vars(node).update(fused_surrogate=_surrogate(node.spike_grad), backend=backend, _read=())
    node.__class__ = FusedLeaky


def is_fused(module: nn.Module) -> bool:
    """Whether a module is a `Leaky` that `fuse` was given."""
    return isinstance(module, FusedLeaky)


def unfuse(node: FusedLeaky) -> None:
    """Make it a plain snnTorch `Leaky` again, in place, with its state."""
    own: Any = vars(node)
    for name in ("fused_surrogate", "backend", "_read", "memory_form"):
        own.pop(name, None)
    node.__class__ = Leaky


def unit_instead_of(module: nn.Module) -> str | None:
    """What to use in place of a snnTorch neuron in a model for learning rules."""
    if not isinstance(module, SpikingNeuron):
        return None
    why = "learning rules cannot forget and detach the membrane of a snnTorch neuron"
    if not isinstance(module, Leaky):
        return f"{why}; put a FusedLIF, FusedPLIF or FusedALIF in its place"
    try:
        if not isinstance(module, FusedLeaky):
            check(module)
    except NotConvertible as reason:
        return f"{why}; put a FusedLIF in its place (of this Leaky, {reason})"
    reset = {"subtract": "soft", "zero": "hard", "none": "none"}[module.reset_mechanism]
    decay, threshold = min(max(module.beta.item(), 0.0), 1.0), module.threshold.item()
    like = f"{_surrogate(module.spike_grad)}"
    if like.startswith("FastSigmoid"):
        like = f"{__name__}.{like}"  # the class exists only in this module
    layer = (
        f"FusedLIF(decay={decay:.9g}, threshold={threshold:.9g}, reset={reset!r}, "
        f"detach_reset={module.reset_delay}, surrogate={like})"
    )
    same = "which computes the same, except that a membrane exactly at the threshold fires"
    if reset == "soft":
        same = "which comes closest: it subtracts the threshold before the leak"
    return f"{why}; put {layer} in its place, {same}"


def check(node: Leaky) -> None:
    """Raise `NotConvertible` where the fused step would compute another function."""
    if type(node) is not Leaky:
        raise NotConvertible(f"{type(node).__name__} has dynamics of its own; fused is Leaky, not its subclasses")
    _surrogate(node.spike_grad)
    for name in ("beta", "threshold", "graded_spikes_factor"):
        value = getattr(node, name)
        if isinstance(value, nn.Parameter):
            raise NotConvertible(f"its {name} is learned; the fused step takes a fixed one")
        if value.numel() != 1:
            raise NotConvertible(f"its {name} is one number for each of {value.numel()} neurons, not one for all")
        if not math.isfinite(value.item()):
            raise NotConvertible(f"its {name} is {value.item()}, not a finite number")
    if node.threshold.item() <= 0:
        raise NotConvertible(f"its threshold is {node.threshold.item()}, not a positive number")
    if node.graded_spikes_factor.item() != 1:
        raise NotConvertible(f"its spikes are worth {node.graded_spikes_factor.item()}; fused ones are worth 1")
    if node.inhibition:
        raise NotConvertible("its inhibition lets one neuron of a layer fire, which looks at all of them")
    if node.state_quant:
        raise NotConvertible("its state is quantised")


def _surrogate(function: Callable[..., Any]) -> own.Surrogate:
    """Our counterpart of a snnTorch surrogate; those are closures, recognised by the function that made them."""
    for factory, (parameter, kind) in SURROGATES.items():
        if getattr(function, "__code__", None) in factory.__code__.co_consts:
            value = inspect.getclosurevars(function).nonlocals[parameter]
            if not (isinstance(value, int | float) and value > 0):
                raise NotConvertible(f"the {parameter} of its {factory.__name__} is {value!r}, not a positive number")
            return kind(float(value))
    known = ", ".join(factory.__name__ for factory in SURROGATES)
    raise NotConvertible(f"its spike_grad {getattr(function, '__qualname__', function)!s} is none of {known}")


def _next_up(threshold: float) -> float:
    return torch.nextafter(torch.tensor(threshold), torch.tensor(math.inf)).item()

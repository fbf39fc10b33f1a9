"""The leaky integrate-and-fire layer."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.layout import same_order
from ..kernels.lif import lif_reset, lif_sequence, lif_sequence_, lif_step, lif_step_
from ..kernels.lif.ops import Options, check_parameters
from ..kernels.norm_lif import Pending, PendingMap, fire
from ..kernels.small_form import attach
from ..kernels.surrogate import Surrogate, Triangle, as_surrogate
from .base import Neuron, has_hooks


class LeakyNeuron(Neuron):
    """What LIF and PLIF share: threshold, reset, scale and surrogate."""

    def __init__(
        self, decay: float, threshold: float, reset: str, surrogate: Surrogate | str, online: bool, step_mode: str,
        backend: str, reset_value: float, detach_reset: bool, scale: float,
    ) -> None:  # fmt: skip
        super().__init__(online, step_mode, backend)
        check_parameters(decay, threshold, reset)
        self.threshold, self.scale = threshold, scale
        self.reset_mode, self.reset_value, self.detach_reset = reset, reset_value, detach_reset
        self.surrogate = as_surrogate(surrogate)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of every kernel call."""
        options = {"reset": self.reset_mode, "reset_value": self.reset_value, "scale": self.scale}
        return options | {"surrogate": self.surrogate, "backend": self.backend}

    def kernel_options(self) -> tuple[Options, Tensor | None]:
        """What the kernels are told besides tensors, and the logit of the decay if it is learned."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, PendingMap) and not torch.compiler.is_compiling():
            spikes = self.fire_from(x)
            if spikes is not None:
                return spikes
        return super().forward(x)

    @property
    def _unseen(self) -> bool:
        """Whether no one is to see the input, so that it need not be written."""
        return self.stand_in is None and not has_hooks(self) and self.backend != "reference"

    def takes(self, pending: Pending) -> bool:
        """Whether a step can normalise its input as it fires: in lean memory, and if no one is to see the input."""
        if not (self._unseen and self.lean and self.step_mode == "s"):
            return False
        step = self._step_of(pending.x)
        self.prepare(step)
        return self._follows_options() and same_order(self.state_before(), step)

    def fire(self, pending: Pending, *, dense: bool) -> tuple[Tensor, Tensor]:
        """Advance the state by a time step, or by those of a chunk, and return the spikes and their bits. If they are
        not to be `dense`, the spikes are a tensor of their shape and of no size, for the gradient."""
        self.prepare(self._step_of(pending.x))
        assert self.membrane is not None
        options, w = self.kernel_options()
        several = len(pending.x) != len(self.membrane)
        in_place = self.advances_in_place(pending.way) if several else self.online and w is None
        spikes, bits, self.membrane = fire(
            pending, self.membrane, w, options, online=self.online, in_place=in_place, dense=dense
        )
        return spikes, bits

    def fire_from(self, x: PendingMap) -> Tensor | None:
        """Advance the state by the time steps of batch norm's output, which is computed on the way and not written, and
        return the spikes; None where that cannot be done."""
        steps, dimensions = (len(x), 5) if self.step_mode == "m" else (1, 4)
        pending = x.pending() if self._unseen and self.memory_form != "paper" and x.ndim == dimensions else None
        if pending is None or self.samples is not None:
            return None
        self._refuse_second_forward()
        first = pending.x[: len(pending.x) // steps]
        self.prepare(first)
        if not self._follows_options() or not same_order(self.state_before(), first):
            return None
        options, w = self.kernel_options()
        in_place = self.advances_in_place(pending.way) if steps > 1 else self.online and w is None
        spikes, bits, self.membrane = fire(
            pending, self.state_before(), w, options, online=self.online, in_place=in_place, dense=True
        )
        if self.lean:
            attach(spikes, bits)
        return spikes.view(x.shape)

    def state_before(self) -> Tensor:
        """The membrane that the next step begins from; `prepare` has made sure that there is one."""
        assert self.membrane is not None, "prepare() comes first"
        return self.membrane

    def _follows_options(self) -> bool:
        """Whether the options are all there is to the next step."""
        kind: type = type(self)
        return _steps_as_told(kind)

    def _step_of(self, x: Tensor) -> Tensor:
        """The first time step of a batch."""
        return x if self.samples is None else x[: self.samples]

    def after_reset(self, m: Tensor) -> Tensor:
        """The plain form's state from the membrane before reset."""
        return lif_reset(
            m.detach() if self.online else m, self.threshold, reset=self.reset_mode, reset_value=self.reset_value,
            detach_reset=self.detach_reset, surrogate=self.surrogate,
        )  # fmt: skip

    def describe(self, decay: str, *more: str) -> str:
        reset = f"hard to {self.reset_value}" if self.reset_mode == "hard" else self.reset_mode
        parts = [decay, f"threshold={self.threshold}", f"reset={reset}", f"surrogate={self.surrogate}"]
        if self.scale != 1.0:
            parts.append(f"scale={self.scale}")
        parts += more
        if self.detach_reset:
            parts.append("detach_reset=True")
        return ", ".join(
            [*parts, f"online={self.online}", f"step_mode={self.step_mode!r}", f"backend={self.backend!r}"]
        )


class FusedLIF(LeakyNeuron):
    """Leaky integrate-and-fire layer: current in, spikes out, same shape and dtype.

        m[t] = decay · reset(m[t-1]) + scale · x[t]        s[t] = 1 if m[t] >= threshold else 0

    Args:
        decay: λ, what is left of the membrane after one step.
        threshold: membrane at which a neuron fires.
        reset: after a spike, "soft" subtracts the threshold, "hard" sets `reset_value`, "none" does nothing.
        surrogate: stands in for the derivative of the spike, for example `Triangle(1.0)` or "atan".
        online: False gives exact gradients through time. True takes the past as a constant and updates the state in
            place: nothing is kept for backward but the state itself, and each step's backward must run before the next
            step.
        step_mode: "s" takes one time step per call, "m" a whole sequence [T, ...], in one kernel.
        backend: "auto" (by device), "triton", "cpu" or "reference".
        reset_value: where a hard reset goes.
        detach_reset: leave the reset out of the gradient (exact gradients only; online, it is a constant anyway).
        scale: factor on the input. SpikingJelly's `tau` with `decay_input=True` is `decay=1 - 1/tau, scale=1/tau`.

    `membrane` is the state m, before reset, in float32; None before the first step and after `reset()`.

    Example:
        >>> lif = FusedLIF(decay=0.5)
        >>> lif(torch.tensor([0.8])), lif(torch.tensor([0.8]))
        (tensor([0.]), tensor([1.]))
    """

    def __init__(
        self,
        decay: float = 0.1,
        threshold: float = 1.0,
        reset: str = "soft",
        surrogate: Surrogate | str = Triangle(1.0),  # noqa: B008 - immutable
        online: bool = False,
        step_mode: str = "s",
        backend: str = "auto",
        *,
        reset_value: float = 0.0,
        detach_reset: bool = False,
        scale: float = 1.0,
    ) -> None:
        super().__init__(
            decay, threshold, reset, surrogate, online, step_mode, backend, reset_value, detach_reset, scale
        )
        self.decay = decay

    @classmethod
    def from_spikingjelly(cls, node: nn.Module, *, backend: str = "auto") -> nn.Module:
        """The fused layer that computes what a SpikingJelly node does; raises if there is none (docs/convert.md)."""
        from .foreign import fused_like  # imported here because that file imports this one

        return fused_like(node, backend=backend)

    def kernel_options(self) -> tuple[Options, None]:
        return Options.checked(self.decay, self.threshold, detach_reset=self.detach_reset, **self.options), None

    def step(self, x: Tensor, in_place: bool) -> Tensor:
        assert self.membrane is not None, "prepare() comes first"
        if self.memory_form == "paper":
            options = self.options | {"reset": "none"}
            spikes, m = lif_step(x, self.membrane, self.decay, self.threshold, **options)
            self.membrane = self.after_reset(m)
            return spikes
        if in_place:
            return lif_step_(x, self.membrane, self.decay, self.threshold, overwrite=self.overwrites, **self.options)
        spikes, self.membrane = lif_step(
            x, self.membrane, self.decay, self.threshold, detach_reset=self.detach_reset, pack=self.lean, **self.options
        )
        return spikes

    def sequence(self, x: Tensor) -> Tensor:
        if self.memory_form == "paper":
            return super().sequence(x)
        self.prepare(self.first_of(x))
        assert self.membrane is not None
        given, options = (x, self.membrane, self.decay, self.threshold), self.options
        if self.advances_in_place(x):
            return lif_sequence_(*given, overwrite=self.overwrites, **options)
        options |= {"detach_reset": self.detach_reset, "pack": self.lean, "online": self.online}
        spikes, self.membrane = lif_sequence(*given, **options)
        return spikes

    def extra_repr(self) -> str:
        return self.describe(f"decay={self.decay}")


@functools.cache
def _steps_as_told(kind: type) -> bool:
    """Whether the options of a class are all there is to its step: no subclass has another one."""
    names = "kernel_options", "step"
    options, step = (next(owner for owner in kind.__mro__ if name in vars(owner)) for name in names)
    return issubclass(options, step)

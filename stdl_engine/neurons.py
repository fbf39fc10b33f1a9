"""Spiking neuron layers on the fused kernels."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from .kernels import dispatch
from .kernels.lif import lif_reset, lif_step, lif_step_
from .kernels.lif.ops import STATE_DTYPE, check_parameters
from .kernels.surrogate import Surrogate, Triangle, as_surrogate


class Neuron(nn.Module):
    """What all neuron layers share: a state that starts at nothing, follows the module and is not in the state_dict.

    A subclass implements `step`, one time step from `self.membrane` to the next.
    """

    def __init__(self, online: bool, step_mode: str, backend: str) -> None:
        super().__init__()
        if step_mode not in ("s", "m"):
            raise ValueError(
                f'unknown step_mode {step_mode!r}: pass "s" (one time step a call) or "m" (input [T, ...]).'
            )
        dispatch.check_name(backend)
        self.online, self.step_mode, self.backend = online, step_mode, backend
        self.membrane: Tensor | None = None
        self.memory_form: str | None = None
        """Set by learning rules. "lean": spikes are also written as bits. "paper": the plain form, whose state is the
        membrane after reset. Same spikes and gradients to the last bit."""
        self.overwrite = False
        """Whether lean memory may write the spikes over the input; set by a unit that needs it for nothing else."""

    def step(self, x: Tensor, in_place: bool) -> Tensor:
        """Advance the state by one time step and return the spikes; with `in_place` over the old state."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if self.step_mode == "s":
            return self._step(x, in_place=self.online)
        # Several steps before a backward: each must keep its own state, online or not, unless no gradient is wanted.
        in_place = self.online and not (torch.is_grad_enabled() and x.requires_grad)
        return torch.stack([self._step(x_t, in_place) for x_t in x]) if len(x) else x.clone()

    def _step(self, x: Tensor, in_place: bool) -> Tensor:
        if x.dtype not in STATE_DTYPE:
            raise TypeError(
                f"{type(self).__name__} got {x.dtype} input: pass float32, float16, bfloat16 or float64, for example "
                "x.float()."
            )
        if self.membrane is None:
            self.membrane = torch.zeros_like(x, dtype=STATE_DTYPE[x.dtype], requires_grad=False)
        elif self.membrane.shape != x.shape:
            raise ValueError(
                f"{type(self).__name__} holds the state of input {tuple(self.membrane.shape)} and got "
                f"{tuple(x.shape)}: call reset_states(model) before a new sequence."
            )
        elif self.online and self.membrane.requires_grad:
            self.membrane = self.membrane.detach()
        return self.step(x, in_place)

    def reset(self) -> None:
        """Forget the state: the next input starts a new sequence."""
        self.membrane = None

    def detach_state(self) -> None:
        """Keep the state's value but not its history, to truncate backpropagation through time."""
        if self.membrane is not None:
            self.membrane = self.membrane.detach()

    def _apply(self, fn, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self.membrane is None:
            return self
        with torch.no_grad():
            moved = fn(self.membrane)  # the same object, history and all, where there is nothing to change
            if moved.dtype not in STATE_DTYPE.values():  # .half() and .bfloat16(): the state stays as exact as it is
                moved = self.membrane.to(moved.device)
        self.membrane = moved
        return self

    def __getstate__(self) -> dict:
        """For copies and pickles: the state's value goes along, its autograd history does not."""
        state = self.__dict__.copy()
        if self.membrane is not None:
            state["membrane"] = self.membrane.detach()
        return state

    def _replicate_for_data_parallel(self) -> Self:
        replica = super()._replicate_for_data_parallel()
        replica.membrane = None
        return replica


class FusedLIF(Neuron):
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
        step_mode: "s" takes one time step a call, "m" a whole sequence [T, ...].
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
        super().__init__(online, step_mode, backend)
        check_parameters(decay, threshold, reset)
        self.decay, self.threshold, self.scale = decay, threshold, scale
        self.reset_mode, self.reset_value, self.detach_reset = reset, reset_value, detach_reset
        self.surrogate = as_surrogate(surrogate)

    def step(self, x: Tensor, in_place: bool) -> Tensor:
        options = {"reset": self.reset_mode, "reset_value": self.reset_value, "scale": self.scale}
        options |= {"surrogate": self.surrogate, "backend": self.backend}
        if self.memory_form == "paper":
            return self._plain_step(x)
        lean = self.memory_form == "lean" and not torch.compiler.is_compiling()
        if in_place:
            overwrite = self.overwrite and lean
            return lif_step_(x, self.membrane, self.decay, self.threshold, overwrite=overwrite, **options)
        spikes, self.membrane = lif_step(
            x, self.membrane, self.decay, self.threshold, detach_reset=self.detach_reset, pack=lean, **options
        )
        return spikes

    def _plain_step(self, x: Tensor) -> Tensor:
        spikes, m = lif_step(
            x, self.membrane, self.decay, self.threshold, reset="none", scale=self.scale,
            surrogate=self.surrogate, backend=self.backend,
        )  # fmt: skip
        self.membrane = lif_reset(
            m.detach() if self.online else m, self.threshold, reset=self.reset_mode, reset_value=self.reset_value,
            detach_reset=self.detach_reset, surrogate=self.surrogate,
        )  # fmt: skip
        return spikes

    def extra_repr(self) -> str:
        reset = f"hard to {self.reset_value}" if self.reset_mode == "hard" else self.reset_mode
        parts = [f"decay={self.decay}", f"threshold={self.threshold}", f"reset={reset}", f"surrogate={self.surrogate}"]
        if self.scale != 1.0:
            parts.append(f"scale={self.scale}")
        if self.detach_reset:
            parts.append("detach_reset=True")
        return ", ".join(
            [*parts, f"online={self.online}", f"step_mode={self.step_mode!r}", f"backend={self.backend!r}"]
        )


def reset_states(model: nn.Module) -> None:
    """Forget the state of every neuron layer of a model."""
    for module in model.modules():
        if isinstance(module, Neuron):
            module.reset()

"""The adaptive leaky integrate-and-fire layer, whose threshold rises with each spike."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from ..kernels.alif import alif_reset, alif_sequence, alif_sequence_, alif_step, alif_step_
from ..kernels.alif.ops import check_adaptation
from ..kernels.alif.reference import BETA, RHO
from ..kernels.lif.ops import check_parameters
from ..kernels.surrogate import Surrogate, Triangle, as_surrogate
from .base import Neuron


class FusedALIF(Neuron):
    """Adaptive leaky integrate-and-fire layer: current in, spikes out, same shape and dtype.

        b[t] = rho · b[t-1] + (1 - rho) · s[t-1]        θ[t] = threshold + beta · b[t]
        m[t] = decay · (m[t-1] - θ[t-1] · s[t-1]) + scale · x[t]        s[t] = 1 if m[t] >= θ[t] else 0

    Args:
        decay: λ, what is left of the membrane after one step.
        threshold: membrane at which a neuron that has not fired lately fires.
        surrogate: stands in for the derivative of the spike, for example `Triangle(1.0)` or "atan"; around θ.
        online: False gives exact gradients through time, by way of membrane and adaptation. True takes the past as a
            constant and updates both states in place: nothing is kept for backward but the states themselves, and each
            step's backward must run before the next step.
        step_mode: "s" takes one time step per call, "m" a whole sequence [T, ...], in one kernel.
        backend: "auto" (by device), "triton", "cpu" or "reference".
        beta: how far the threshold rises, at most.
        rho: how much of the adaptation is left after one step; exp(-1/100) is a time constant of 100 steps.
        detach_reset: leave the reset out of the gradient (exact gradients only; online, it is a constant anyway).
        scale: factor on the input.

    `membrane` is m, before reset, and `adaptation` is b, both in float32; None before the first step and after
    `reset()`. With memory form "paper" they are the membrane after reset and the adaptation of the next step.

    Example:
        >>> alif = FusedALIF(decay=0.5)
        >>> alif(torch.tensor([0.8])), alif(torch.tensor([0.8]))
        (tensor([0.]), tensor([1.]))
    """

    state_names: ClassVar[tuple[str, ...]] = ("membrane", "adaptation")
    extra_maps: ClassVar[int] = 1  # the adaptation

    def __init__(
        self,
        decay: float = 0.1,
        threshold: float = 1.0,
        surrogate: Surrogate | str = Triangle(1.0),  # noqa: B008 - immutable
        online: bool = False,
        step_mode: str = "s",
        backend: str = "auto",
        *,
        beta: float = BETA,
        rho: float = RHO,
        detach_reset: bool = False,
        scale: float = 1.0,
    ) -> None:
        super().__init__(online, step_mode, backend)
        check_parameters(decay, threshold, "soft")
        check_adaptation(beta, rho)
        self.decay, self.threshold, self.beta, self.rho = decay, threshold, beta, rho
        self.detach_reset, self.scale, self.surrogate = detach_reset, scale, as_surrogate(surrogate)

    @property
    def adapts(self) -> dict[str, Any]:
        """The arguments that a separate reset step takes, too."""
        return {"beta": self.beta, "rho": self.rho, "surrogate": self.surrogate}

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of every kernel call."""
        return self.adapts | {"scale": self.scale, "backend": self.backend}

    def _given(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, float, float]:
        """The state that a step starts from."""
        membrane, adaptation = self.states()
        return x, membrane, adaptation, self.decay, self.threshold

    def step(self, x: Tensor, in_place: bool) -> Tensor:
        given = self._given(x)
        adapts, options = self.adapts, self.options
        if self.memory_form == "paper":
            spikes, m, adaptation = alif_step(*given, advance=False, **options)
            self.membrane, self.adaptation = alif_reset(
                m.detach() if self.online else m, adaptation, self.threshold, detach_reset=self.detach_reset, **adapts
            )
            return spikes
        if in_place:
            return alif_step_(*given, overwrite=self.overwrites, **options)
        spikes, self.membrane, self.adaptation = alif_step(
            *given, detach_reset=self.detach_reset, pack=self.lean, **options
        )
        return spikes

    def sequence(self, x: Tensor) -> Tensor:
        if self.memory_form == "paper":
            return super().sequence(x)
        self.prepare(self.first_of(x))
        given, options = self._given(x), self.options
        if self.advances_in_place(x):
            return alif_sequence_(*given, overwrite=self.overwrites, **options)
        options |= {"detach_reset": self.detach_reset, "pack": self.lean, "online": self.online}
        spikes, self.membrane, self.adaptation = alif_sequence(*given, **options)
        return spikes

    def extra_repr(self) -> str:
        parts = [f"decay={self.decay}", f"threshold={self.threshold}", f"beta={self.beta}", f"rho={self.rho}"]
        parts.append(f"surrogate={self.surrogate}")
        if self.scale != 1.0:
            parts.append(f"scale={self.scale}")
        if self.detach_reset:
            parts.append("detach_reset=True")
        return ", ".join(
            [*parts, f"online={self.online}", f"step_mode={self.step_mode!r}", f"backend={self.backend!r}"]
        )

"""The ALIF neuron as users call it: one step or a sequence, with exact gradients or online, overwriting the states."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from ..checks import check_parameters
from ..steps import Steps
from ..surrogate import Surrogate, as_surrogate, of_form
from . import reference
from .reference import BETA, RHO


class Options(NamedTuple):
    """The options of the ALIF kernels, besides their tensors."""

    decay: float
    threshold: float
    beta: float
    rho: float
    scale: float
    detach_reset: bool
    advance: bool
    """Whether reset and adaptation are part of the step; if not, the states are the plain form's (see `alif_reset`)."""
    form: str
    """The form of the surrogate, whose constants are a and b."""
    a: float
    b: float
    backend: str

    @classmethod
    def checked(
        cls, decay: float, threshold: float, beta: float, rho: float, scale: float, detach_reset: bool,
        surrogate: Surrogate | str, backend: str, advance: bool = True,
    ) -> Options:  # fmt: skip
        """Options from a user's arguments; those that make no sense raise an error."""
        surrogate = as_surrogate(surrogate)
        check_parameters(decay, threshold, "soft")
        check_adaptation(beta, rho)
        a, b = surrogate.constants
        return cls(decay, threshold, beta, rho, scale, detach_reset, advance, surrogate.form, a, b, backend)

    @property
    def reads_past(self) -> bool:
        """Whether backward reads the past states: the adaptation's gradient does, even if the reset is detached."""
        return self.advance

    def keywords(self, learned: bool) -> dict[str, Any]:
        """The same for the plain step."""
        names = ("decay", "threshold", "beta", "rho", "scale", "detach_reset", "advance")
        return {name: getattr(self, name) for name in names} | {"surrogate": of_form(self.form, self.a, self.b)}


STEPS = Steps("alif", Options, __package__, reference.alif_step)


def alif_step(
    x: Tensor,
    m_prev: Tensor,
    adaptation_prev: Tensor,
    decay: float = 0.1,
    threshold: float = 1.0,
    *,
    beta: float = BETA,
    rho: float = RHO,
    detach_reset: bool = False,
    scale: float = 1.0,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    pack: bool = False,
    online: bool = False,
    advance: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of adaptive leaky integrate-and-fire neurons, differentiable in the input and in the past.

    Args:
        x: input current, any shape and strides; float32, float16, bfloat16 or (CPU) float64.
        m_prev, adaptation_prev: membrane before reset and adaptation at the previous step, shape of `x`; float32
            (float64 for float64 input). Zeros to begin with.
        decay: λ of `m = λ·u + scale·x`, where u is what the reset left of `m_prev`.
        threshold, beta: a neuron fires at `threshold + beta · adaptation`, and its soft reset subtracts the same.
        rho: how much of the adaptation is left after one step; a spike adds 1 - rho.
        detach_reset: leave the reset out of the gradient (the adaptation stays in it).
        scale: factor on the input.
        surrogate: a `Surrogate`, or its name for the default parameter.
        backend: "auto", "triton", "cpu" or "reference".
        pack: also write the spikes as bits, for `kernels.bits_of(spikes)`.
        online: the past is a constant, and the new states are detached from the graph.
        advance: False if the state is the plain form's, the membrane after reset and the adaptation of this step (see
            `alif_reset`).

    Returns:
        spikes (dtype of `x`), m and adaptation, which are the next step's `m_prev` and `adaptation_prev`.

    Example:
        >>> m, adaptation = torch.zeros(3), torch.zeros(3)
        >>> spikes, m, adaptation = alif_step(torch.tensor([0.5, 1.0, 2.5]), m, adaptation)
        >>> spikes
        tensor([0., 1., 1.])
    """
    options = Options.checked(decay, threshold, beta, rho, scale, detach_reset, surrogate, backend, advance)
    spikes, m, adaptation = STEPS.advance(x, m_prev, adaptation_prev, None, options, online=online, pack=pack)
    return spikes, m, adaptation


def alif_step_(
    x: Tensor,
    m: Tensor,
    adaptation: Tensor,
    decay: float = 0.1,
    threshold: float = 1.0,
    *,
    beta: float = BETA,
    rho: float = RHO,
    scale: float = 1.0,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    overwrite: bool = False,
) -> Tensor:
    """The same step online: both states are advanced in place, and are constants to autograd.

    Backward reads only the states and the incoming gradient, so it must run before the states are advanced again;
    otherwise it raises. The spikes' bits, written by the same kernel, are found with `kernels.bits_of(spikes)`.
    Arguments as for `alif_step`. With `overwrite` the spikes are written over `x`, which nothing else may still need.
    They get their own memory if the memory order of `x` differs from that of the state, which the bits follow.

    Example:
        >>> m, adaptation = torch.zeros(3), torch.zeros(3)
        >>> alif_step_(torch.tensor([0.5, 1.0, 2.5]), m, adaptation)
        tensor([0., 1., 1.])
        >>> m
        tensor([0.5000, 1.0000, 2.5000])
    """
    options = Options.checked(decay, threshold, beta, rho, scale, True, surrogate, backend)
    return STEPS.advance_(x, m, adaptation, None, options, overwrite=overwrite)


def alif_sequence(
    x: Tensor,
    m_prev: Tensor,
    adaptation_prev: Tensor,
    decay: float = 0.1,
    threshold: float = 1.0,
    *,
    beta: float = BETA,
    rho: float = RHO,
    detach_reset: bool = False,
    scale: float = 1.0,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    pack: bool = False,
    online: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """All steps of a sequence [T, ...] in one kernel, with the same results as `alif_step` step by step, to the last
    bit.

    Arguments as for `alif_step`, and the states have the shape of `x[0]`; returns all spikes and the last states. For
    backward two maps per step are kept, membrane and adaptation; none if no gradient is needed.

    Example:
        >>> states = torch.zeros(1), torch.zeros(1)
        >>> spikes, m, adaptation = alif_sequence(torch.tensor([[0.8], [0.8]]), *states, decay=0.5)
        >>> spikes.flatten(), m, adaptation
        (tensor([0., 1.]), tensor([1.2000]), tensor([0.]))
    """
    options = Options.checked(decay, threshold, beta, rho, scale, detach_reset, surrogate, backend)
    spikes, m, adaptation = STEPS.advance(
        x, m_prev, adaptation_prev, None, options, sequence=True, online=online, pack=pack
    )
    return spikes, m, adaptation


def alif_sequence_(
    x: Tensor,
    m: Tensor,
    adaptation: Tensor,
    decay: float = 0.1,
    threshold: float = 1.0,
    *,
    beta: float = BETA,
    rho: float = RHO,
    scale: float = 1.0,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    overwrite: bool = False,
) -> Tensor:
    """All online steps of a sequence in one kernel, with the same results as `alif_step_` step by step, to the last
    bit.

    Everything else is as for `lif_sequence_`, with two states.

    Example:
        >>> m, adaptation = torch.zeros(1), torch.zeros(1)
        >>> alif_sequence_(torch.tensor([[0.8], [0.8]]), m, adaptation, decay=0.5).flatten(), m, adaptation
        (tensor([0., 1.]), tensor([1.2000]), tensor([0.]))
    """
    options = Options.checked(decay, threshold, beta, rho, scale, True, surrogate, backend)
    return STEPS.advance_(x, m, adaptation, None, options, sequence=True, overwrite=overwrite)


def check_adaptation(beta: float, rho: float) -> None:
    """Reject parameters of the adaptation for which the equation makes no sense."""
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta is {beta}: it must be 0 (no adaptation) or positive and finite, for example {BETA}.")
    if not 0 <= rho <= 1:
        raise ValueError(f"rho is {rho}: it must be between 0 and 1 (the adaptation never moves), for example 0.99.")

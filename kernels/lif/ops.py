"""The LIF neuron as users call it: one step or a sequence of them, with exact gradients or online over the state."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..checks import STATE_DTYPE, check_parameters
from ..steps import Steps
from ..surrogate import Surrogate, as_surrogate, of_form
from . import reference

__all__ = ["STATE_DTYPE", "Options", "check_parameters", "lif_sequence", "lif_sequence_", "lif_step", "lif_step_"]


class Options(NamedTuple):
    """What the LIF kernels are told besides their tensors."""

    decay: float
    threshold: float
    reset: str
    reset_value: float
    scale: float
    scale_by_decay: bool
    """Whether the input is also scaled by 1 - decay; only where the decay is learned (PLIF)."""
    detach_reset: bool
    form: str
    """The form of the surrogate, whose constants are a and b."""
    a: float
    b: float
    backend: str

    @classmethod
    def checked(
        cls, decay: float, threshold: float, reset: str, reset_value: float, scale: float, detach_reset: bool,
        surrogate: Surrogate | str, backend: str, scale_by_decay: bool = False,
    ) -> Options:  # fmt: skip
        """From what a user passes; what makes no sense is an error."""
        surrogate = as_surrogate(surrogate)
        check_parameters(decay, threshold, reset)
        a, b = surrogate.constants
        return cls(
            decay, threshold, reset, reset_value, scale, scale_by_decay, detach_reset, surrogate.form, a, b, backend
        )

    @property
    def advance(self) -> bool:
        """There is no second state that a step could leave as it is."""
        return True

    @property
    def reads_past(self) -> bool:
        """Whether backward reads the past's value: not where the reset has no part in the gradient."""
        return self.reset == "hard" or (self.reset == "soft" and not self.detach_reset)

    def keywords(self, learned: bool) -> dict[str, Any]:
        """The same for the plain step."""
        own = {"scale_by_decay": self.scale_by_decay} if learned else {"decay": self.decay}
        reset = {"reset": self.reset, "reset_value": self.reset_value, "detach_reset": self.detach_reset}
        surrogate = of_form(self.form, self.a, self.b)
        return own | reset | {"threshold": self.threshold, "scale": self.scale, "surrogate": surrogate}


STEPS = Steps("lif", Options, __package__, reference.lif_step)


def lif_step(
    x: Tensor,
    m_prev: Tensor,
    decay: float = 0.1,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    detach_reset: bool = False,
    scale: float = 1.0,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    pack: bool = False,
    online: bool = False,
) -> tuple[Tensor, Tensor]:
    """One step of leaky integrate-and-fire neurons, differentiable in the input and in the past.

    Args:
        x: input current, any shape and strides; float32, float16, bfloat16 or (CPU) float64.
        m_prev: membrane before reset at the previous step, shape of `x`; float32 (float64 for float64 input). Zeros to
            begin with.
        decay, threshold: λ and Vth of `m = λ·reset(m_prev) + scale·x`, `spikes = m >= Vth`.
        reset: "soft" (subtract the threshold), "hard" (to `reset_value`) or "none".
        detach_reset: leave the reset out of the gradient.
        scale: factor on the input.
        surrogate: a `Surrogate`, or its name for the default parameter.
        backend: "auto", "triton", "cpu" or "reference".
        pack: also write the spikes as bits, for `kernels.bits_of(spikes)`.
        online: the past is a constant, and the new membrane is cut from the graph.

    Returns:
        spikes (dtype of `x`) and m, the membrane before reset, which is the next step's `m_prev`.

    Example:
        >>> m = torch.zeros(3)
        >>> spikes, m = lif_step(torch.tensor([0.5, 1.0, 2.5]), m)
        >>> spikes
        tensor([0., 1., 1.])
    """
    options = Options.checked(decay, threshold, reset, reset_value, scale, detach_reset, surrogate, backend)
    spikes, m = STEPS.advance(x, m_prev, None, None, options, online=online, pack=pack)
    return spikes, m


def lif_step_(
    x: Tensor,
    m: Tensor,
    decay: float = 0.1,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    scale: float = 1.0,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    overwrite: bool = False,
) -> Tensor:
    """The same step online: `m` goes from the previous step's membrane to this one's in place, a constant to autograd.

    Backward reads only the state and the incoming gradient, so it must run before the state is advanced again; if not,
    it raises. The spikes' bits, written by the same kernel, are found with `kernels.bits_of(spikes)`. Arguments as
    for `lif_step`. With `overwrite` the spikes are written over `x`, which nothing else may need any more; they take
    memory of their own where `x` is laid out in another order than the state, which the bits follow.

    Example:
        >>> m = torch.zeros(3)
        >>> lif_step_(torch.tensor([0.5, 1.0, 2.5]), m)
        tensor([0., 1., 1.])
        >>> m
        tensor([0.5000, 1.0000, 2.5000])
    """
    options = Options.checked(decay, threshold, reset, reset_value, scale, True, surrogate, backend)
    return STEPS.advance_(x, m, None, None, options, overwrite=overwrite)


def lif_sequence(
    x: Tensor,
    m_prev: Tensor,
    decay: float = 0.1,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    detach_reset: bool = False,
    scale: float = 1.0,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    pack: bool = False,
    online: bool = False,
) -> tuple[Tensor, Tensor]:
    """The steps of a whole sequence in one kernel: what `lif_step` gives step by step, to the last bit.

    Args:
        x: input current, [T, ...] with T at least 1; or the samples of T steps in one batch, [T·B, ...], where the
            state has B.
        m_prev: membrane before reset, before the first step; shape of `x[0]`.
        pack: also write the spikes as bits, for `kernels.bits_of(spikes)`.
        online: to every step the past is a constant, and the new membrane is cut from the graph.
        decay, threshold, reset, reset_value, detach_reset, scale, surrogate, backend: as for `lif_step`.

    Returns:
        spikes, [T, ...] in the dtype of `x`, and m, the membrane before reset at the last step. For backward one map
        per step is kept, the membrane, and none if no gradient is wanted.

    Example:
        >>> spikes, m = lif_sequence(torch.tensor([[0.8], [0.8]]), torch.zeros(1), decay=0.5)
        >>> spikes.flatten(), m
        (tensor([0., 1.]), tensor([1.2000]))
    """
    options = Options.checked(decay, threshold, reset, reset_value, scale, detach_reset, surrogate, backend)
    spikes, m = STEPS.advance(x, m_prev, None, None, options, sequence=True, online=online, pack=pack)
    return spikes, m


def lif_sequence_(
    x: Tensor,
    m: Tensor,
    decay: float = 0.1,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    scale: float = 1.0,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    overwrite: bool = False,
) -> Tensor:
    """The online steps of a whole sequence in one kernel: what `lif_step_` gives step by step, to the last bit.

    `m` goes from the membrane before the first step to that of the last in place. To every step the past is a constant:
    its gradient reads its own membrane only. So one backward goes through all steps, before the state is advanced
    again; the membranes of all steps but the last are kept for it, and none if no gradient is wanted. The spikes carry
    the bits of all steps. Arguments as for `lif_step_`.

    Example:
        >>> m = torch.zeros(1)
        >>> lif_sequence_(torch.tensor([[0.8], [0.8]]), m, decay=0.5).flatten(), m
        (tensor([0., 1.]), tensor([1.2000]))
    """
    options = Options.checked(decay, threshold, reset, reset_value, scale, True, surrogate, backend)
    return STEPS.advance_(x, m, None, None, options, sequence=True, overwrite=overwrite)

"""The PLIF neuron as users call it; its operators and kernels are LIF's, with a decay that is learned."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..checks import STATE_DTYPE, check_decay
from ..lif.ops import Options
from ..lif.ops import __package__ as kernels
from ..steps import Steps
from ..surrogate import Surrogate
from . import reference

STEPS = Steps("plif", Options, kernels, reference.plif_step)


def plif_step(
    x: Tensor,
    m_prev: Tensor,
    w: Tensor,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    detach_reset: bool = False,
    scale: float = 1.0,
    scale_by_decay: bool = False,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    pack: bool = False,
    online: bool = False,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor]:
    """One step of parametric leaky integrate-and-fire neurons, differentiable in the input, the past and the decay.

    Args:
        x: input current, any shape and strides; float32, float16, bfloat16 or (CPU) float64.
        m_prev: membrane before reset at the previous step, shape of `x`; float32 (float64 for float64 input). Zeros to
            begin with.
        w: one number, the logit of the decay λ = sigmoid(w) that all neurons share.
        threshold: Vth of `m = λ·reset(m_prev) + scale·x`, `spikes = m >= Vth`.
        reset: "soft" (subtract the threshold), "hard" (to `reset_value`) or "none".
        detach_reset: leave the reset out of the gradient.
        scale: factor on the input.
        scale_by_decay: scale the input by 1 - λ as well.
        surrogate: a `Surrogate`, or its name for the default parameter.
        backend: "auto", "triton", "cpu" or "reference".
        pack: also write the spikes as bits, for `kernels.bits_of(spikes)`.
        online: the past is a constant, and the new membrane is cut from the graph.
        overwrite: online only, write the spikes over `x`, which nothing else may need any more, and pack them; they
            take memory of their own where `x` has gaps.

    Returns:
        spikes (dtype of `x`) and m, the membrane before reset, which is the next step's `m_prev`.

    Example:
        >>> m, w = torch.zeros(3), torch.zeros(1)
        >>> spikes, m = plif_step(torch.tensor([0.5, 1.0, 2.5]), m, w)
        >>> spikes
        tensor([0., 1., 1.])
    """
    options = _options(threshold, reset, reset_value, scale, detach_reset, surrogate, backend, scale_by_decay)
    return _advance(x, m_prev, w, options, False, online, pack, overwrite)


def plif_step_(
    x: Tensor,
    m: Tensor,
    w: Tensor,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    scale: float = 1.0,
    scale_by_decay: bool = False,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    overwrite: bool = False,
) -> Tensor:
    """The same step online: `m` goes from the previous step's membrane to this one's in place, a constant to autograd.

    The gradient of `w` reads the previous step's membrane: where `w` wants one, a copy of it is kept until backward, so
    `plif_step(online=True)` takes no more memory and less time. All else as for `lif_step_`.

    Example:
        >>> m, w = torch.zeros(3), torch.zeros(1)
        >>> plif_step_(torch.tensor([0.5, 1.0, 2.5]), m, w)
        tensor([0., 1., 1.])
        >>> m
        tensor([0.5000, 1.0000, 2.5000])
    """
    options = _options(threshold, reset, reset_value, scale, True, surrogate, backend, scale_by_decay)
    return STEPS.advance_(x, m, None, _one_number(w, x), options, overwrite=overwrite)


def plif_sequence(
    x: Tensor,
    m_prev: Tensor,
    w: Tensor,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    detach_reset: bool = False,
    scale: float = 1.0,
    scale_by_decay: bool = False,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    pack: bool = False,
    online: bool = False,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor]:
    """The steps of a whole sequence [T, ...] in one kernel: what `plif_step` gives step by step, to the last bit.

    The gradient of `w` is that of `plif_step` to rounding: it is one sum over all neurons and steps. Arguments as for
    `plif_step`, and `m_prev` has the shape of `x[0]`; returns all spikes and the last membrane. For backward one map
    per step is kept, the membrane, and the one before the first where `w` wants a gradient.

    Example:
        >>> spikes, m = plif_sequence(torch.tensor([[0.8], [0.8]]), torch.zeros(1), torch.zeros(1))
        >>> spikes.flatten(), m
        (tensor([0., 1.]), tensor([1.2000]))
    """
    options = _options(threshold, reset, reset_value, scale, detach_reset, surrogate, backend, scale_by_decay)
    return _advance(x, m_prev, w, options, True, online, pack, overwrite)


def plif_sequence_(
    x: Tensor,
    m: Tensor,
    w: Tensor,
    threshold: float = 1.0,
    *,
    reset: str = "soft",
    reset_value: float = 0.0,
    scale: float = 1.0,
    scale_by_decay: bool = False,
    surrogate: Surrogate | str = "triangle",
    backend: str = "auto",
    overwrite: bool = False,
) -> Tensor:
    """The online steps of a whole sequence in one kernel: `plif_step_` step by step, but for one sum for `w` in place
    of T. All else as for `lif_sequence_`.

    Example:
        >>> m = torch.zeros(1)
        >>> plif_sequence_(torch.tensor([[0.8], [0.8]]), m, torch.zeros(1)).flatten(), m
        (tensor([0., 1.]), tensor([1.2000]))
    """
    options = _options(threshold, reset, reset_value, scale, True, surrogate, backend, scale_by_decay)
    return STEPS.advance_(x, m, None, _one_number(w, x), options, sequence=True, overwrite=overwrite)


def _advance(
    x: Tensor, m: Tensor, w: Tensor, options: Options, sequence: bool, online: bool, pack: bool, overwrite: bool
) -> Any:
    if overwrite and not online:
        raise ValueError("overwrite=True is for the online step: pass online=True, or overwrite=False.")
    return STEPS.advance(
        x, m.detach() if online else m, None, _one_number(w, x), options,
        sequence=sequence, online=online, pack=pack or overwrite, overwrite=overwrite,
    )  # fmt: skip


def _options(threshold: float, *rest: Any) -> Options:
    return Options.checked(0.5, threshold, *rest)  # any decay: the learned one counts in its place


def _one_number(w: Tensor, x: Tensor) -> Tensor:
    """The decay's logit as kernels take it, in the state's dtype."""
    check_decay(w, x)
    return w.reshape(()).to(STATE_DTYPE.get(x.dtype, w.dtype))

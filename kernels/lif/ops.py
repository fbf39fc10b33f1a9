"""The LIF step as torch operators, with shapes for fake tensors and gradients for autograd; users call `lif_step` and
`lif_step_`."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .. import dispatch
from ..bits import attach, packed_size
from ..layout import empty_like, is_dense, like, same_order
from ..registration import LIBRARY, Operator
from ..surrogate import Surrogate, as_surrogate
from . import reference

RESETS = ("soft", "hard", "none")
STATE_DTYPE = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float64: torch.float64,
}
"""The dtype of the state and of the arithmetic, for each dtype of the input."""


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
        pack: also write the spikes as bits, for `kernels.bits.bits_of(spikes)`.

    Returns:
        spikes (dtype of `x`) and m, the membrane before reset, which is the next step's `m_prev`.

    Example:
        >>> m = torch.zeros(3)
        >>> spikes, m = lif_step(torch.tensor([0.5, 1.0, 2.5]), m)
        >>> spikes
        tensor([0., 1., 1.])
    """
    surrogate = as_surrogate(surrogate)
    check_step(x, m_prev, decay, threshold, reset, backend)
    if dispatch.choose(backend, x.device) == "reference":
        options = {
            "reset": reset,
            "reset_value": reset_value,
            "detach_reset": detach_reset,
            "scale": scale,
            "surrogate": surrogate,
        }
        return reference.lif_step(x, m_prev, decay, threshold, **options)
    a, b = surrogate.constants
    spikes, m, packed = _lif_step(
        x, m_prev, decay, threshold, reset, reset_value, scale, detach_reset, surrogate.form, a, b, backend, pack
    )
    if pack and not torch.compiler.is_compiling():
        attach(spikes, packed)
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
    it raises. The spikes' bits, written by the same kernel, are found with `kernels.bits.bits_of(spikes)`. Arguments as
    for `lif_step`. With `overwrite` the spikes are written over `x`, which nothing else may need any more; they take
    memory of their own where `x` is laid out in another order than the state, which the bits follow.

    Example:
        >>> m = torch.zeros(3)
        >>> lif_step_(torch.tensor([0.5, 1.0, 2.5]), m)
        tensor([0., 1., 1.])
        >>> m
        tensor([0.5000, 1.0000, 2.5000])
    """
    surrogate = as_surrogate(surrogate)
    check_step(x, m, decay, threshold, reset, backend)
    if m.requires_grad:
        raise ValueError(
            "lif_step_ writes over its state, which must not require a gradient: pass m.detach(), or use lif_step."
        )
    if not is_dense(m):
        raise ValueError(
            f"lif_step_ needs a dense state, this one has shape {tuple(m.shape)} and strides {m.stride()}: pass "
            "m.contiguous()."
        )
    if dispatch.choose(backend, x.device) == "reference":
        return reference.lif_step_(
            x, m, decay, threshold, reset=reset, reset_value=reset_value, scale=scale, surrogate=surrogate
        )
    a, b = surrogate.constants
    options = (decay, threshold, reset, reset_value, scale, surrogate.form, a, b, backend)
    if overwrite and same_order(x, m):
        spikes, packed = x, _lif_step_over_(x, m, *options)
    else:
        spikes, packed = _lif_step_(x, m, *options)
    if not torch.compiler.is_compiling():
        attach(spikes, packed)
    return spikes


def check_step(x: Tensor, m: Tensor, decay: float, threshold: float, reset: str, backend: str) -> None:
    """Reject arguments that no kernel can take, in one sentence each."""
    check_tensors(x, m, backend)
    check_parameters(decay, threshold, reset)


def check_tensors(x: Tensor, m: Tensor, backend: str) -> None:
    """Reject an input and a state that do not go together, or not with the backend."""
    if x.dtype not in STATE_DTYPE:
        raise TypeError(
            f"the input's dtype is {x.dtype}: pass float32, float16, bfloat16 or float64, for example x.float()."
        )
    if m.shape != x.shape:
        raise ValueError(
            f"the state has shape {tuple(m.shape)}, the input {tuple(x.shape)}: reset the state when the shape changes."
        )
    if m.dtype != STATE_DTYPE[x.dtype]:
        raise TypeError(
            f"the state's dtype is {m.dtype}, {x.dtype} input needs {STATE_DTYPE[x.dtype]}: pass "
            f"m.to({STATE_DTYPE[x.dtype]})."
        )
    if m.device != x.device:
        raise ValueError(f"the state is on {m.device}, the input on {x.device}: move one to the other.")
    if x.dtype == torch.float64 and dispatch.choose(backend, x.device) == "triton":  # takes float32 scalars
        raise TypeError(
            'float64 runs in the backends "cpu" and "reference" only: pass backend="reference", or float32 tensors.'
        )


def check_parameters(decay: float, threshold: float, reset: str) -> None:
    """Reject parameters for which the equation makes no sense."""
    if not 0 < threshold < math.inf:
        raise ValueError(f"threshold is {threshold}: it must be positive and finite, for example 1.0.")
    if not 0 <= decay <= 1:
        raise ValueError(f"decay is {decay}: it must be between 0 (no memory) and 1 (no leak), for example 0.1.")
    if reset not in RESETS:
        raise ValueError(f"unknown reset {reset!r}: pass one of {', '.join(RESETS)}.")


_kernels = functools.partial(dispatch.kernels, __package__)


@Operator
def _lif_step(
    x: Tensor, m_prev: Tensor, decay: float, threshold: float, reset: str, reset_value: float, scale: float,
    detach_reset: bool, form: str, a: float, b: float, backend: str, pack: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    x = x if is_dense(x) else x.contiguous()
    spikes, m, packed = empty_like(x, x.dtype), empty_like(x, m_prev.dtype), empty_bits(x, pack)
    if x.numel():
        options = {"decay": decay, "threshold": threshold, "reset": reset, "reset_value": reset_value, "scale": scale}
        _kernels(backend, x.device).forward(x, like(m_prev, x), m, spikes, packed if pack else None, **options)
    return spikes, m, packed


@_lif_step.register_fake
def _(x, m_prev, *options):
    x = x if is_dense(x) else x.contiguous()
    return empty_like(x, x.dtype), empty_like(x, m_prev.dtype), empty_bits(x, options[-1])


def empty_bits(spikes: Tensor, pack: bool = True) -> Tensor:
    """Unwritten room for the bits of these spikes, none if they are not to be packed."""
    return torch.empty(packed_size(spikes.numel()) if pack else 0, dtype=torch.uint8, device=spikes.device)


@Operator
def _lif_backward(
    m: Tensor, grad_spikes: Tensor | None, grad_m: Tensor | None, m_prev: Tensor | None, dtype: torch.dtype,
    decay: float, threshold: float, reset: str, reset_value: float, scale: float,
    detach_reset: bool, form: str, a: float, b: float, backend: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    grad_x = empty_like(m, dtype)
    grad_m_prev = empty_like(m if m_prev is not None else m.new_empty(0), m.dtype)
    if m.numel():
        grad_spikes, grad_m, past = (None if t is None else like(t, m) for t in (grad_spikes, grad_m, m_prev))
        options = {"decay": decay, "threshold": threshold, "reset": reset, "reset_value": reset_value, "scale": scale}
        options |= {"detach_reset": detach_reset, "form": form, "a": a, "b": b}
        grad_past = None if past is None else grad_m_prev
        _kernels(backend, m.device).backward(m, grad_spikes, grad_m, past, grad_x, grad_past, **options)
    return grad_x, grad_m_prev


@_lif_backward.register_fake
def _(m, grad_spikes, grad_m, m_prev, dtype, *options):
    return empty_like(m, dtype), empty_like(m if m_prev is not None else m.new_empty(0), m.dtype)


_lif_backward.refuse_gradient("the fused LIF step has")


def _setup_context(ctx, inputs, output) -> None:
    x, m_prev, *options, _ = inputs
    ctx.options = options
    ctx.dtype = x.dtype
    if ctx.needs_input_grad[1]:
        _, _, reset, _, _, detach_reset, *_ = options
        # m is also the next step's m_prev: over T steps one map a step is kept. Where the reset has no part in the
        # gradient the past's value is not read, and m stands in for it.
        unread = reset == "none" or (reset == "soft" and detach_reset)
        ctx.save_for_backward(output[1], output[1] if unread else m_prev)
    else:
        ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_spikes, grad_m, _):
    m, *past = ctx.saved_tensors
    if grad_spikes is None and grad_m is None:
        return (None,) * (3 + len(ctx.options))
    grad_x, grad_m_prev = _lif_backward(m, grad_spikes, grad_m, past[0] if past else None, ctx.dtype, *ctx.options)
    return grad_x, grad_m_prev if past else None, *(None for _ in ctx.options), None


_lif_step.register_autograd(_backward, setup_context=_setup_context)


# The online steps change their arguments, which an `Operator` does not: the same registration by hand.
_options = (
    "float decay, float threshold, str reset, float reset_value, float scale, str form, float a, float b, str backend"
)
LIBRARY.define(f"lif_step_(Tensor x, Tensor(a!) m, {_options}) -> (Tensor, Tensor)")
LIBRARY.define(f"lif_step_over_(Tensor(b!) x, Tensor(a!) m, {_options}) -> Tensor")
_lif_step_ = torch.ops.stdl_engine.lif_step_.default
_lif_step_over_ = torch.ops.stdl_engine.lif_step_over_.default


def _advance(x, m, spikes, packed, decay, threshold, reset, reset_value, scale, form, a, b, backend) -> None:
    if m.numel():
        options = {"decay": decay, "threshold": threshold, "reset": reset, "reset_value": reset_value, "scale": scale}
        _kernels(backend, m.device).forward(x, m, m, spikes, packed, **options)
    if torch.is_inference_mode_enabled() and not m.is_inference():
        # Inference mode skips autograd, which counts the version otherwise; a backward may still be waiting for m.
        torch.autograd.graph.increment_version(m)


@torch.library.impl(LIBRARY, "lif_step_", "CompositeExplicitAutograd")
def _(x, m, *options):
    spikes, packed = empty_like(m, x.dtype), empty_bits(m)
    _advance(like(x, m), m, spikes, packed, *options)
    return spikes, packed


@torch.library.register_fake("stdl_engine::lif_step_", lib=LIBRARY)
def _(x, m, *options):
    return empty_like(m, x.dtype), empty_bits(m)


@torch.library.impl(LIBRARY, "lif_step_over_", "CompositeExplicitAutograd")
def _(x, m, *options):
    packed, same_order = empty_bits(m), like(x, m)
    _advance(same_order, m, same_order, packed, *options)
    if same_order is not x:
        x.copy_(same_order)
    return packed


@torch.library.register_fake("stdl_engine::lif_step_over_", lib=LIBRARY)
def _(x, m, *options):
    return empty_bits(m)


class _Online(torch.autograd.Function):
    """The online step for autograd: keeps the state, which is no copy, and its version to tell if it was changed."""

    @staticmethod
    def forward(ctx, x, m, overwrite, *options):
        with torch._C._AutoDispatchBelowAutograd():
            if overwrite:
                spikes, packed = x, _lif_step_over_(x, m, *options)
                ctx.mark_dirty(x)
            else:
                spikes, packed = _lif_step_(x, m, *options)
        torch.autograd.graph.increment_version(m)
        ctx.m, ctx.version, ctx.dtype, ctx.options = m, m._version, x.dtype, options
        ctx.mark_non_differentiable(packed)
        ctx.set_materialize_grads(False)
        return spikes, packed

    @staticmethod
    def backward(ctx, grad_spikes, _):
        if ctx.m._version != ctx.version:
            raise RuntimeError(
                "the state of an online LIF step was advanced or changed before that step's backward: call backward() "
                "after every time step, or use online=False (lif_step) to go back through several."
            )
        if grad_spikes is None:
            return (None,) * (3 + len(ctx.options))
        decay, threshold, reset, reset_value, scale, form, a, b, backend = ctx.options
        grad_x, _ = _lif_backward(
            ctx.m, grad_spikes, None, None, ctx.dtype, decay, threshold, reset, reset_value, scale,
            True, form, a, b, backend,
        )  # fmt: skip
        return grad_x, *(None for _ in range(2 + len(ctx.options)))


@torch.library.impl(LIBRARY, "lif_step_", "Autograd")
def _(x, m, *options):
    return _Online.apply(x, m, False, *options)


@torch.library.impl(LIBRARY, "lif_step_over_", "Autograd")
def _(x, m, *options):
    return _Online.apply(x, m, True, *options)[1]

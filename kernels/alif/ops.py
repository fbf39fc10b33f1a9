"""The ALIF step as torch operators, with shapes for fake tensors and gradients for autograd; users call `alif_step` and
`alif_step_`."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .. import dispatch
from ..bits import attach
from ..layout import empty_like, is_dense, like, same_order
from ..lif.ops import check_parameters, check_tensors, empty_bits
from ..registration import LIBRARY, Operator
from ..surrogate import Surrogate, as_surrogate
from . import reference
from .reference import BETA, RHO


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
    advance: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of adaptive leaky integrate-and-fire neurons, differentiable in the input and in the past.

    Args:
        x: input current, any shape and strides; float32, float16, bfloat16 or (CPU) float64.
        m_prev, adaptation_prev: membrane before reset and adaptation at the previous step, shape of `x`; float32
            (float64 for float64 input). Zeros to begin with.
        decay: λ of `m = λ·u + scale·x`, where u is what the reset left of `m_prev`.
        threshold, beta: a neuron fires at `threshold + beta · adaptation`, and that is what its soft reset takes away.
        rho: how much of the adaptation is left after one step; a spike adds 1 - rho.
        detach_reset: leave the reset out of the gradient (the adaptation stays in it).
        scale: factor on the input.
        surrogate: a `Surrogate`, or its name for the default parameter.
        backend: "auto", "triton", "cpu" or "reference".
        pack: also write the spikes as bits, for `kernels.bits.bits_of(spikes)`.
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
    surrogate = as_surrogate(surrogate)
    _check(x, m_prev, adaptation_prev, decay, threshold, beta, rho, backend)
    if dispatch.choose(backend, x.device) == "reference":
        options = {"beta": beta, "rho": rho, "detach_reset": detach_reset, "scale": scale, "surrogate": surrogate}
        return reference.alif_step(x, m_prev, adaptation_prev, decay, threshold, advance=advance, **options)
    options = (decay, threshold, beta, rho, scale, surrogate.form, *surrogate.constants, backend)
    spikes, m, adaptation, packed = _alif_step(x, m_prev, adaptation_prev, *options, detach_reset, advance, pack)
    if pack and not torch.compiler.is_compiling():
        attach(spikes, packed)
    return spikes, m, adaptation if advance else adaptation_prev


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
    """The same step online: both states go from the previous step's to this one's in place, constants to autograd.

    Backward reads only the states and the incoming gradient, so it must run before the states are advanced again; if
    not, it raises. The spikes' bits, written by the same kernel, are found with `kernels.bits.bits_of(spikes)`.
    Arguments as for `alif_step`. With `overwrite` the spikes are written over `x`, which nothing else may need any
    more; they take memory of their own where `x` is laid out in another order than the state, which the bits follow.

    Example:
        >>> m, adaptation = torch.zeros(3), torch.zeros(3)
        >>> alif_step_(torch.tensor([0.5, 1.0, 2.5]), m, adaptation)
        tensor([0., 1., 1.])
        >>> m
        tensor([0.5000, 1.0000, 2.5000])
    """
    surrogate = as_surrogate(surrogate)
    _check(x, m, adaptation, decay, threshold, beta, rho, backend)
    for state in (m, adaptation):
        if state.requires_grad:
            raise ValueError(
                "alif_step_ writes over its states, which must not require a gradient: pass them detached, or use "
                "alif_step."
            )
        if not is_dense(state) or not same_order(adaptation, m):
            raise ValueError(
                f"alif_step_ needs dense states in one memory order, these have shape {tuple(m.shape)} and strides "
                f"{m.stride()} and {adaptation.stride()}: pass both .contiguous()."
            )
    if dispatch.choose(backend, x.device) == "reference":
        options = {"beta": beta, "rho": rho, "scale": scale, "surrogate": surrogate}
        return reference.alif_step_(x, m, adaptation, decay, threshold, **options)
    options = (decay, threshold, beta, rho, scale, surrogate.form, *surrogate.constants, backend)
    if overwrite and same_order(x, m):
        spikes, packed = x, _alif_step_over_(x, m, adaptation, *options)
    else:
        spikes, packed = _alif_step_(x, m, adaptation, *options)
    if not torch.compiler.is_compiling():
        attach(spikes, packed)
    return spikes


def check_adaptation(beta: float, rho: float) -> None:
    """Reject parameters of the adaptation for which the equation makes no sense."""
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta is {beta}: it must be 0 (no adaptation) or positive and finite, for example {BETA}.")
    if not 0 <= rho <= 1:
        raise ValueError(f"rho is {rho}: it must be between 0 and 1 (the adaptation never moves), for example 0.99.")


def _check(x, m, adaptation, decay, threshold, beta, rho, backend) -> None:
    for state in (m, adaptation):
        check_tensors(x, state, backend)
    check_parameters(decay, threshold, "soft")
    check_adaptation(beta, rho)


_kernels = functools.partial(dispatch.kernels, __package__)


@Operator
def _alif_step(
    x: Tensor, m_prev: Tensor, adaptation_prev: Tensor, decay: float, threshold: float, beta: float, rho: float,
    scale: float, form: str, a: float, b: float, backend: str, detach_reset: bool, advance: bool, pack: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    x = x if is_dense(x) else x.contiguous()
    spikes, m, adaptation, packed = _empty_results(x, m_prev, advance, pack)
    if x.numel():
        options = {"decay": decay, "threshold": threshold, "beta": beta, "rho": rho, "scale": scale, "advance": advance}
        past = like(m_prev, x), like(adaptation_prev, x)
        _kernels(backend, x.device).forward(x, *past, m, adaptation, spikes, packed if pack else None, **options)
    return spikes, m, adaptation, packed


@_alif_step.register_fake
def _(x, m_prev, adaptation_prev, *options):
    return _empty_results(x if is_dense(x) else x.contiguous(), m_prev, *options[-2:])


def _empty_results(x: Tensor, m_prev: Tensor, advance: bool, pack: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    adaptation = empty_like(x, m_prev.dtype) if advance else m_prev.new_empty(0)
    return empty_like(x, x.dtype), empty_like(x, m_prev.dtype), adaptation, empty_bits(x, pack)


@Operator
def _alif_backward(
    m: Tensor, adaptation: Tensor, grad_spikes: Tensor | None, grad_m: Tensor | None, grad_adaptation: Tensor | None,
    m_prev: Tensor | None, adaptation_prev: Tensor | None, dtype: torch.dtype, wants_past: bool,
    decay: float, threshold: float, beta: float, rho: float, scale: float, form: str, a: float, b: float, backend: str,
    detach_reset: bool, advance: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grad_x, *grad_past = _empty_gradients(m, dtype, wants_past)
    if m.numel():
        given = adaptation, grad_spikes, grad_m, grad_adaptation, m_prev, adaptation_prev
        given = [None if t is None else like(t, m) for t in given]
        options = {"decay": decay, "threshold": threshold, "beta": beta, "rho": rho, "scale": scale, "advance": advance}
        options |= {"detach_reset": detach_reset, "form": form, "a": a, "b": b}
        wanted = grad_past if wants_past else (None, None)
        _kernels(backend, m.device).backward(m, *given, grad_x, *wanted, **options)
    return grad_x, *grad_past


@_alif_backward.register_fake
def _(m, adaptation, grad_spikes, grad_m, grad_adaptation, m_prev, adaptation_prev, dtype, wants_past, *options):
    return _empty_gradients(m, dtype, wants_past)


def _empty_gradients(m: Tensor, dtype: torch.dtype, wants_past: bool) -> tuple[Tensor, Tensor, Tensor]:
    pattern = m if wants_past else m.new_empty(0)
    return empty_like(m, dtype), empty_like(pattern, m.dtype), empty_like(pattern, m.dtype)


_alif_backward.refuse_gradient("the fused ALIF step has")


def _setup_context(ctx, inputs, output) -> None:
    x, m_prev, adaptation_prev, *options, detach_reset, advance, _ = inputs
    ctx.options, ctx.dtype, ctx.advance = (*options, detach_reset, advance), x.dtype, advance
    ctx.wants_past = any(ctx.needs_input_grad[1:3])
    _, m, adaptation, packed = output
    # m and adaptation are also the next step's past: over T steps two maps a step are kept.
    past = (m_prev, adaptation_prev) if ctx.wants_past and advance else ()
    ctx.save_for_backward(m, adaptation if advance else adaptation_prev, *past)
    ctx.mark_non_differentiable(*([packed] if advance else [adaptation, packed]))
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_spikes, grad_m, grad_adaptation, _):
    nothing = (None,) * (len(ctx.options) + 1)
    grad_adaptation = grad_adaptation if ctx.advance else None
    if grad_spikes is None and grad_m is None and (grad_adaptation is None or not ctx.wants_past):
        return None, None, None, *nothing
    m, adaptation, *past = ctx.saved_tensors
    past = past or (None, None)
    grad_x, *grad_past = _alif_backward(
        m, adaptation, grad_spikes, grad_m, grad_adaptation, *past, ctx.dtype, ctx.wants_past, *ctx.options
    )
    wanted = (g if needed else None for g, needed in zip(grad_past, ctx.needs_input_grad[1:3], strict=True))
    return grad_x, *wanted, *nothing


_alif_step.register_autograd(_backward, setup_context=_setup_context)


# The online steps change their arguments, which an `Operator` does not: the same registration by hand.
_options = "float decay, float threshold, float beta, float rho, float scale, str form, float a, float b, str backend"
LIBRARY.define(f"alif_step_(Tensor x, Tensor(a!) m, Tensor(b!) adaptation, {_options}) -> (Tensor, Tensor)")
LIBRARY.define(f"alif_step_over_(Tensor(c!) x, Tensor(a!) m, Tensor(b!) adaptation, {_options}) -> Tensor")
_alif_step_ = torch.ops.stdl_engine.alif_step_.default
_alif_step_over_ = torch.ops.stdl_engine.alif_step_over_.default


def _advance(x, m, adaptation, spikes, packed, decay, threshold, beta, rho, scale, form, a, b, backend) -> None:
    if m.numel():
        options = {"decay": decay, "threshold": threshold, "beta": beta, "rho": rho, "scale": scale, "advance": True}
        _kernels(backend, m.device).forward(x, m, adaptation, m, adaptation, spikes, packed, **options)
    if torch.is_inference_mode_enabled() and not m.is_inference():
        # Inference mode skips autograd, which counts the version otherwise; a backward may still be waiting for m.
        torch.autograd.graph.increment_version((m, adaptation))


@torch.library.impl(LIBRARY, "alif_step_", "CompositeExplicitAutograd")
def _(x, m, adaptation, *options):
    spikes, packed = empty_like(m, x.dtype), empty_bits(m)
    _advance(like(x, m), m, adaptation, spikes, packed, *options)
    return spikes, packed


@torch.library.register_fake("stdl_engine::alif_step_", lib=LIBRARY)
def _(x, m, adaptation, *options):
    return empty_like(m, x.dtype), empty_bits(m)


@torch.library.impl(LIBRARY, "alif_step_over_", "CompositeExplicitAutograd")
def _(x, m, adaptation, *options):
    packed, ordered = empty_bits(m), like(x, m)
    _advance(ordered, m, adaptation, ordered, packed, *options)
    if ordered is not x:
        x.copy_(ordered)
    return packed


@torch.library.register_fake("stdl_engine::alif_step_over_", lib=LIBRARY)
def _(x, m, adaptation, *options):
    return empty_bits(m)


class _Online(torch.autograd.Function):
    """The online step for autograd: keeps the states, which are no copies, and their versions to tell if they were
    changed."""

    @staticmethod
    def forward(ctx, x, m, adaptation, overwrite, *options):
        with torch._C._AutoDispatchBelowAutograd():
            if overwrite:
                spikes, packed = x, _alif_step_over_(x, m, adaptation, *options)
                ctx.mark_dirty(x)
            else:
                spikes, packed = _alif_step_(x, m, adaptation, *options)
        torch.autograd.graph.increment_version((m, adaptation))
        ctx.states, ctx.versions = (m, adaptation), (m._version, adaptation._version)
        ctx.dtype, ctx.options = x.dtype, options
        ctx.mark_non_differentiable(packed)
        ctx.set_materialize_grads(False)
        return spikes, packed

    @staticmethod
    def backward(ctx, grad_spikes, _):
        if tuple(state._version for state in ctx.states) != ctx.versions:
            raise RuntimeError(
                "the state of an online ALIF step was advanced or changed before that step's backward: call backward() "
                "after every time step, or use online=False (alif_step) to go back through several."
            )
        nothing = (None,) * (3 + len(ctx.options))
        if grad_spikes is None:
            return None, *nothing
        absent = (None,) * 4
        grad_x, *_ = _alif_backward(*ctx.states, grad_spikes, *absent, ctx.dtype, False, *ctx.options, True, True)
        return grad_x, *nothing


@torch.library.impl(LIBRARY, "alif_step_", "Autograd")
def _(x, m, adaptation, *options):
    return _Online.apply(x, m, adaptation, False, *options)


@torch.library.impl(LIBRARY, "alif_step_over_", "Autograd")
def _(x, m, adaptation, *options):
    return _Online.apply(x, m, adaptation, True, *options)[1]

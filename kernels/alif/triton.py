"""The ALIF steps as Triton kernels, for CUDA and ROCm (and, with TRITON_INTERPRET=1, on CPU for tests).

`adapt` is the adaptation, and `level` the threshold that it raises; gain is 1 - rho.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from ..operands import Backward, Forward
from ..triton_tile import (
    backward_grid,
    forward_grid,
    launch,
    neurons,
    rows_of_eight,
    states_of_step,
    store_fired,
    surrogate,
)

if TYPE_CHECKING:
    from .ops import Options


@triton.jit
def integrate(b_m, b_adapt, b_current, decay, threshold, beta, rho, gain, ADVANCE: tl.constexpr):
    """s' = m' >= level(adapt');  u = m' - level(adapt') · s';  adapt = rho · adapt' + gain · s';
    m = decay · u + current.  Without ADVANCE u is m' and adapt is adapt'."""
    if ADVANCE:
        b_level = threshold + beta * b_adapt
        b_fired = b_m >= b_level
        b_m = tl.where(b_fired, b_m - b_level, b_m)
        b_adapt = rho * b_adapt + tl.where(b_fired, gain, 0.0)
    return decay * b_m + b_current, b_adapt


@triton.jit(do_not_specialize=["steps"])
def alif_fwd(
    p_x, p_m_first, p_m, p_spikes, p_bits, p_m_kept, p_adapt_first, p_adapt, p_adapt_kept,
    n, steps, decay, threshold, beta, rho, gain, scale,
    ADVANCE: tl.constexpr, MANY: tl.constexpr, KEEP: tl.constexpr, PACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """m[t], adapt[t] from those of t - 1 by `integrate`;  spikes[t] = m[t] >= level(adapt[t]);
    level(adapt) = threshold + beta · adapt.

    p_m and p_adapt get the last states, p_m_kept and p_adapt_kept the others. p_m may be p_m_first, and p_adapt
    p_adapt_first. Without ADVANCE the adaptation is not written.
    """
    o_row, o_n = rows_of_eight(BLOCK)
    mask = o_n < n
    b_m = tl.load(p_m_first + o_n, mask=mask)
    b_adapt = tl.load(p_adapt_first + o_n, mask=mask)
    o_t = tl.full((), 0, tl.int64)
    if MANY:
        for _ in range(steps - 1):
            b_current = scale * tl.load(p_x + o_t + o_n, mask=mask).to(b_m.dtype)
            b_m, b_adapt = integrate(b_m, b_adapt, b_current, decay, threshold, beta, rho, gain, ADVANCE)
            if KEEP:
                tl.store(p_m_kept + o_t + o_n, b_m, mask=mask)
                tl.store(p_adapt_kept + o_t + o_n, b_adapt, mask=mask)
            b_fired = b_m >= threshold + beta * b_adapt
            store_fired(p_spikes + o_t, p_bits + o_t // 8, o_n, o_row, b_fired, n, PACK)
            o_t += n
    b_current = scale * tl.load(p_x + o_t + o_n, mask=mask).to(b_m.dtype)
    b_m, b_adapt = integrate(b_m, b_adapt, b_current, decay, threshold, beta, rho, gain, ADVANCE)
    if ADVANCE:
        tl.store(p_adapt + o_n, b_adapt, mask=mask)
    tl.store(p_m + o_n, b_m, mask=mask)
    b_fired = b_m >= threshold + beta * b_adapt
    store_fired(p_spikes + o_t, p_bits + o_t // 8, o_n, o_row, b_fired, n, PACK)


@triton.jit
def alif_gradient_at(
    p_grad_spikes, p_grad_x, b_grad, b_k, b_m, b_adapt, o_n, o_t, n, threshold, beta, scale, a, b,
    SURROGATE: tl.constexpr, HAS_GRAD_SPIKES: tl.constexpr,
):  # fmt: skip
    """The gradients g of m and k of adapt at the offset `o_t`, from those of the next step; writes the input's."""
    if HAS_GRAD_SPIKES:
        b_level = threshold + beta * b_adapt
        b_f = tl.load(p_grad_spikes + o_t + o_n, mask=o_n < n).to(b_m.dtype) * SURROGATE(b_m - b_level, a, b)
        b_grad = b_grad + b_f
        b_k = b_k - beta * b_f
    tl.store(p_grad_x + o_t + o_n, (scale * b_grad).to(p_grad_x.dtype.element_ty), mask=o_n < n)
    return b_grad, b_k


@triton.jit
def alif_into_past(
    b_g, b_k, b_m, b_adapt, decay, threshold, beta, rho, gain, a, b,
    SURROGATE: tl.constexpr, DETACH_RESET: tl.constexpr, ADVANCE: tl.constexpr,
):  # fmt: skip
    """The gradients of the past states m' and adapt' from g and k."""
    b_u = decay * b_g
    if ADVANCE:
        b_level = threshold + beta * b_adapt
        b_e = gain * b_k
        if not DETACH_RESET:
            b_e = b_e - b_u * b_level
        b_e = b_e * SURROGATE(b_m - b_level, a, b)
        b_grad_level = -b_e
        if not DETACH_RESET:
            b_grad_level = tl.where(b_m >= b_level, -b_u, 0.0) - b_e
        b_u = b_u + b_e
        b_k = rho * b_k + beta * b_grad_level
    return b_u, b_k


@triton.jit(do_not_specialize=["steps"])
def alif_bwd(
    p_m, p_grad_x, p_grad_spikes, p_grad_m, p_m_kept, p_m_first, p_grad_m_first,
    p_adapt, p_grad_adapt, p_adapt_kept, p_adapt_first, p_grad_adapt_first,
    n, steps, decay, threshold, beta, rho, gain, scale, a, b,
    SURROGATE: tl.constexpr, DETACH_RESET: tl.constexpr, ADVANCE: tl.constexpr, MANY: tl.constexpr,
    ONLINE: tl.constexpr, HAS_GRAD_SPIKES: tl.constexpr, HAS_GRAD_M: tl.constexpr, HAS_GRAD_ADAPT: tl.constexpr,
    HAS_PAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """f = grad_spikes[t] · surrogate(m - level(adapt));  g = grad_m + f;  k = grad_adapt - beta · f;
    grad_x[t] = scale · g;  e = (gain · k - decay · g · level(adapt')) · surrogate(m' - level(adapt'));
    grad_m = decay · g + e;  grad_adapt = rho · k - beta · (decay · g · s' + e), for the previous step.

    If ONLINE, no gradient is passed to the previous step, and every step has its own programs.
    """
    o_n = neurons(BLOCK)
    mask = o_n < n
    o_t = tl.full((), 0, tl.int64)
    if MANY and ONLINE:
        p_m, _, _ = states_of_step(p_m, p_m_first, p_m_kept, n, steps)
        p_adapt, _, o_t = states_of_step(p_adapt, p_adapt_first, p_adapt_kept, n, steps)
    b_m = tl.load(p_m + o_n, mask=mask)  # if nothing below reads it, the compiler drops the load
    b_adapt = tl.load(p_adapt + o_n, mask=mask)
    b_grad = tl.full((BLOCK,), -0.0, b_m.dtype)  # adding it changes no number
    b_k = tl.full((BLOCK,), -0.0, b_m.dtype)
    if HAS_GRAD_M:
        b_grad = tl.load(p_grad_m + o_n, mask=mask)
    if HAS_GRAD_ADAPT:
        b_k = tl.load(p_grad_adapt + o_n, mask=mask)
    if MANY and not ONLINE:
        o_t += (steps - 1).to(tl.int64) * n
        for _ in range(steps - 1):
            b_g, b_grad_adapt = alif_gradient_at(
                p_grad_spikes, p_grad_x, b_grad, b_k, b_m, b_adapt, o_n, o_t, n, threshold, beta, scale, a, b,
                SURROGATE, HAS_GRAD_SPIKES,
            )  # fmt: skip
            o_t -= n
            b_m = tl.load(p_m_kept + o_t + o_n, mask=mask)
            b_adapt = tl.load(p_adapt_kept + o_t + o_n, mask=mask)
            b_grad, b_k = alif_into_past(
                b_g, b_grad_adapt, b_m, b_adapt, decay, threshold, beta, rho, gain, a, b,
                SURROGATE, DETACH_RESET, ADVANCE,
            )  # fmt: skip
    b_g, b_grad_adapt = alif_gradient_at(
        p_grad_spikes, p_grad_x, b_grad, b_k, b_m, b_adapt, o_n, o_t, n, threshold, beta, scale, a, b,
        SURROGATE, HAS_GRAD_SPIKES,
    )  # fmt: skip
    if HAS_PAST:
        b_m = tl.load(p_m_first + o_n, mask=mask)
        b_adapt = tl.load(p_adapt_first + o_n, mask=mask)
        b_grad, b_k = alif_into_past(
            b_g, b_grad_adapt, b_m, b_adapt, decay, threshold, beta, rho, gain, a, b, SURROGATE, DETACH_RESET, ADVANCE
        )
        tl.store(p_grad_m_first + o_n, b_grad, mask=mask)
        tl.store(p_grad_adapt_first + o_n, b_k, mask=mask)


def forward(operands: Forward, options: Options) -> None:
    """Launch `alif_fwd`."""
    o, n = operands, operands.m.numel()
    numbers = options.decay, options.threshold, options.beta, options.rho, 1 - options.rho, options.scale
    launch(
        alif_fwd, forward_grid(o), o.m,
        (o.x, o.m_first, o.m, o.spikes, o.bits, o.m_kept, o.adaptation_first, o.adaptation, o.adaptation_kept,
         n, o.steps, *numbers),
        ADVANCE=options.advance, MANY=o.steps > 1, KEEP=o.m_kept is not None, PACK=o.bits is not None,
    )  # fmt: skip


def backward(operands: Backward, options: Options) -> None:
    """Launch `alif_bwd`."""
    o, n = operands, operands.m.numel()
    numbers = options.decay, options.threshold, options.beta, options.rho, 1 - options.rho, options.scale
    launch(
        alif_bwd, backward_grid(o), o.m,
        (o.m, o.grad_x, o.grad_spikes, o.grad_m, o.m_kept, o.m_first, o.grad_m_first,
         o.adaptation, o.grad_adaptation, o.adaptation_kept, o.adaptation_first, o.grad_adaptation_first,
         n, o.steps, *numbers, options.a, options.b),
        SURROGATE=surrogate(options.form), DETACH_RESET=options.detach_reset, ADVANCE=options.advance,
        MANY=o.steps > 1, ONLINE=o.online, HAS_GRAD_SPIKES=o.grad_spikes is not None,
        HAS_GRAD_M=o.grad_m is not None, HAS_GRAD_ADAPT=o.grad_adaptation is not None,
        HAS_PAST=o.grad_m_first is not None,
    )  # fmt: skip

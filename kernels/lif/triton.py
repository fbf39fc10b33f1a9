"""The LIF steps as Triton kernels, for CUDA and ROCm (and, with TRITON_INTERPRET=1, on CPU for tests); PLIF's too.

PLIF is LIF with its decay in memory (LEARNED): it is read from the device, so that no step waits for it. Its gradient
is a sum over all neurons: each program writes the sum of its own, and `plif_grad_w` adds those up, both in an order
that never changes.
"""

from __future__ import annotations

import math
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
def after_reset(b_m, threshold, reset_value, RESET: tl.constexpr):
    """u = reset(m)."""
    if RESET == "soft":
        b_m = tl.where(b_m >= threshold, b_m - threshold, b_m)
    elif RESET == "hard":
        b_m = tl.where(b_m >= threshold, reset_value, b_m)
    return b_m


@triton.jit
def through_reset(
    b_grad, b_m, threshold, reset_value, a, b,
    SURROGATE: tl.constexpr, RESET: tl.constexpr, DETACH_RESET: tl.constexpr,
):  # fmt: skip
    """The gradient of m from that of u = reset(m)."""
    b_past = b_grad
    if RESET == "hard":
        b_past = tl.where(b_m >= threshold, 0.0, b_grad)
    if not DETACH_RESET:
        if RESET == "soft":
            b_past = b_grad - (b_grad * threshold) * SURROGATE(b_m - threshold, a, b)
        elif RESET == "hard":
            b_jump = tl.where(tl.abs(b_m) < float("inf"), reset_value - b_m, 0.0)
            b_past = b_past + (b_grad * b_jump) * SURROGATE(b_m - threshold, a, b)
    return b_past


@triton.jit
def learned(p_decay, decay, scale, LEARNED: tl.constexpr, SCALE_BY_DECAY: tl.constexpr):
    """Decay and scale: as given, or from memory."""
    if LEARNED:
        decay = tl.load(p_decay)
        if SCALE_BY_DECAY:
            scale = scale * (1.0 - decay)
    return decay, scale


@triton.jit
def integrate(b_m, b_current, decay, threshold, reset_value, RESET: tl.constexpr):
    """m = decay · reset(m') + current."""
    return decay * after_reset(b_m, threshold, reset_value, RESET) + b_current


@triton.jit(do_not_specialize=["steps"])
def lif_fwd(
    p_x, p_m_first, p_m, p_spikes, p_bits, p_m_kept, p_decay, n, steps, decay, threshold, reset_value, scale,
    RESET: tl.constexpr, LEARNED: tl.constexpr, SCALE_BY_DECAY: tl.constexpr, MANY: tl.constexpr, KEEP: tl.constexpr,
    PACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """m[t] = decay · reset(m[t-1]) + scale · x[t];  spikes[t] = m[t] >= threshold;  bit i of byte j is neuron 8j + i.

    m[-1] is m_first, p_m gets the last membrane, and p_m_kept the others. p_m may be p_m_first: each neuron is read
    before it is written, by the same thread.
    """
    o_row, o_n = rows_of_eight(BLOCK)
    mask = o_n < n
    decay, scale = learned(p_decay, decay, scale, LEARNED, SCALE_BY_DECAY)
    b_m = tl.load(p_m_first + o_n, mask=mask)
    o_t = tl.full((), 0, tl.int64)
    if MANY:
        for _ in range(steps - 1):
            b_current = scale * tl.load(p_x + o_t + o_n, mask=mask).to(b_m.dtype)
            b_m = integrate(b_m, b_current, decay, threshold, reset_value, RESET)
            if KEEP:
                tl.store(p_m_kept + o_t + o_n, b_m, mask=mask)
            store_fired(p_spikes + o_t, p_bits + o_t // 8, o_n, o_row, b_m >= threshold, n, PACK)
            o_t += n
    b_current = scale * tl.load(p_x + o_t + o_n, mask=mask).to(b_m.dtype)
    b_m = integrate(b_m, b_current, decay, threshold, reset_value, RESET)
    tl.store(p_m + o_n, b_m, mask=mask)
    store_fired(p_spikes + o_t, p_bits + o_t // 8, o_n, o_row, b_m >= threshold, n, PACK)


@triton.jit
def lif_gradient_at(
    p_grad_spikes, p_grad_x, b_grad, b_m, o_n, o_t, n, threshold, scale, a, b,
    SURROGATE: tl.constexpr, HAS_GRAD_SPIKES: tl.constexpr,
):  # fmt: skip
    """The gradient of m at the offset `o_t`, from `b_grad` of the next step; the input's is written."""
    if HAS_GRAD_SPIKES:
        b_grad_spikes = tl.load(p_grad_spikes + o_t + o_n, mask=o_n < n).to(b_m.dtype)
        b_grad = b_grad + b_grad_spikes * SURROGATE(b_m - threshold, a, b)
    tl.store(p_grad_x + o_t + o_n, (scale * b_grad).to(p_grad_x.dtype.element_ty), mask=o_n < n)
    return b_grad


@triton.jit
def decay_product(b_g, b_m, b_past, threshold, reset_value, RESET: tl.constexpr, SCALE_BY_DECAY: tl.constexpr):
    """What each neuron adds to the decay's gradient: g · u, or g · (u - m) where the decay scales the input, too."""
    b_u = after_reset(b_past, threshold, reset_value, RESET)
    if SCALE_BY_DECAY:
        b_u = b_u - b_m
    return b_g * b_u


@triton.jit(do_not_specialize=["steps"])
def lif_bwd(
    p_m, p_grad_x, p_grad_spikes, p_grad_m, p_m_kept, p_m_first, p_grad_m_first, p_decay, p_partial,
    n, steps, decay, threshold, reset_value, scale, a, b,
    SURROGATE: tl.constexpr, RESET: tl.constexpr, DETACH_RESET: tl.constexpr,
    LEARNED: tl.constexpr, SCALE_BY_DECAY: tl.constexpr, MANY: tl.constexpr, ONLINE: tl.constexpr,
    HAS_GRAD_SPIKES: tl.constexpr, HAS_GRAD_M: tl.constexpr, HAS_PAST: tl.constexpr, HAS_GRAD_W: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """g = G[t] + grad_spikes[t] · surrogate(m[t] - threshold);  grad_x[t] = scale · g;
    G[t-1] = decay · g · reset'(m[t-1]), from G[T-1] = grad_m down to G[-1] = grad_m_first;
    partial = Σ g · u of this program's neurons, or Σ g · (u - m) with SCALE_BY_DECAY, where u = reset(m[t-1]).

    ONLINE G is nothing, and every step has programs of its own.
    """
    o_n = neurons(BLOCK)
    mask = o_n < n
    decay, scale = learned(p_decay, decay, scale, LEARNED, SCALE_BY_DECAY)
    o_t = tl.full((), 0, tl.int64)
    i_partial = tl.program_id(0).to(tl.int64)
    if MANY and ONLINE:
        p_m, p_m_first, o_t = states_of_step(p_m, p_m_first, p_m_kept, n, steps)
        i_partial += tl.program_id(1).to(tl.int64) * tl.num_programs(0)
    b_m = tl.load(p_m + o_n, mask=mask)  # no access where nothing below reads it: the compiler drops the load
    b_grad = tl.full((BLOCK,), -0.0, b_m.dtype)  # which leaves every number as it is when it is added
    if HAS_GRAD_M:
        b_grad = tl.load(p_grad_m + o_n, mask=mask)
    b_products = tl.zeros((BLOCK,), b_m.dtype)
    if MANY and not ONLINE:
        o_t += (steps - 1).to(tl.int64) * n
        for _ in range(steps - 1):
            b_g = lif_gradient_at(
                p_grad_spikes, p_grad_x, b_grad, b_m, o_n, o_t, n, threshold, scale, a, b, SURROGATE, HAS_GRAD_SPIKES
            )
            o_t -= n
            b_past = tl.load(p_m_kept + o_t + o_n, mask=mask)
            if HAS_GRAD_W:
                b_products += decay_product(b_g, b_m, b_past, threshold, reset_value, RESET, SCALE_BY_DECAY)
            b_grad = through_reset(decay * b_g, b_past, threshold, reset_value, a, b, SURROGATE, RESET, DETACH_RESET)
            b_m = b_past
    b_g = lif_gradient_at(
        p_grad_spikes, p_grad_x, b_grad, b_m, o_n, o_t, n, threshold, scale, a, b, SURROGATE, HAS_GRAD_SPIKES
    )
    if HAS_PAST or HAS_GRAD_W:
        b_past = tl.load(p_m_first + o_n, mask=mask)
        if HAS_GRAD_W:
            b_products += decay_product(b_g, b_m, b_past, threshold, reset_value, RESET, SCALE_BY_DECAY)
            tl.store(p_partial + i_partial, tl.sum(tl.where(mask, b_products, 0.0)))
        if HAS_PAST:
            b_grad = through_reset(decay * b_g, b_past, threshold, reset_value, a, b, SURROGATE, RESET, DETACH_RESET)
            tl.store(p_grad_m_first + o_n, b_grad, mask=mask)


@triton.jit(do_not_specialize=["programs"])
def plif_grad_w(p_partial, p_decay, p_grad_w, programs, SCALE_BY_DECAY: tl.constexpr, BLOCK: tl.constexpr):
    """grad_w = decay · (1 - decay) · Σ partial, or decay · Σ partial with SCALE_BY_DECAY; one program."""
    b_sum = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, programs, BLOCK):
        o_partial = first + tl.arange(0, BLOCK)
        b_sum += tl.load(p_partial + o_partial, mask=o_partial < programs, other=0.0)
    decay = tl.load(p_decay)
    slope = decay if SCALE_BY_DECAY else decay * (1.0 - decay)
    tl.store(p_grad_w, slope * tl.sum(b_sum))


def forward(operands: Forward, options: Options) -> None:
    """Launch `lif_fwd`."""
    o, n = operands, operands.m.numel()
    launch(
        lif_fwd, forward_grid(o), o.m,
        (o.x, o.m_first, o.m, o.spikes, o.bits, o.m_kept, o.decay,
         n, o.steps, options.decay, options.threshold, options.reset_value, options.scale),
        RESET=options.reset, LEARNED=o.decay is not None, SCALE_BY_DECAY=options.scale_by_decay,
        MANY=o.steps > 1, KEEP=o.m_kept is not None, PACK=o.bits is not None,
    )  # fmt: skip


def backward(operands: Backward, options: Options) -> None:
    """Launch `lif_bwd`, and `plif_grad_w` if the decay's gradient is wanted."""
    o, n = operands, operands.m.numel()
    grid = backward_grid(o)
    partial = None if o.grad_w is None else o.m.new_empty(math.prod(grid))
    launch(
        lif_bwd, grid, o.m,
        (o.m, o.grad_x, o.grad_spikes, o.grad_m, o.m_kept, o.m_first, o.grad_m_first, o.decay, partial,
         n, o.steps, options.decay, options.threshold, options.reset_value, options.scale, options.a, options.b),
        SURROGATE=surrogate(options.form), RESET=options.reset, DETACH_RESET=options.detach_reset,
        LEARNED=o.decay is not None, SCALE_BY_DECAY=options.scale_by_decay, MANY=o.steps > 1, ONLINE=o.online,
        HAS_GRAD_SPIKES=o.grad_spikes is not None, HAS_GRAD_M=o.grad_m is not None,
        HAS_PAST=o.grad_m_first is not None, HAS_GRAD_W=o.grad_w is not None,
    )  # fmt: skip
    if partial is not None:
        arguments = partial, o.decay, o.grad_w, partial.numel()
        launch(plif_grad_w, (1,), o.m, arguments, SCALE_BY_DECAY=options.scale_by_decay)

"""The PLIF step as Triton kernels: the LIF step with its decay in memory, and the decay's gradient.

The decay is read from the device, so that no step waits for it. Its gradient is a sum over all neurons: each program
writes the sum of its own, and `plif_grad_w` adds those up, both in an order that never changes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..lif.triton import BLOCK, NUM_WARPS, THREADS, after_reset, store_fired, surrogate, through_reset

__all__ = ["BLOCK", "THREADS", "backward", "forward", "plif_bwd", "plif_fwd", "plif_grad_w", "surrogate"]


@triton.jit
def plif_fwd(
    p_x, p_m_prev, p_decay, p_m, p_spikes, p_bits, n, threshold, reset_value, scale,
    RESET: tl.constexpr, SCALE_BY_DECAY: tl.constexpr, PACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """m = decay · reset(m_prev) + c · x;  spikes = m >= threshold;  c = scale, or scale · (1 - decay)."""
    # Rows of eight neurons: a row is one byte of bits. 64-bit offsets: tensors may exceed 2^31 elements.
    o_row = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    o_n = o_row[:, None] * 8 + tl.arange(0, 8)[None, :]
    mask = o_n < n
    decay = tl.load(p_decay)
    if SCALE_BY_DECAY:
        scale = scale * (1.0 - decay)
    b_m_prev = tl.load(p_m_prev + o_n, mask=mask)
    b_x = tl.load(p_x + o_n, mask=mask).to(b_m_prev.dtype)
    b_m = decay * after_reset(b_m_prev, threshold, reset_value, RESET) + scale * b_x
    tl.store(p_m + o_n, b_m, mask=mask)
    store_fired(p_spikes, p_bits, o_n, o_row, b_m >= threshold, n, PACK)


@triton.jit
def plif_bwd(
    p_m, p_grad_spikes, p_grad_m, p_m_prev, p_decay, p_grad_x, p_grad_m_prev, p_partial,
    n, threshold, reset_value, scale, a, b,
    SURROGATE: tl.constexpr, RESET: tl.constexpr, DETACH_RESET: tl.constexpr, SCALE_BY_DECAY: tl.constexpr,
    HAS_GRAD_SPIKES: tl.constexpr, HAS_GRAD_M: tl.constexpr, HAS_PAST: tl.constexpr, HAS_GRAD_W: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """g = grad_m + grad_spikes · surrogate(m - threshold);  grad_x = c · g;  grad_m_prev = decay · g · reset'(m_prev);
    partial = Σ g · u of this program's neurons, or Σ g · (u - m) with SCALE_BY_DECAY, where u = reset(m_prev)."""
    i_block = tl.program_id(0).to(tl.int64)
    o_n = i_block * BLOCK + tl.arange(0, BLOCK)
    mask = o_n < n
    decay = tl.load(p_decay)
    if SCALE_BY_DECAY:
        scale = scale * (1.0 - decay)
    b_m = tl.load(p_m + o_n, mask=mask)  # no access where nothing below reads it: the compiler drops the load
    b_g = tl.zeros((BLOCK,), b_m.dtype)
    if HAS_GRAD_SPIKES:
        b_grad_spikes = tl.load(p_grad_spikes + o_n, mask=mask).to(b_m.dtype)
        b_g = b_grad_spikes * SURROGATE(b_m - threshold, a, b)
    if HAS_GRAD_M:
        b_g = tl.load(p_grad_m + o_n, mask=mask) + b_g
    tl.store(p_grad_x + o_n, (scale * b_g).to(p_grad_x.dtype.element_ty), mask=mask)
    if HAS_PAST or HAS_GRAD_W:
        b_m_prev = tl.load(p_m_prev + o_n, mask=mask)
        if HAS_GRAD_W:
            b_u = after_reset(b_m_prev, threshold, reset_value, RESET)
            if SCALE_BY_DECAY:
                b_u = b_u - b_m
            tl.store(p_partial + i_block, tl.sum(tl.where(mask, b_g * b_u, 0.0)))
        if HAS_PAST:
            b_past = through_reset(decay * b_g, b_m_prev, threshold, reset_value, a, b, SURROGATE, RESET, DETACH_RESET)
            tl.store(p_grad_m_prev + o_n, b_past, mask=mask)


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


def forward(x, m_prev, decay, m, spikes, bits, *, threshold, reset, reset_value, scale, scale_by_decay) -> None:
    """Launch `plif_fwd`; `spikes` may be `x` itself, `bits` may be None."""
    n = x.numel()
    plif_fwd[(triton.cdiv(n, BLOCK),)](
        x, m_prev, decay, m, spikes, spikes if bits is None else bits, n, threshold, reset_value, scale,
        RESET=reset, SCALE_BY_DECAY=scale_by_decay, PACK=bits is not None, BLOCK=BLOCK,
        num_warps=NUM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


def backward(
    m, grad_spikes, grad_m, m_prev, decay, grad_x, grad_m_prev, grad_w,
    *, threshold, reset, reset_value, scale, scale_by_decay, detach_reset, form, a, b,
) -> None:  # fmt: skip
    """Launch `plif_bwd`, and `plif_grad_w` if `grad_w` is wanted; operands that are None are not touched."""
    n = m.numel()
    programs = triton.cdiv(n, BLOCK)
    partial = grad_x if grad_w is None else m.new_empty(programs)
    plif_bwd[(programs,)](
        m, m if grad_spikes is None else grad_spikes, m if grad_m is None else grad_m, m if m_prev is None else m_prev,
        decay, grad_x, grad_x if grad_m_prev is None else grad_m_prev, partial,
        n, threshold, reset_value, scale, a, b,
        SURROGATE=surrogate(form), RESET=reset, DETACH_RESET=detach_reset, SCALE_BY_DECAY=scale_by_decay,
        HAS_GRAD_SPIKES=grad_spikes is not None, HAS_GRAD_M=grad_m is not None, HAS_PAST=grad_m_prev is not None,
        HAS_GRAD_W=grad_w is not None, BLOCK=BLOCK, num_warps=NUM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    if grad_w is not None:
        plif_grad_w[(1,)](
            partial, decay, grad_w, programs, SCALE_BY_DECAY=scale_by_decay, BLOCK=BLOCK,
            num_warps=NUM_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

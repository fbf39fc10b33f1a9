"""The ALIF step as Triton kernels, for CUDA and ROCm (and, with TRITON_INTERPRET=1, on CPU for tests).

Tensors arrive dense and with one layout (ops.py sees to it), so a kernel walks memory in order whatever the shape.
`p_adapt` points to the adaptation, `level` is the threshold that it raises; gain is 1 - rho.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..lif.triton import BLOCK, NUM_WARPS, THREADS, store_fired, surrogate

__all__ = ["BLOCK", "THREADS", "alif_bwd", "alif_fwd", "backward", "forward", "surrogate"]


@triton.jit
def alif_fwd(
    p_x, p_m_prev, p_adapt_prev, p_m, p_adapt, p_spikes, p_bits, n, decay, threshold, beta, rho, gain, scale,
    ADVANCE: tl.constexpr, PACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """s' = m' >= level(adapt');  u = m' - level(adapt') · s';  adapt = rho · adapt' + gain · s';
    m = decay · u + scale · x;  spikes = m >= level(adapt);  level(adapt) = threshold + beta · adapt.

    Online, p_m is p_m_prev and p_adapt is p_adapt_prev. Without ADVANCE u is m', adapt is adapt' and not written.
    """
    # Rows of eight neurons: a row is one byte of bits. 64-bit offsets: tensors may exceed 2^31 elements.
    o_row = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    o_n = o_row[:, None] * 8 + tl.arange(0, 8)[None, :]
    mask = o_n < n
    b_u = tl.load(p_m_prev + o_n, mask=mask)
    b_adapt = tl.load(p_adapt_prev + o_n, mask=mask)
    b_x = tl.load(p_x + o_n, mask=mask).to(b_u.dtype)
    if ADVANCE:
        b_level = threshold + beta * b_adapt
        b_fired = b_u >= b_level
        b_u = tl.where(b_fired, b_u - b_level, b_u)
        b_adapt = rho * b_adapt + tl.where(b_fired, gain, 0.0)
        tl.store(p_adapt + o_n, b_adapt, mask=mask)
    b_m = decay * b_u + scale * b_x
    tl.store(p_m + o_n, b_m, mask=mask)
    store_fired(p_spikes, p_bits, o_n, o_row, b_m >= threshold + beta * b_adapt, n, PACK)


@triton.jit
def alif_bwd(
    p_m, p_adapt, p_grad_spikes, p_grad_m, p_grad_adapt, p_m_prev, p_adapt_prev,
    p_grad_x, p_grad_m_prev, p_grad_adapt_prev, n, decay, threshold, beta, rho, gain, scale, a, b,
    SURROGATE: tl.constexpr, DETACH_RESET: tl.constexpr, ADVANCE: tl.constexpr, HAS_GRAD_SPIKES: tl.constexpr,
    HAS_GRAD_M: tl.constexpr, HAS_GRAD_ADAPT: tl.constexpr, HAS_PAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """f = grad_spikes · surrogate(m - level(adapt));  g = grad_m + f;  k = grad_adapt - beta · f;  grad_x = scale · g;
    e = gain · k - decay · g · level(adapt'), times surrogate(m' - level(adapt'));
    grad_m_prev = decay · g + e;  grad_adapt_prev = rho · k - beta · (decay · g · s' + e)."""
    o_n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o_n < n
    b_f = tl.zeros((BLOCK,), p_m.dtype.element_ty)
    if HAS_GRAD_SPIKES:
        b_m = tl.load(p_m + o_n, mask=mask)
        b_level = threshold + beta * tl.load(p_adapt + o_n, mask=mask)
        b_f = tl.load(p_grad_spikes + o_n, mask=mask).to(b_m.dtype) * SURROGATE(b_m - b_level, a, b)
    b_g = b_f
    if HAS_GRAD_M:
        b_g = tl.load(p_grad_m + o_n, mask=mask) + b_f
    tl.store(p_grad_x + o_n, (scale * b_g).to(p_grad_x.dtype.element_ty), mask=mask)
    if HAS_PAST:
        b_u = decay * b_g
        b_k = -(beta * b_f)
        if HAS_GRAD_ADAPT:
            b_k = tl.load(p_grad_adapt + o_n, mask=mask) + b_k
        if ADVANCE:
            b_m_prev = tl.load(p_m_prev + o_n, mask=mask)
            b_level = threshold + beta * tl.load(p_adapt_prev + o_n, mask=mask)
            b_e = gain * b_k
            if not DETACH_RESET:
                b_e = b_e - b_u * b_level
            b_e = b_e * SURROGATE(b_m_prev - b_level, a, b)
            b_grad_level = -b_e
            if not DETACH_RESET:
                b_grad_level = tl.where(b_m_prev >= b_level, -b_u, 0.0) - b_e
            b_u = b_u + b_e
            b_k = rho * b_k + beta * b_grad_level
        tl.store(p_grad_m_prev + o_n, b_u, mask=mask)
        tl.store(p_grad_adapt_prev + o_n, b_k, mask=mask)


def forward(
    x, m_prev, adaptation_prev, m, adaptation, spikes, bits, *, decay, threshold, beta, rho, scale, advance
) -> None:
    """Launch `alif_fwd`; the new states may be the old ones, `spikes` may be `x`, `bits` may be None."""
    n = x.numel()
    alif_fwd[(triton.cdiv(n, BLOCK),)](
        x, m_prev, adaptation_prev, m, adaptation, spikes, spikes if bits is None else bits,
        n, decay, threshold, beta, rho, 1 - rho, scale,
        ADVANCE=advance, PACK=bits is not None, BLOCK=BLOCK, num_warps=NUM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


def backward(
    m, adaptation, grad_spikes, grad_m, grad_adaptation, m_prev, adaptation_prev, grad_x, grad_m_prev,
    grad_adaptation_prev, *, decay, threshold, beta, rho, scale, detach_reset, advance, form, a, b,
) -> None:  # fmt: skip
    """Launch `alif_bwd`; operands that are None are neither read nor written."""
    n = m.numel()
    given = [m if t is None else t for t in (grad_spikes, grad_m, grad_adaptation, m_prev, adaptation_prev)]
    results = [grad_x if t is None else t for t in (grad_x, grad_m_prev, grad_adaptation_prev)]
    alif_bwd[(triton.cdiv(n, BLOCK),)](
        m, adaptation, *given, *results, n, decay, threshold, beta, rho, 1 - rho, scale, a, b,
        SURROGATE=surrogate(form), DETACH_RESET=detach_reset, ADVANCE=advance, HAS_GRAD_SPIKES=grad_spikes is not None,
        HAS_GRAD_M=grad_m is not None, HAS_GRAD_ADAPT=grad_adaptation is not None, HAS_PAST=grad_m_prev is not None,
        BLOCK=BLOCK, num_warps=NUM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip

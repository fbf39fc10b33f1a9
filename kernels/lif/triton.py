"""The LIF step as Triton kernels, for CUDA and ROCm (and, with TRITON_INTERPRET=1, on CPU for tests).

Tensors arrive dense and with one layout (ops.py sees to it), so a kernel walks memory in order whatever the shape.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from ..surrogate import gradient_for

BLOCK = 1024
"""Neurons a program handles."""
THREADS = BLOCK // 8
"""Eight neurons a thread: two 128-bit accesses per float32 operand, one byte of spike bits."""
NUM_WARPS = THREADS // (64 if torch.version.hip else 32)


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
def store_fired(p_spikes, p_bits, o_n, o_row, b_fired, n, PACK: tl.constexpr):
    """Write the spikes of rows of eight neurons, and each row as one byte of bits."""
    tl.store(p_spikes + o_n, tl.where(b_fired, 1.0, 0.0).to(p_spikes.dtype.element_ty), mask=o_n < n)
    if PACK:
        b_bits = tl.sum((b_fired & (o_n < n)).to(tl.int32) << tl.arange(0, 8)[None, :], axis=1)
        tl.store(p_bits + o_row, b_bits.to(tl.uint8), mask=o_row * 8 < n)


@triton.jit
def lif_fwd(
    p_x, p_m_prev, p_m, p_spikes, p_bits, n, decay, threshold, reset_value, scale,
    RESET: tl.constexpr, PACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """m = decay · reset(m_prev) + scale · x;  spikes = m >= threshold;  bit i of byte j is neuron 8j + i.

    Online, p_m is p_m_prev: each neuron is read before it is written, by the same thread.
    """
    # Rows of eight neurons: a row is one byte of bits. 64-bit offsets: tensors may exceed 2^31 elements.
    o_row = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    o_n = o_row[:, None] * 8 + tl.arange(0, 8)[None, :]
    mask = o_n < n
    b_m_prev = tl.load(p_m_prev + o_n, mask=mask)
    b_x = tl.load(p_x + o_n, mask=mask).to(b_m_prev.dtype)
    b_m = decay * after_reset(b_m_prev, threshold, reset_value, RESET) + scale * b_x
    tl.store(p_m + o_n, b_m, mask=mask)
    store_fired(p_spikes, p_bits, o_n, o_row, b_m >= threshold, n, PACK)


@triton.jit
def lif_bwd(
    p_m, p_grad_spikes, p_grad_m, p_m_prev, p_grad_x, p_grad_m_prev, n, decay, threshold, reset_value, scale, a, b,
    SURROGATE: tl.constexpr, RESET: tl.constexpr, DETACH_RESET: tl.constexpr,
    HAS_GRAD_SPIKES: tl.constexpr, HAS_GRAD_M: tl.constexpr, HAS_PAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """g = grad_m + grad_spikes · surrogate(m - threshold);  grad_x = scale · g;
    grad_m_prev = decay · g · reset'(m_prev)."""
    o_n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o_n < n
    b_g = tl.zeros((BLOCK,), p_m.dtype.element_ty)
    if HAS_GRAD_SPIKES:
        b_m = tl.load(p_m + o_n, mask=mask)
        b_grad_spikes = tl.load(p_grad_spikes + o_n, mask=mask).to(b_m.dtype)
        b_g = b_grad_spikes * SURROGATE(b_m - threshold, a, b)
    if HAS_GRAD_M:
        b_g = tl.load(p_grad_m + o_n, mask=mask) + b_g
    tl.store(p_grad_x + o_n, (scale * b_g).to(p_grad_x.dtype.element_ty), mask=mask)
    if HAS_PAST:
        b_m_prev = tl.load(p_m_prev + o_n, mask=mask)
        b_past = through_reset(decay * b_g, b_m_prev, threshold, reset_value, a, b, SURROGATE, RESET, DETACH_RESET)
        tl.store(p_grad_m_prev + o_n, b_past, mask=mask)


def forward(x, m_prev, m, spikes, bits, *, decay, threshold, reset, reset_value, scale) -> None:
    """Launch `lif_fwd`; `m` may be `m_prev` itself, `bits` may be None."""
    n = x.numel()
    lif_fwd[(triton.cdiv(n, BLOCK),)](
        x, m_prev, m, spikes, spikes if bits is None else bits, n, decay, threshold, reset_value, scale,
        RESET=reset, PACK=bits is not None, BLOCK=BLOCK, num_warps=NUM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


def backward(
    m,
    grad_spikes,
    grad_m,
    m_prev,
    grad_x,
    grad_m_prev,
    *,
    decay,
    threshold,
    reset,
    reset_value,
    scale,
    detach_reset,
    form,
    a,
    b,
) -> None:
    """Launch `lif_bwd`; operands that are None are neither read nor written."""
    n = m.numel()
    lif_bwd[(triton.cdiv(n, BLOCK),)](
        m, m if grad_spikes is None else grad_spikes, m if grad_m is None else grad_m, m if m_prev is None else m_prev,
        grad_x, grad_x if grad_m_prev is None else grad_m_prev, n, decay, threshold, reset_value, scale, a, b,
        SURROGATE=surrogate(form), RESET=reset, DETACH_RESET=detach_reset,
        HAS_GRAD_SPIKES=grad_spikes is not None, HAS_GRAD_M=grad_m is not None, HAS_PAST=m_prev is not None,
        BLOCK=BLOCK, num_warps=NUM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


@functools.cache
def surrogate(form: str) -> triton.JITFunction:
    """A surrogate's gradient as a function that kernels can call."""
    return triton.jit(gradient_for(form, tl))

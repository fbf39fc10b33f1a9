"""All time steps of the LIF neuron in one Triton kernel a direction: the membrane stays in registers from step to step.

The number of steps is a runtime value for which nothing is compiled anew. The last step forward and the first one
backward stand after the loop, because their membranes lie elsewhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton import BLOCK, NUM_WARPS, THREADS, after_reset, store_fired, surrogate, through_reset

__all__ = ["BLOCK", "THREADS", "backward", "forward", "lif_sequence_bwd", "lif_sequence_fwd", "surrogate"]


@triton.jit
def _fire(
    p_x, p_spikes, p_bits, b_m, o_n, o_row, o_t, n, decay, threshold, reset_value, scale,
    RESET: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """One step at the offset `o_t`: the new membrane, its spikes written."""
    b_x = tl.load(p_x + o_t + o_n, mask=o_n < n).to(b_m.dtype)
    b_m = decay * after_reset(b_m, threshold, reset_value, RESET) + scale * b_x
    store_fired(p_spikes + o_t, p_bits + o_t // 8, o_n, o_row, b_m >= threshold, n, PACK)
    return b_m


@triton.jit(do_not_specialize=["steps"])
def lif_sequence_fwd(
    p_x, p_m_first, p_m, p_m_last, p_spikes, p_bits, n, steps, decay, threshold, reset_value, scale,
    RESET: tl.constexpr, KEEP: tl.constexpr, PACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """m[t] = decay · reset(m[t-1]) + scale · x[t];  spikes[t] = m[t] >= threshold;  m[-1] is m_first.

    p_m gets the membranes of all steps but the last, p_m_last the last.
    """
    # Rows of eight neurons: a row is one byte of bits. 64-bit offsets: tensors may exceed 2^31 elements.
    o_row = tl.program_id(0).to(tl.int64) * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    o_n = o_row[:, None] * 8 + tl.arange(0, 8)[None, :]
    mask = o_n < n
    b_m = tl.load(p_m_first + o_n, mask=mask)
    o_t = tl.full((), 0, tl.int64)
    for _ in range(steps - 1):
        b_m = _fire(p_x, p_spikes, p_bits, b_m, o_n, o_row, o_t, n, decay, threshold, reset_value, scale, RESET, PACK)
        if KEEP:
            tl.store(p_m + o_t + o_n, b_m, mask=mask)
        o_t += n
    b_m = _fire(p_x, p_spikes, p_bits, b_m, o_n, o_row, o_t, n, decay, threshold, reset_value, scale, RESET, PACK)
    tl.store(p_m_last + o_n, b_m, mask=mask)


@triton.jit
def _gradient(
    p_grad_spikes, p_grad_x, b_grad, b_m, o_n, o_t, n, threshold, scale, a, b,
    SURROGATE: tl.constexpr, HAS_GRAD_SPIKES: tl.constexpr,
):  # fmt: skip
    """The gradient of m at the offset `o_t`, from `b_grad` of the step after; the input's is written."""
    if HAS_GRAD_SPIKES:
        b_grad_spikes = tl.load(p_grad_spikes + o_t + o_n, mask=o_n < n).to(b_m.dtype)
        b_grad = b_grad + b_grad_spikes * SURROGATE(b_m - threshold, a, b)
    tl.store(p_grad_x + o_t + o_n, (scale * b_grad).to(p_grad_x.dtype.element_ty), mask=o_n < n)
    return b_grad


@triton.jit(do_not_specialize=["steps"])
def lif_sequence_bwd(
    p_m, p_m_last, p_grad_spikes, p_grad_last, p_m_first, p_grad_x, p_grad_first,
    n, steps, decay, threshold, reset_value, scale, a, b,
    SURROGATE: tl.constexpr, RESET: tl.constexpr, DETACH_RESET: tl.constexpr,
    HAS_GRAD_SPIKES: tl.constexpr, HAS_GRAD_LAST: tl.constexpr, HAS_PAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """g = G[t] + grad_spikes[t] · surrogate(m[t] - threshold);  grad_x[t] = scale · g;
    G[t-1] = decay · g · reset'(m[t-1]), from G[T-1] = grad_last down to G[-1] = grad_first."""
    o_n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o_n < n
    b_m = tl.load(p_m_last + o_n, mask=mask)
    b_grad = tl.zeros((BLOCK,), b_m.dtype)
    if HAS_GRAD_LAST:
        b_grad = tl.load(p_grad_last + o_n, mask=mask)
    o_t = (steps - 1).to(tl.int64) * n
    for _ in range(steps - 1):
        b_grad = _gradient(
            p_grad_spikes, p_grad_x, b_grad, b_m, o_n, o_t, n, threshold, scale, a, b, SURROGATE, HAS_GRAD_SPIKES
        )
        o_t -= n
        b_m = tl.load(p_m + o_t + o_n, mask=mask)
        b_grad = through_reset(decay * b_grad, b_m, threshold, reset_value, a, b, SURROGATE, RESET, DETACH_RESET)
    b_grad = _gradient(
        p_grad_spikes, p_grad_x, b_grad, b_m, o_n, o_t, n, threshold, scale, a, b, SURROGATE, HAS_GRAD_SPIKES
    )
    if HAS_PAST:
        b_m = tl.load(p_m_first + o_n, mask=mask)
        b_grad = through_reset(decay * b_grad, b_m, threshold, reset_value, a, b, SURROGATE, RESET, DETACH_RESET)
        tl.store(p_grad_first + o_n, b_grad, mask=mask)


def forward(x, m_first, m, m_last, spikes, bits, *, decay, threshold, reset, reset_value, scale) -> None:
    """Launch `lif_sequence_fwd`; `m` and `bits` may be None."""
    n = m_first.numel()
    lif_sequence_fwd[(triton.cdiv(n, BLOCK),)](
        x, m_first, m_last if m is None else m, m_last, spikes, spikes if bits is None else bits,
        n, len(x), decay, threshold, reset_value, scale,
        RESET=reset, KEEP=m is not None, PACK=bits is not None, BLOCK=BLOCK,
        num_warps=NUM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


def backward(
    m, m_last, grad_spikes, grad_last, m_first, grad_x, grad_first,
    *, decay, threshold, reset, reset_value, scale, detach_reset, form, a, b,
) -> None:  # fmt: skip
    """Launch `lif_sequence_bwd`; operands that are None are neither read nor written."""
    n = m_last.numel()
    absent = grad_first is None
    lif_sequence_bwd[(triton.cdiv(n, BLOCK),)](
        m, m_last, m if grad_spikes is None else grad_spikes, m if grad_last is None else grad_last,
        m if absent else m_first, grad_x, grad_x if absent else grad_first,
        n, len(grad_x), decay, threshold, reset_value, scale, a, b,
        SURROGATE=surrogate(form), RESET=reset, DETACH_RESET=detach_reset, HAS_GRAD_SPIKES=grad_spikes is not None,
        HAS_GRAD_LAST=grad_last is not None, HAS_PAST=not absent, BLOCK=BLOCK,
        num_warps=NUM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip

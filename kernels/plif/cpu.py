"""The PLIF step on CPU: forward is the LIF kernel, backward adds the decay's gradient.

That gradient is a sum over all neurons. Each chunk of them is summed in its own fixed order, whichever thread has it,
and the sums of the chunks are added in theirs: the result does not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
import torch
from numba import carray

from ..cpu_math import element
from ..cpu_scratch import scratch
from ..cpu_threads import CHUNK, claim, compile_kernel, pointer, run
from ..lif import cpu as lif
from ..lif.cpu import TILE, record_type, reset_for, reset_gradient_for, surrogate_for

LANES = 64
"""Running sums of a chunk, four vectors of the widest registers: one would wait for its own last addition."""


def forward(x, m_prev, decay, m, spikes, bits, *, threshold, reset, reset_value, scale, scale_by_decay) -> None:
    """m = decay · reset(m_prev) + c · x;  spikes = m >= threshold;  c = scale, or scale · (1 - decay)."""
    numbers = {"decay": decay.item(), "scale": _factor(decay, scale, scale_by_decay)}
    lif.forward(x, m_prev, m, spikes, bits, threshold=threshold, reset=reset, reset_value=reset_value, **numbers)


def backward(
    m, grad_spikes, grad_m, m_prev, decay, grad_x, grad_m_prev, grad_w,
    *, threshold, reset, reset_value, scale, scale_by_decay, detach_reset, form, a, b,
) -> None:  # fmt: skip
    """g = grad_m + grad_spikes · surrogate(m - threshold);  grad_x = c · g;  grad_m_prev = decay · g · reset'(m_prev);
    grad_w = decay · (1 - decay) · Σ g · u, or decay · Σ g · (u - m) with `scale_by_decay`, where u = reset(m_prev).

    Operands that are None are neither read nor written.
    """
    options = {"threshold": threshold, "reset": reset, "reset_value": reset_value, "form": form, "a": a, "b": b}
    factor = _factor(decay, scale, scale_by_decay)
    if grad_w is None:
        past = None if grad_m_prev is None else m_prev
        options |= {"detach_reset": detach_reset, "decay": decay.item(), "scale": factor}
        lif.backward(m, grad_spikes, grad_m, past, grad_x, grad_m_prev, **options)
        return
    n = m.numel()
    partial = m.new_empty(-(-n // CHUNK))
    given = grad_spikes is not None, grad_m is not None, grad_m_prev is not None
    detach_reset = detach_reset or reset == "none" or grad_m_prev is None  # one kernel for all that do not go back
    kernel, record = _backward_kernel(grad_x.dtype, form, reset, detach_reset, scale_by_decay, *given)
    operands = m, grad_spikes, grad_m, m_prev, grad_x, grad_m_prev, partial
    addresses = [0 if t is None else t.data_ptr() for t in operands]
    run(kernel, record(0, n, *addresses, decay.item(), threshold, reset_value, factor, a, b), n)
    # numpy adds in one thread; torch would share a long sum out.
    total, decay = partial.numpy().sum(dtype=np.float64), decay.double()
    grad_w.copy_((decay if scale_by_decay else decay * (1 - decay)) * total)


def _factor(decay: torch.Tensor, scale: float, scale_by_decay: bool) -> float:
    return (scale * (1 - decay)).item() if scale_by_decay else scale


@functools.cache
def _backward_kernel(
    dtype: torch.dtype, form: str, reset: str, detach_reset: bool, scale_by_decay: bool,
    has_grad_spikes: bool, has_grad_m: bool, has_past: bool,
) -> tuple[Callable, type[ctypes.Structure]]:  # fmt: skip
    memory, arithmetic, widen, narrow = element(dtype)
    pointers = ("m", "grad_spikes", "grad_m", "m_prev", "grad_x", "grad_m_prev", "partial")
    record = record_type(arithmetic, pointers, ("decay", "threshold", "reset_value", "scale", "a", "b"))
    surrogate, after_reset = surrogate_for(form), reset_for(reset)
    through_reset = reset_gradient_for(reset, detach_reset, form, arithmetic)
    new_tile, new_lanes = scratch(TILE, arithmetic), scratch(LANES, arithmetic)
    zero = arithmetic(0)

    def body(p):
        args = carray(p, 1)[0]
        n, decay, threshold, reset_value, scale = args.n, args.decay, args.threshold, args.reset_value, args.scale
        a, b = args.a, args.b
        m = carray(pointer(args.m), (n,), arithmetic)
        grad_spikes = carray(pointer(args.grad_spikes), (n,), memory)
        grad_m = carray(pointer(args.grad_m), (n,), arithmetic)
        m_prev = carray(pointer(args.m_prev), (n,), arithmetic)
        grad_x = carray(pointer(args.grad_x), (n,), memory)
        grad_m_prev = carray(pointer(args.grad_m_prev), (n,), arithmetic)
        partial = carray(pointer(args.partial), ((n + CHUNK - 1) // CHUNK,), arithmetic)
        products = carray(new_tile(), (TILE,), arithmetic)
        lanes = carray(new_lanes(), (LANES,), arithmetic)
        while True:
            ticket = claim(p)
            chunk = ticket * CHUNK
            if chunk >= n:
                break
            for lane in range(LANES):
                lanes[lane] = zero
            for first in range(chunk, min(chunk + CHUNK, n), TILE):
                count = min(TILE, n - first)
                for k in range(np.uint64(count)):
                    i = np.uint64(first) + k
                    g = zero
                    if has_grad_spikes:
                        g = widen(grad_spikes[i]) * arithmetic(surrogate(m[i] - threshold, a, b))
                    if has_grad_m:
                        g = grad_m[i] + g
                    grad_x[i] = narrow(scale * g)
                    u = after_reset(m_prev[i], threshold, reset_value)
                    products[k] = g * (u - m[i]) if scale_by_decay else g * u
                    if has_past:
                        grad_m_prev[i] = through_reset(decay * g, m_prev[i], threshold, reset_value, a, b)
                for k in range(count, TILE):
                    products[k] = zero
                for row in range(np.uint64(0), np.uint64(TILE), np.uint64(LANES)):
                    for lane in range(np.uint64(LANES)):
                        lanes[lane] += products[row + lane]
            total = zero
            for lane in range(LANES):
                total += lanes[lane]
            partial[ticket] = total

    return compile_kernel(body, record), record

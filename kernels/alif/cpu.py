"""The ALIF step on CPU: one pass over memory, compiled by numba, on torch's threads; see lif/cpu.py."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
import torch
from numba import carray

from ..cpu_math import element
from ..cpu_scratch import scratch
from ..cpu_threads import CHUNK, at_least_8, claim, compile_kernel, pointer, run
from ..lif.cpu import TILE, record_type, surrogate_for

SCALARS = ("decay", "threshold", "beta", "rho", "gain", "scale")
"""`gain` is 1 - rho."""


def forward(
    x, m_prev, adaptation_prev, m, adaptation, spikes, bits, *, decay, threshold, beta, rho, scale, advance
) -> None:
    """s' = m' >= level(b');  u = m' - level(b') · s';  b = rho · b' + gain · s';
    m = decay · u + scale · x;  spikes = m >= level(b);  level(b) = threshold + beta · b, b the adaptation.

    The new states may be the old ones, and `spikes` may be `x`: they are then updated in place. Without `advance` u is
    m', b is b' and is not written.
    """
    n, in_place, over_input = x.numel(), m.data_ptr() == m_prev.data_ptr(), x.data_ptr() == spikes.data_ptr()
    kernel, record = _forward_kernel(x.dtype, advance, in_place, over_input)
    operands = x, m_prev, adaptation_prev, m, adaptation, spikes, bits
    addresses = [0 if t is None else t.data_ptr() for t in operands]
    run(kernel, record(0, n, *addresses, decay, threshold, beta, rho, 1 - rho, scale), n)


def backward(
    m, adaptation, grad_spikes, grad_m, grad_adaptation, m_prev, adaptation_prev, grad_x, grad_m_prev,
    grad_adaptation_prev, *, decay, threshold, beta, rho, scale, detach_reset, advance, form, a, b,
) -> None:  # fmt: skip
    """f = grad_spikes · surrogate(m - level(b));  g = grad_m + f;  k = grad_b - beta · f;  grad_x = scale · g;
    e = gain · k - decay · g · level(b'), times surrogate(m' - level(b'));
    grad_m' = decay · g + e;  grad_b' = rho · k - beta · (decay · g · s' + e).

    Operands that are None are neither read nor written.
    """
    n, has_past = m.numel(), grad_m_prev is not None
    if not (has_past and advance):
        detach_reset, advance = True, False  # no reset to go back through: one kernel for all of these
    given = grad_spikes is not None, grad_m is not None, grad_adaptation is not None, has_past
    kernel, record = _backward_kernel(grad_x.dtype, form, detach_reset, advance, *given)
    operands = (
        m, adaptation, grad_spikes, grad_m, grad_adaptation, m_prev, adaptation_prev,
        grad_x, grad_m_prev, grad_adaptation_prev,
    )  # fmt: skip
    addresses = [0 if t is None else t.data_ptr() for t in operands]
    run(kernel, record(0, n, *addresses, decay, threshold, beta, rho, 1 - rho, scale, a, b), n)


@functools.cache
def _forward_kernel(
    dtype: torch.dtype, advance: bool, in_place: bool, over_input: bool
) -> tuple[Callable, type[ctypes.Structure]]:
    memory, arithmetic, widen, narrow = element(dtype)
    pointers = ("x", "m_prev", "adaptation_prev", "m", "adaptation", "spikes", "bits")
    record = record_type(arithmetic, pointers, SCALARS)
    new_tile = scratch(TILE, arithmetic)
    one, zero = arithmetic(1), arithmetic(0)

    def body(p):
        args = carray(p, 1)[0]
        n, decay, threshold, beta, rho = args.n, args.decay, args.threshold, args.beta, args.rho
        gain, scale = args.gain, args.scale
        x = carray(pointer(args.x), (n,), memory)
        m = carray(pointer(args.m), (n,), arithmetic)
        adaptation = carray(pointer(args.adaptation), (n,), arithmetic)
        # One array, not two equal ones: LLVM would take them for overlapping and not vectorise.
        m_prev = m if in_place else carray(pointer(args.m_prev), (n,), arithmetic)
        adaptation_prev = adaptation if in_place else carray(pointer(args.adaptation_prev), (n,), arithmetic)
        spikes = x if over_input else carray(pointer(args.spikes), (n,), memory)
        bits = carray(pointer(args.bits), ((n + 7) // 8,), np.uint8)
        pack = args.bits != 0
        fired = carray(new_tile(), (TILE,), arithmetic)
        while True:
            chunk = claim(p) * CHUNK
            if chunk >= n:
                break
            for first in range(chunk, min(chunk + CHUNK, n), TILE):
                count = min(TILE, n - first)
                for k in range(np.uint64(count)):
                    i = np.uint64(first) + k
                    u, b = m_prev[i], adaptation_prev[i]
                    if advance:
                        level = threshold + beta * b
                        b = rho * b + (gain if u >= level else zero)
                        u = u - level if u >= level else u
                        adaptation[i] = b
                    v = decay * u + scale * widen(x[i])
                    m[i] = v
                    fired[k] = one if v >= threshold + beta * b else zero
                    spikes[i] = narrow(fired[k])
                if pack:
                    for k in range(count, min(count + 7, TILE)):
                        fired[k] = zero
                    for byte in range((count + 7) // 8):
                        bits[first // 8 + byte] = at_least_8(fired, byte * 8, one)

    return compile_kernel(body, record), record


@functools.cache
def _backward_kernel(
    dtype: torch.dtype, form: str, detach_reset: bool, advance: bool,
    has_grad_spikes: bool, has_grad_m: bool, has_grad_adaptation: bool, has_past: bool,
) -> tuple[Callable, type[ctypes.Structure]]:  # fmt: skip
    memory, arithmetic, widen, narrow = element(dtype)
    states = ("m", "adaptation", "grad_spikes", "grad_m", "grad_adaptation", "m_prev", "adaptation_prev")
    record = record_type(arithmetic, (*states, "grad_x", "grad_m_prev", "grad_adaptation_prev"), (*SCALARS, "a", "b"))
    surrogate = surrogate_for(form)
    zero = arithmetic(0)

    def body(p):
        args = carray(p, 1)[0]
        n, decay, threshold, beta, rho = args.n, args.decay, args.threshold, args.beta, args.rho
        gain, scale, a, b = args.gain, args.scale, args.a, args.b
        m = carray(pointer(args.m), (n,), arithmetic)
        adaptation = carray(pointer(args.adaptation), (n,), arithmetic)
        grad_spikes = carray(pointer(args.grad_spikes), (n,), memory)
        grad_m = carray(pointer(args.grad_m), (n,), arithmetic)
        grad_adaptation = carray(pointer(args.grad_adaptation), (n,), arithmetic)
        m_prev = carray(pointer(args.m_prev), (n,), arithmetic)
        adaptation_prev = carray(pointer(args.adaptation_prev), (n,), arithmetic)
        grad_x = carray(pointer(args.grad_x), (n,), memory)
        grad_m_prev = carray(pointer(args.grad_m_prev), (n,), arithmetic)
        grad_adaptation_prev = carray(pointer(args.grad_adaptation_prev), (n,), arithmetic)
        while True:
            chunk = claim(p) * CHUNK
            if chunk >= n:
                break
            for i in range(np.uint64(chunk), np.uint64(min(chunk + CHUNK, n))):
                f = zero
                if has_grad_spikes:
                    level = threshold + beta * adaptation[i]
                    f = widen(grad_spikes[i]) * arithmetic(surrogate(m[i] - level, a, b))
                g = f
                if has_grad_m:
                    g = grad_m[i] + f
                grad_x[i] = narrow(scale * g)
                if has_past:
                    u = decay * g
                    k = -(beta * f)
                    if has_grad_adaptation:
                        k = grad_adaptation[i] + k
                    if advance:
                        level = threshold + beta * adaptation_prev[i]
                        e = gain * k
                        if not detach_reset:
                            e = e - u * level
                        e = e * arithmetic(surrogate(m_prev[i] - level, a, b))
                        grad_level = -e
                        if not detach_reset:
                            grad_level = (-u if m_prev[i] >= level else zero) - e
                        u = u + e
                        k = rho * k + beta * grad_level
                    grad_m_prev[i] = u
                    grad_adaptation_prev[i] = k

    return compile_kernel(body, record), record

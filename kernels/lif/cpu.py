"""The LIF step on CPU: one pass over memory, compiled by numba, on torch's threads.

Tensors arrive dense and with one layout (ops.py sees to it), so a kernel walks memory in order whatever the shape.
Neurons are counted with unsigned integers: a signed index could be negative and wrap round, and with that check in the
loop LLVM gathers and scatters one neuron at a time (forward 2.3 times, backward 3.6 times slower).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numba
import numpy as np
import torch
from numba import carray

from .. import cpu_math
from ..cpu_math import element
from ..cpu_threads import CHUNK, at_least_8, claim, compile_kernel, pointer, run
from ..surrogate import gradient_for

TILE = 2048
"""Neurons integrated before their bits are packed, so that packing reads the membrane from the first-level cache."""


def forward(x, m_prev, m, spikes, bits, *, decay, threshold, reset, reset_value, scale) -> None:
    """m = decay · reset(m_prev) + scale · x;  spikes = m >= threshold;  bits, if given, are the spikes packed.

    `m` may be `m_prev` itself, and `spikes` may be `x`: they are then updated in place.
    """
    n, current, past, new, fired = x.numel(), x.data_ptr(), m_prev.data_ptr(), m.data_ptr(), spikes.data_ptr()
    kernel, record = _forward_kernel(x.dtype, reset, past == new, current == fired)
    addresses = current, past, new, fired, 0 if bits is None else bits.data_ptr()
    run(kernel, record(0, n, *addresses, decay, threshold, reset_value, scale), n)


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
    """g = grad_m + grad_spikes · surrogate(m - threshold);  grad_x = scale · g;
    grad_m_prev = decay · g · reset'(m_prev).

    `grad_spikes` or `grad_m` may be None (zero); `m_prev` and `grad_m_prev` are None when the past is a constant.
    """
    if m_prev is None or reset == "none":
        reset, detach_reset = "none", True  # no reset to go back through: one kernel for all of these
    n, variant = m.numel(), (grad_spikes is not None, grad_m is not None, m_prev is not None)
    kernel, record = _backward_kernel(grad_x.dtype, form, reset, detach_reset, *variant)
    addresses = [0 if t is None else t.data_ptr() for t in (m, grad_spikes, grad_m, m_prev, grad_x, grad_m_prev)]
    run(kernel, record(0, n, *addresses, decay, threshold, reset_value, scale, a, b), n)


def record_type(arithmetic: type, pointers: tuple[str, ...], scalars: tuple[str, ...]) -> type[ctypes.Structure]:
    """A kernel's arguments: the ticket, the number of neurons, addresses (or counts), and numbers of the arithmetic's
    type."""
    scalar = np.ctypeslib.as_ctypes_type(arithmetic)
    fields = [(name, ctypes.c_int64) for name in ("ticket", "n", *pointers)] + [(name, scalar) for name in scalars]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


@functools.cache
def surrogate_for(form: str) -> Callable:
    """A surrogate's gradient as a function that compiled loops can call."""
    return numba.njit(inline="always")(gradient_for(form, cpu_math))


@functools.cache
def reset_for(reset: str) -> Callable:
    """u = reset(m) as a function that compiled loops can call."""
    soft, hard = reset == "soft", reset == "hard"

    def after_reset(m, threshold, reset_value):
        u = m
        if soft:
            u = m - threshold if m >= threshold else m
        if hard:
            u = reset_value if m >= threshold else m
        return u

    return numba.njit(inline="always")(after_reset)


@functools.cache
def reset_gradient_for(reset: str, detach_reset: bool, form: str, arithmetic: type) -> Callable:
    """The gradient of m from `grad`, that of u = reset(m), as a function that compiled loops can call."""
    attached_soft, hard = reset == "soft" and not detach_reset, reset == "hard"
    attached_hard = hard and not detach_reset
    surrogate = surrogate_for(form)
    zero, infinity = arithmetic(0), arithmetic(np.inf)

    def through_reset(grad, m, threshold, reset_value, a, b):
        past = grad
        if attached_soft:
            past = grad - (grad * threshold) * arithmetic(surrogate(m - threshold, a, b))
        if hard:
            past = zero if m >= threshold else grad
        if attached_hard:
            jump = reset_value - m if abs(m) < infinity else zero
            past = past + (grad * jump) * arithmetic(surrogate(m - threshold, a, b))
        return past

    return numba.njit(inline="always")(through_reset)


@functools.cache
def _forward_kernel(
    dtype: torch.dtype, reset: str, in_place: bool, over_input: bool
) -> tuple[Callable, type[ctypes.Structure]]:
    memory, arithmetic, widen, narrow = element(dtype)
    pointers = ("x", "m_prev", "m", "spikes", "bits")
    record = record_type(arithmetic, pointers, ("decay", "threshold", "reset_value", "scale"))
    after_reset = reset_for(reset)
    one, zero = arithmetic(1), arithmetic(0)

    def body(p):
        args = carray(p, 1)[0]
        n, decay, threshold, reset_value, scale = args.n, args.decay, args.threshold, args.reset_value, args.scale
        x = carray(pointer(args.x), (n,), memory)
        m = carray(pointer(args.m), (n,), arithmetic)
        # One array, not two equal ones: LLVM would take them for overlapping and not vectorise.
        m_prev = m if in_place else carray(pointer(args.m_prev), (n,), arithmetic)
        spikes = x if over_input else carray(pointer(args.spikes), (n,), memory)
        bits = carray(pointer(args.bits), ((n + 7) // 8,), np.uint8)
        pack = args.bits != 0
        while True:
            chunk = claim(p) * CHUNK
            if chunk >= n:
                break
            for first in range(chunk, min(chunk + CHUNK, n), TILE):
                last = min(first + TILE, n)
                for i in range(np.uint64(first), np.uint64(last)):
                    v = decay * after_reset(m_prev[i], threshold, reset_value) + scale * widen(x[i])
                    m[i] = v
                    spikes[i] = narrow(one if v >= threshold else zero)
                if pack:
                    for byte in range(first // 8, last // 8):
                        bits[byte] = at_least_8(m, byte * 8, threshold)
                    if last % 8:
                        tail = np.uint8(0)
                        for place in range(last - last % 8, last):
                            tail |= np.uint8(m[place] >= threshold) << np.uint8(place % 8)
                        bits[last // 8] = tail

    return compile_kernel(body, record), record


@functools.cache
def _backward_kernel(
    dtype: torch.dtype, form: str, reset: str, detach_reset: bool,
    has_grad_spikes: bool, has_grad_m: bool, has_past: bool,
) -> tuple[Callable, type[ctypes.Structure]]:  # fmt: skip
    memory, arithmetic, widen, narrow = element(dtype)
    pointers = ("m", "grad_spikes", "grad_m", "m_prev", "grad_x", "grad_m_prev")
    record = record_type(arithmetic, pointers, ("decay", "threshold", "reset_value", "scale", "a", "b"))
    surrogate = surrogate_for(form)
    through_reset = reset_gradient_for(reset, detach_reset, form, arithmetic)
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
        while True:
            chunk = claim(p) * CHUNK
            if chunk >= n:
                break
            for i in range(np.uint64(chunk), np.uint64(min(chunk + CHUNK, n))):
                g = zero
                if has_grad_spikes:
                    g = widen(grad_spikes[i]) * arithmetic(surrogate(m[i] - threshold, a, b))
                if has_grad_m:
                    g = grad_m[i] + g
                grad_x[i] = narrow(scale * g)
                if has_past:
                    grad_m_prev[i] = through_reset(decay * g, m_prev[i], threshold, reset_value, a, b)

    return compile_kernel(body, record), record

"""The LIF step on CPU: one pass over memory, compiled by numba, on torch's threads.

Tensors arrive dense and with one layout (ops.py sees to it), so a kernel walks memory in order whatever the shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numba
import numpy as np
import torch
from numba import carray

from .. import cpu_math
from ..cpu_math import ELEMENTS
from ..cpu_threads import CHUNK, at_least_8, claim, compile_kernel, pointer, run
from ..surrogate import gradient_for

TILE = 2048
"""Neurons integrated before their bits are packed, so that packing reads the membrane from the first-level cache."""


def forward(x, m_prev, m, spikes, bits, *, decay, threshold, reset, reset_value, scale) -> None:
    """m = decay · reset(m_prev) + scale · x;  spikes = m >= threshold;  bits, if given, are the spikes packed.

    `m` may be `m_prev` itself: the state is then updated in place.
    """
    arithmetic = _arithmetic(x.dtype)
    kernel, record = _forward_kernel(_name(x.dtype), reset, m.data_ptr() == m_prev.data_ptr())
    addresses = (
        x.data_ptr(),
        m_prev.data_ptr(),
        m.data_ptr(),
        spikes.data_ptr(),
        0 if bits is None else bits.data_ptr(),
    )
    scalars = tuple(arithmetic(v) for v in (decay, threshold, reset_value, scale))
    run(kernel, np.array([(0, x.numel(), *addresses, *scalars)], record), x.numel())


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
    """g = grad_m + grad_spikes · surrogate(m - threshold);  grad_x = scale · g;  grad_m_prev = decay · g · reset'(m_prev).

    `grad_spikes` or `grad_m` may be None (zero); `m_prev` and `grad_m_prev` are None when the past is a constant.
    """
    arithmetic = _arithmetic(grad_x.dtype)
    variant = (grad_spikes is not None, grad_m is not None, m_prev is not None)
    kernel, record = _backward_kernel(_name(grad_x.dtype), form, reset, detach_reset, *variant)
    addresses = tuple(0 if t is None else t.data_ptr() for t in (m, grad_spikes, grad_m, m_prev, grad_x, grad_m_prev))
    scalars = tuple(arithmetic(v) for v in (decay, threshold, reset_value, scale, a, b))
    run(kernel, np.array([(0, m.numel(), *addresses, *scalars)], record), m.numel())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _arithmetic(dtype: torch.dtype) -> type:
    return ELEMENTS[_name(dtype)][1]


def _record(arithmetic: type, pointers: tuple[str, ...], scalars: tuple[str, ...]) -> np.dtype:
    return np.dtype(
        [(name, np.int64) for name in ("ticket", "n", *pointers)] + [(name, arithmetic) for name in scalars]
    )


@functools.cache
def _forward_kernel(element: str, reset: str, in_place: bool) -> tuple[Callable, np.dtype]:
    memory, arithmetic, widen, narrow = ELEMENTS[element]
    record = _record(arithmetic, ("x", "m_prev", "m", "spikes", "bits"), ("decay", "threshold", "reset_value", "scale"))
    soft, hard = reset == "soft", reset == "hard"
    one, zero = arithmetic(1), arithmetic(0)

    def body(p):
        args = carray(p, 1)[0]
        n, decay, threshold, reset_value, scale = args.n, args.decay, args.threshold, args.reset_value, args.scale
        x = carray(pointer(args.x), (n,), memory)
        m = carray(pointer(args.m), (n,), arithmetic)
        # One array, not two equal ones: LLVM would take them for overlapping and not vectorise.
        m_prev = m if in_place else carray(pointer(args.m_prev), (n,), arithmetic)
        spikes = carray(pointer(args.spikes), (n,), memory)
        bits = carray(pointer(args.bits), ((n + 7) // 8,), np.uint8)
        pack = args.bits != 0
        while True:
            chunk = claim(p) * CHUNK
            if chunk >= n:
                break
            for first in range(chunk, min(chunk + CHUNK, n), TILE):
                last = min(first + TILE, n)
                for i in range(first, last):
                    u = m_prev[i]
                    if soft:
                        u = u - threshold if u >= threshold else u
                    if hard:
                        u = reset_value if u >= threshold else u
                    v = decay * u + scale * widen(x[i])
                    m[i] = v
                    spikes[i] = narrow(one if v >= threshold else zero)
                if pack:
                    for byte in range(first // 8, last // 8):
                        bits[byte] = at_least_8(m, byte * 8, threshold)
                    if last % 8:
                        tail = np.uint8(0)
                        for i in range(last - last % 8, last):
                            tail |= np.uint8(m[i] >= threshold) << np.uint8(i % 8)
                        bits[last // 8] = tail

    return compile_kernel(body, record), record


@functools.cache
def _backward_kernel(
    element: str, form: str, reset: str, detach_reset: bool, has_grad_spikes: bool, has_grad_m: bool, has_past: bool
) -> tuple[Callable, np.dtype]:
    memory, arithmetic, widen, narrow = ELEMENTS[element]
    pointers = ("m", "grad_spikes", "grad_m", "m_prev", "grad_x", "grad_m_prev")
    record = _record(arithmetic, pointers, ("decay", "threshold", "reset_value", "scale", "a", "b"))
    surrogate = numba.njit(inline="always")(gradient_for(form, cpu_math))
    attached_soft, hard = reset == "soft" and not detach_reset, reset == "hard"
    attached_hard = hard and not detach_reset
    zero = arithmetic(0)

    def body(p):
        args = carray(p, 1)[0]
        n, decay, threshold, reset_value, scale, a, b = (
            args.n,
            args.decay,
            args.threshold,
            args.reset_value,
            args.scale,
            args.a,
            args.b,
        )
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
            for i in range(chunk, min(chunk + CHUNK, n)):
                g = zero
                if has_grad_spikes:
                    g = widen(grad_spikes[i]) * arithmetic(surrogate(m[i] - threshold, a, b))
                if has_grad_m:
                    g = grad_m[i] + g
                grad_x[i] = narrow(scale * g)
                if has_past:
                    u = decay * g
                    v = m_prev[i]
                    past = u
                    if attached_soft:
                        past = u - (u * threshold) * arithmetic(surrogate(v - threshold, a, b))
                    if hard:
                        past = zero if v >= threshold else u
                    if attached_hard:
                        past = past + (u * (reset_value - v)) * arithmetic(surrogate(v - threshold, a, b))
                    grad_m_prev[i] = past

    return compile_kernel(body, record), record

"""All time steps of the LIF neuron in one pass on CPU: a tile of neurons runs through time before the next one does.

The membrane of a tile stays in the first-level cache from step to step; see cpu.py for the rest.
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
from ..cpu_threads import CHUNK, at_least_8, claim, compile_kernel, pointer, run
from .cpu import TILE, record_type, reset_for, reset_gradient_for, surrogate_for


def forward(x, m_first, m, m_last, spikes, bits, *, decay, threshold, reset, reset_value, scale) -> None:
    """m[t] = decay · reset(m[t-1]) + scale · x[t];  spikes[t] = m[t] >= threshold;  m[-1] is `m_first`.

    `m` gets the membranes of all steps but the last, if it is given, and `m_last` the last. `bits` may be None; if
    they are given the number of neurons is a multiple of eight.
    """
    n, steps = m_first.numel(), len(x)
    kernel, record = _forward_kernel(x.dtype, reset)
    addresses = [0 if t is None else t.data_ptr() for t in (x, m_first, m, m_last, spikes, bits)]
    run(kernel, record(0, n, steps, *addresses, decay, threshold, reset_value, scale), n)


def backward(
    m, m_last, grad_spikes, grad_last, m_first, grad_x, grad_first,
    *, decay, threshold, reset, reset_value, scale, detach_reset, form, a, b,
) -> None:  # fmt: skip
    """g = G[t] + grad_spikes[t] · surrogate(m[t] - threshold);  grad_x[t] = scale · g;
    G[t-1] = decay · g · reset'(m[t-1]), from G[T-1] = `grad_last` down to G[-1] = `grad_first`.

    `grad_spikes` or `grad_last` may be None (zero); `m_first` and `grad_first` are None if its gradient is not wanted.
    """
    n, steps = m_last.numel(), len(grad_x)
    given = grad_spikes is not None, grad_last is not None, grad_first is not None
    kernel, record = _backward_kernel(grad_x.dtype, form, reset, detach_reset, *given)
    operands = m, m_last, grad_spikes, grad_last, m_first, grad_x, grad_first
    addresses = [0 if t is None else t.data_ptr() for t in operands]
    run(kernel, record(0, n, steps, *addresses, decay, threshold, reset_value, scale, a, b), n)


@functools.cache
def _forward_kernel(dtype: torch.dtype, reset: str) -> tuple[Callable, type[ctypes.Structure]]:
    memory, arithmetic, widen, narrow = element(dtype)
    integers = ("steps", "x", "m_first", "m", "m_last", "spikes", "bits")
    record = record_type(arithmetic, integers, ("decay", "threshold", "reset_value", "scale"))
    after_reset = reset_for(reset)
    new_tile = scratch(TILE, arithmetic)
    one, zero = arithmetic(1), arithmetic(0)

    def body(p):
        args = carray(p, 1)[0]
        n, steps, decay, threshold = args.n, args.steps, args.decay, args.threshold
        reset_value, scale = args.reset_value, args.scale
        x = carray(pointer(args.x), (steps * n,), memory)
        m_first = carray(pointer(args.m_first), (n,), arithmetic)
        m = carray(pointer(args.m), (steps * n,), arithmetic)
        m_last = carray(pointer(args.m_last), (n,), arithmetic)
        spikes = carray(pointer(args.spikes), (steps * n,), memory)
        bits = carray(pointer(args.bits), ((steps * n + 7) // 8,), np.uint8)
        keep, pack = args.m != 0, args.bits != 0
        state = carray(new_tile(), (TILE,), arithmetic)
        while True:
            chunk = claim(p) * CHUNK
            if chunk >= n:
                break
            for first in range(chunk, min(chunk + CHUNK, n), TILE):
                count = np.uint64(min(TILE, n - first))
                for k in range(count):
                    state[k] = m_first[np.uint64(first) + k]
                for t in range(steps):
                    start = np.uint64(t * n + first)
                    for k in range(count):
                        v = decay * after_reset(state[k], threshold, reset_value) + scale * widen(x[start + k])
                        state[k] = v
                        spikes[start + k] = narrow(one if v >= threshold else zero)
                    if keep and t < steps - 1:
                        for k in range(count):
                            m[start + k] = state[k]
                    if pack:
                        byte = (t * n + first) // 8
                        for row in range(min(TILE, n - first) // 8):
                            bits[byte + row] = at_least_8(state, row * 8, threshold)
                for k in range(count):
                    m_last[np.uint64(first) + k] = state[k]

    return compile_kernel(body, record), record


@functools.cache
def _backward_kernel(
    dtype: torch.dtype, form: str, reset: str, detach_reset: bool,
    has_grad_spikes: bool, has_grad_last: bool, has_past: bool,
) -> tuple[Callable, type[ctypes.Structure]]:  # fmt: skip
    memory, arithmetic, widen, narrow = element(dtype)
    integers = ("steps", "m", "m_last", "grad_spikes", "grad_last", "m_first", "grad_x", "grad_first")
    record = record_type(arithmetic, integers, ("decay", "threshold", "reset_value", "scale", "a", "b"))
    surrogate = surrogate_for(form)
    through_reset = reset_gradient_for(reset, detach_reset, form, arithmetic)
    new_state, new_past, new_grad = (scratch(TILE, arithmetic) for _ in range(3))
    zero = arithmetic(0)

    def body(p):
        args = carray(p, 1)[0]
        n, steps, decay, threshold = args.n, args.steps, args.decay, args.threshold
        reset_value, scale, a, b = args.reset_value, args.scale, args.a, args.b
        m = carray(pointer(args.m), (steps * n,), arithmetic)
        m_last = carray(pointer(args.m_last), (n,), arithmetic)
        grad_spikes = carray(pointer(args.grad_spikes), (steps * n,), memory)
        grad_last = carray(pointer(args.grad_last), (n,), arithmetic)
        m_first = carray(pointer(args.m_first), (n,), arithmetic)
        grad_x = carray(pointer(args.grad_x), (steps * n,), memory)
        grad_first = carray(pointer(args.grad_first), (n,), arithmetic)
        state = carray(new_state(), (TILE,), arithmetic)
        past = carray(new_past(), (TILE,), arithmetic)
        grad = carray(new_grad(), (TILE,), arithmetic)
        while True:
            chunk = claim(p) * CHUNK
            if chunk >= n:
                break
            for first in range(chunk, min(chunk + CHUNK, n), TILE):
                count = np.uint64(min(TILE, n - first))
                for k in range(count):
                    state[k] = m_last[np.uint64(first) + k]
                    past[k] = zero
                    grad[k] = grad_last[np.uint64(first) + k] if has_grad_last else zero
                for t in range(steps - 1, -1, -1):
                    start = np.uint64(t * n + first)
                    if t > 0:
                        before = np.uint64((t - 1) * n + first)
                        for k in range(count):
                            past[k] = m[before + k]
                    elif has_past:
                        for k in range(count):
                            past[k] = m_first[np.uint64(first) + k]
                    for k in range(count):
                        g = zero
                        if has_grad_spikes:
                            g = widen(grad_spikes[start + k]) * arithmetic(surrogate(state[k] - threshold, a, b))
                        g = grad[k] + g
                        grad_x[start + k] = narrow(scale * g)
                        grad[k] = through_reset(decay * g, past[k], threshold, reset_value, a, b)
                        state[k] = past[k]
                if has_past:
                    for k in range(count):
                        grad_first[np.uint64(first) + k] = grad[k]

    return compile_kernel(body, record), record

"""The loops of every neuron on CPU: take a chunk, run its tiles through time, write states, spikes and bits.

A neuron provides its equation as functions of a single neuron's numbers, and numba compiles loop and equation into one
pass over memory. A tile of neurons goes through all time steps before the next tile does, so that each step reads what
the previous one left from the first-level cache.

Neurons are counted with unsigned integers: a signed index could be negative and wrap around, and with that check in the
loop LLVM gathers and scatters one neuron at a time (forward 2.3 times slower, backward 3.6 times).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numba import carray
from torch import Tensor

from . import cpu_math
from .cpu_math import element
from .cpu_scratch import scratch
from .cpu_threads import CHUNK, Kernel, address, claim, compile_kernel, inlined, nonzero_8, pointer, run
from .operands import Backward, Forward
from .surrogate import gradient_for

TILE = 2048
"""Neurons that go through time together, and whose spikes are packed while they are in the first-level cache."""
LANES = 64
"""Running sums of a chunk, four of the widest vector registers: a single one would wait for its own last addition."""


class Numbers(NamedTuple):
    """The numbers that equations use; each kind of neuron has its own."""

    decay: float
    threshold: float
    scale: float
    reset_value: float = 0.0
    beta: float = 0.0
    rho: float = 0.0
    gain: float = 0.0
    a: float = 0.0
    b: float = 0.0


def forward(operands: Forward, integrate: Callable, numbers: Numbers) -> None:
    """Run `integrate(m, adaptation, current, numbers)`, which gives the new membrane, the new adaptation and the level
    at which the neuron fires, over all neurons and steps; the current is scale · x."""
    n, steps = operands.m.numel(), operands.steps
    addresses = [t.data_ptr() if isinstance(t, Tensor) else 0 for t in operands[1 : 1 + len(_FORWARD)]]
    x, m_first, m, spikes, _, m_kept, adaptation_first, adaptation, _ = addresses
    in_place = m_kept == 0 if steps > 1 else m == m_first
    kernel, record = _forward_kernel(
        operands.x.dtype, integrate, in_place, x == spikes, adaptation_first != 0, adaptation != 0
    )
    run(kernel, record(0, n, steps, *addresses, *numbers), n)


def backward(operands: Backward, go_back: Callable, numbers: Numbers, partial: Tensor | None = None) -> None:
    """Run `go_back(m, adaptation, past m, past adaptation, grad_spikes, grad_m, grad_adaptation, numbers)`, which gives
    the gradient g of the membrane, those of both past states, and a product to be summed up in `partial`, one sum for
    each chunk; the gradient of x is scale · g."""
    n = operands.m.numel()
    through_time = operands.steps > 1 and not operands.online
    carries = through_time or operands.grad_m is not None or operands.grad_adaptation is not None
    hands_on = through_time or operands.grad_m_first is not None
    shape = operands.grad_spikes is not None, carries, hands_on, operands.adaptation is not None, partial is not None
    kernel, record = _backward_kernel(operands.grad_x.dtype, go_back, *shape)
    tensors = (*operands[1 : 1 + len(_BACKWARD)], partial)
    addresses = [t.data_ptr() if isinstance(t, Tensor) else 0 for t in tensors]
    run(kernel, record(0, n, operands.steps, *addresses, *numbers), n)


_FORWARD = Forward._fields[1 : Forward._fields.index("decay")]
_BACKWARD = Backward._fields[1 : Backward._fields.index("decay")]
"""The tensors that kernels are given by address: all except a learned decay, which is given as a number."""


@functools.cache
def _record(arithmetic: type, addresses: tuple[str, ...]) -> type[ctypes.Structure]:
    """A kernel's arguments: the ticket, the numbers of neurons and steps, addresses, and `Numbers`."""
    scalar = np.ctypeslib.as_ctypes_type(arithmetic)
    fields = [(name, ctypes.c_int64) for name in ("ticket", "n", "steps", *addresses)]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields + [(name, scalar) for name in Numbers._fields]})


@inlined
def numbers_of(args):
    """The numbers of a record."""
    return Numbers(
        args.decay, args.threshold, args.scale, args.reset_value, args.beta, args.rho, args.gain, args.a, args.b
    )


@functools.cache
def surrogate_for(form: str) -> Callable:
    """A surrogate's gradient as a function that compiled loops can call."""
    return inlined(gradient_for(form, cpu_math))


@functools.cache
def fire_for(
    dtype: torch.dtype, integrate: Callable, in_place: bool, over_input: bool, has_second: bool, writes_second: bool
) -> Callable:
    """One step of a tile: integrate the current, fire, and write the new states and the spikes.

    What is overwritten is read through the same array as it is written. LLVM would take two equal arrays for
    overlapping ones, and not vectorise (2 to 4 times slower).
    """
    _, arithmetic, widen, narrow = element(dtype)
    one, zero = arithmetic(1), arithmetic(0)
    second_in_place = in_place and writes_second

    def fire(x, past_m, past_adaptation, m, adaptation, spikes, count, numbers):
        for k in range(np.uint64(count)):
            past = zero
            if has_second:
                past = adaptation[k] if second_in_place else past_adaptation[k]
            current = numbers.scale * widen(spikes[k] if over_input else x[k])
            v, new, level = integrate(m[k] if in_place else past_m[k], past, current, numbers)
            m[k] = v
            if writes_second:
                adaptation[k] = new
            spikes[k] = narrow(one if v >= level else zero)

    return inlined(fire)


@inlined
def pack(spikes, bits, count):
    """The spikes of a tile as bits."""
    for byte in range(count // 8):
        bits[byte] = nonzero_8(spikes, byte * 8)
    if count % 8:
        last = np.uint8(0)
        for place in range(count - count % 8, count):
            last |= np.uint8(spikes[place] != 0) << np.uint8(place % 8)
        bits[count // 8] = last


@functools.cache
def tile_of(kind: type) -> Callable:
    """The elements at an address as an array that compiled loops can index."""

    def tile(address):
        return carray(pointer(address), (TILE,), kind)

    return inlined(tile)


@functools.cache
def _forward_kernel(
    dtype: torch.dtype, integrate: Callable, in_place: bool, over_input: bool, has_second: bool, writes_second: bool
) -> tuple[Kernel, type[ctypes.Structure]]:
    memory, arithmetic, *_ = element(dtype)
    record = _record(arithmetic, _FORWARD)
    fire = fire_for(dtype, integrate, in_place, over_input, has_second, writes_second)
    maps, states = tile_of(memory), tile_of(arithmetic)
    item, width = np.dtype(memory).itemsize, np.dtype(arithmetic).itemsize

    def body(p):
        args = carray(p, 1)[0]
        n, steps, numbers = args.n, args.steps, numbers_of(args)
        while True:
            chunk = claim(p) * CHUNK
            if chunk >= n:
                break
            for first in range(chunk, min(chunk + CHUNK, n), TILE):
                count, here = min(TILE, n - first), first * width
                # Where the states of this step and those of the previous step are.
                m, adaptation = args.m + here, args.adaptation + here
                past, past_adaptation = args.m_first + here, args.adaptation_first + here
                if in_place and past != m:
                    copy(states(past), states(m), count)
                    if writes_second:
                        copy(states(past_adaptation), states(adaptation), count)
                for t in range(steps):
                    start = t * n + first
                    x, spikes = maps(args.x + start * item), maps(args.spikes + start * item)
                    if not in_place:
                        if t < steps - 1:
                            m, adaptation = args.m_kept + start * width, args.adaptation_kept + start * width
                        else:
                            m, adaptation = args.m + here, args.adaptation + here
                    before, before_adaptation = states(past), states(past_adaptation)
                    fire(x, before, before_adaptation, states(m), states(adaptation), spikes, count, numbers)
                    if writes_second:
                        past_adaptation = adaptation
                    past = m
                    if args.bits != 0:
                        pack(spikes, carray(pointer(args.bits + start // 8), (TILE // 8,), np.uint8), count)

    return compile_kernel(body, record), record


@inlined
def copy(source, target, count):
    """The numbers of one tile into another."""
    for k in range(np.uint64(count)):
        target[k] = source[k]


@functools.cache
def _backward_kernel(
    dtype: torch.dtype, go_back: Callable, has_grad_spikes: bool, carries: bool, hands_on: bool, has_second: bool,
    sums: bool,
) -> tuple[Kernel, type[ctypes.Structure]]:  # fmt: skip
    memory, arithmetic, widen, narrow = element(dtype)
    record = _record(arithmetic, (*_BACKWARD, "partial"))
    maps, states = tile_of(memory), tile_of(arithmetic)
    item, width = np.dtype(memory).itemsize, np.dtype(arithmetic).itemsize
    new_carry, new_products, new_lanes = (scratch(count, arithmetic) for count in (4 * TILE, TILE, LANES))
    reads_past, zero = hands_on or sums, arithmetic(0)
    nothing = arithmetic(-0.0)  # adding it changes no number, and compiles to no addition

    def body(p):
        args = carray(p, 1)[0]
        n, steps, numbers = args.n, args.steps, numbers_of(args)
        products, lanes = carray(new_products(), (TILE,), arithmetic), carray(new_lanes(), (LANES,), arithmetic)
        # The gradients of a step's states are passed to the previous step through two tiles per state, used in turn.
        carry = address(new_carry())
        while True:
            ticket = claim(p)
            chunk = ticket * CHUNK
            if chunk >= n:
                break
            if sums:
                fill(lanes, zero, LANES)
            for first in range(chunk, min(chunk + CHUNK, n), TILE):
                count, here = min(TILE, n - first), first * width
                m, adaptation = args.m + here, args.adaptation + here
                from_m, from_adaptation = carry, carry + 2 * TILE * width
                if carries:
                    if args.grad_m != 0:
                        from_m = args.grad_m + here
                    else:
                        fill(states(from_m), nothing, count)
                    if args.grad_adaptation != 0:
                        from_adaptation = args.grad_adaptation + here
                    elif has_second:
                        fill(states(from_adaptation), nothing, count)
                for t in range(steps - 1, -1, -1):
                    start = t * n + first
                    past, past_adaptation = (
                        args.m_kept + (start - n) * width,
                        args.adaptation_kept + (start - n) * width,
                    )
                    turn = (steps - t) % 2 * TILE * width
                    to_m, to_adaptation = carry + turn, carry + turn + 2 * TILE * width
                    if t == 0:
                        past, past_adaptation = m, adaptation  # stands in for a past that is not read
                        if args.m_first != 0:
                            past = args.m_first + here
                        if args.adaptation_first != 0:
                            past_adaptation = args.adaptation_first + here
                        if args.grad_m_first != 0:
                            to_m = args.grad_m_first + here
                        if args.grad_adaptation_first != 0:
                            to_adaptation = args.grad_adaptation_first + here
                    b_m, b_adaptation = states(m), states(adaptation)
                    b_past, b_past_adaptation = states(past), states(past_adaptation)
                    b_from_m, b_from_adaptation = states(from_m), states(from_adaptation)
                    b_to_m, b_to_adaptation = states(to_m), states(to_adaptation)
                    grad_spikes, grad_x = maps(args.grad_spikes + start * item), maps(args.grad_x + start * item)
                    for k in range(np.uint64(count)):
                        g, back, back_adaptation, product = go_back(
                            b_m[k],
                            b_adaptation[k] if has_second else zero,
                            b_past[k] if reads_past else zero,
                            b_past_adaptation[k] if reads_past and has_second else zero,
                            widen(grad_spikes[k]) if has_grad_spikes else zero,
                            b_from_m[k] if carries else nothing,
                            b_from_adaptation[k] if carries and has_second else nothing,
                            numbers,
                        )
                        grad_x[k] = narrow(numbers.scale * g)
                        if hands_on:
                            b_to_m[k] = back
                            if has_second:
                                b_to_adaptation[k] = back_adaptation
                        if sums:
                            products[k] = product
                    if sums:
                        add_to_lanes(products, lanes, count, zero)
                    m, adaptation, from_m, from_adaptation = past, past_adaptation, to_m, to_adaptation
            if sums:
                totals = carray(pointer(args.partial), ((n + CHUNK - 1) // CHUNK,), arithmetic)
                totals[ticket] = sum_of_lanes(lanes, zero)

    return compile_kernel(body, record), record


@inlined
def fill(tile, value, count):
    """The same number everywhere."""
    for k in range(np.uint64(count)):
        tile[k] = value


@inlined
def add_to_lanes(products, lanes, count, zero):
    """Add what a tile's neurons contribute to a chunk's running sums; places after the last neuron count as zero."""
    for k in range(count, TILE):
        products[k] = zero
    for row in range(np.uint64(0), np.uint64(TILE), np.uint64(LANES)):
        for lane in range(np.uint64(LANES)):
            lanes[lane] += products[row + lane]


@inlined
def sum_of_lanes(lanes, zero):
    """A chunk's sum from its running sums, the first one first."""
    total = zero
    for lane in range(LANES):
        total += lanes[lane]
    return total

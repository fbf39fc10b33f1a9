"""Batch norm and the neuron after it in one pass on CPU, forward and backward.

A tile of batch norm's output is made in the first-level cache and goes through the neuron from there. Backward, the
neuron's gradient is summed up for batch norm while it is in the cache. The equations and the order of all sums are
those of the kernels that do this one after the other (`cpu_norm`, `cpu_sums`, `cpu_loop`), so results are the same to
the last bit.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_loop import (
    LANES,
    TILE,
    Numbers,
    add_to_lanes,
    copy,
    fill,
    fire_for,
    numbers_of,
    pack,
    sum_of_lanes,
    tile_of,
)
from ..cpu_math import element
from ..cpu_scratch import scratch
from ..cpu_threads import Kernel, address, claim, compile_kernel, pointer, run_on, workers_for
from ..lif.cpu import add_up_decay, go_back_for, integrate_for, numbers_for
from .cpu_norm import normalise_tile
from .cpu_rows import MOST, SIZES, clear, fold, lay_out, row_of_table, sizes_of, sums_of_ticket, walk_of
from .cpu_sums import add_up, partial_sums, sum_tile
from .operands import GAIN, MEAN, OFFSET, Fire, GoBack

if TYPE_CHECKING:
    from ..lif.ops import Options

_FIRE = Fire._fields[1 : Fire._fields.index("decay")]
_GO_BACK = tuple(name for name in GoBack._fields[1 : GoBack._fields.index("decay")] if name != "sums")


@functools.cache
def _record(addresses: tuple[str, ...]) -> type[ctypes.Structure]:
    fields = [(name, ctypes.c_int64) for name in (*SIZES, *addresses)] + [
        (name, ctypes.c_float) for name in Numbers._fields
    ]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


def forward(operands: Fire, options: Options) -> None:
    """y = x · gain + offset + added;  m[t] = decay · reset(m[t-1]) + scale · y[t];  spikes[t] = m[t] >= threshold."""
    o, shape = operands, operands.shape
    addresses = [t.data_ptr() if isinstance(t, Tensor) else 0 for t in o[1 : 1 + len(_FIRE)]]
    in_place = o.m_kept is None if shape.steps > 1 else o.m.data_ptr() == o.m_first.data_ptr()
    kernel = _forward_kernel(o.x.dtype, integrate_for(options.reset), in_place)
    record = _record(_FIRE)(*sizes_of(shape), *addresses, *numbers_for(options, o.decay))
    run_on(workers_for(record.chunks), kernel, record)


def backward(operands: GoBack, options: Options) -> None:
    """g = grad_m + grad_spikes[t] · surrogate(m[t] - threshold);  grad[t] = scale · g;  sums of grad[t] and of
    grad[t] · (x[t] - mean);  grad_m = decay · g · reset'(m[t-1]), which the previous step continues with."""
    o, shape = operands, operands.shape
    through_time = shape.steps > 1 and not o.online
    carries, hands_on = through_time or o.grad_m is not None, through_time or o.grad_m_first is not None
    partial, of_decay = partial_sums(shape), None if o.grad_w is None else np.empty(walk_of(shape).chunks, np.float32)
    reset, detach = options.reset, options.detach_reset
    if not hands_on:
        detach = True  # no gradient passes through the reset: one kernel for all of these
        reset = "none" if of_decay is None else reset
    fires, scales = o.grad_spikes is not None, options.scale_by_decay and of_decay is not None
    go_back = go_back_for(reset, detach, options.form, fires, scales, np.float32)
    kernel = _backward_kernel(o.x.dtype, go_back, fires, carries, hands_on, of_decay is not None)
    given = o._asdict()
    addresses = [given[name].data_ptr() if isinstance(given[name], Tensor) else 0 for name in _GO_BACK]
    rooms = partial.ctypes.data, 0 if of_decay is None else of_decay.ctypes.data
    names = (*_GO_BACK, "partial", "of_decay")
    record = _record(names)(*sizes_of(shape), *addresses, *rooms, *numbers_for(options, o.decay))
    run_on(workers_for(record.chunks), kernel, record)
    add_up(partial, o.sums, shape)
    if of_decay is not None:
        add_up_decay(of_decay, o.decay, o.grad_w, options)


@functools.cache
def _forward_kernel(dtype: torch.dtype, integrate: Callable, in_place: bool) -> Kernel:
    memory, arithmetic, widen, narrow = element(dtype)
    one, zero = arithmetic(1), arithmetic(0)
    item, maps, states, bytes_at = np.dtype(memory).itemsize, tile_of(memory), tile_of(np.float32), tile_of(np.uint8)
    gains_room, offsets_room = scratch(MOST, np.float32), scratch(MOST, np.float32)
    y_room, spikes_room = scratch(TILE, np.float32), scratch(TILE, np.float32)
    write, fire = normalise_tile(dtype), fire_for(dtype, integrate, in_place, False, False, False)

    def body(p):
        args = carray(p, 1)[0]
        n, steps, channels, numbers = args.n, args.steps, args.channels, numbers_of(args)
        gains, offsets = carray(gains_room(), (MOST,), np.float32), carray(offsets_room(), (MOST,), np.float32)
        y, unread = carray(y_room(), (TILE,), memory), address(spikes_room())
        each, known = steps // args.groups, -1
        while True:
            chunk = claim(p) * args.chunk
            if chunk >= n:
                break
            for first in range(chunk, min(chunk + args.chunk, n), args.tile):
                count, here = min(args.tile, n - first), first * 4
                m, past = args.m + here, args.m_first + here
                if in_place and past != m:
                    copy(states(past), states(m), count)
                for t in range(steps):
                    if t // each != known or args.run > 1:
                        known = t // each
                        lay_out(row_of_table(args.table, known, GAIN, channels), gains, args, first, count)
                        lay_out(row_of_table(args.table, known, OFFSET, channels), offsets, args, first, count)
                    start = t * n + first
                    write(maps(args.x + start * item), gains, offsets, y, count, args.row)
                    if args.added != 0:
                        added = maps(args.added + start * item)
                        for k in range(np.uint64(count)):
                            y[k] = narrow(widen(y[k]) + widen(added[k]))
                    if args.added_bits != 0:
                        packed = bytes_at(args.added_bits + start // 8)
                        for byte in range(np.uint64(count // 8)):
                            chosen = packed[byte]
                            for place in range(np.uint64(8)):
                                k = byte * np.uint64(8) + place
                                spike = one if chosen & (np.uint8(1) << np.uint8(place)) else zero
                                y[k] = narrow(widen(y[k]) + spike)
                    if not in_place:
                        m = args.m + here if t == steps - 1 else args.m_kept + start * 4
                    spikes = maps(args.spikes + start * item if args.spikes != 0 else unread)
                    fire(y, states(past), states(past), states(m), states(m), spikes, count, numbers)
                    pack(spikes, bytes_at(args.bits + start // 8), count)
                    past = m

    return compile_kernel(body, _record(_FIRE))


@functools.cache
def _backward_kernel(
    dtype: torch.dtype, go_back: Callable, has_grad_spikes: bool, carries: bool, hands_on: bool, sums_decay: bool
) -> Kernel:
    memory, _, widen, narrow = element(dtype)
    item, maps, states = np.dtype(memory).itemsize, tile_of(memory), tile_of(np.float32)
    carry_room, products_room, lanes_room = (scratch(count, np.float32) for count in (2 * TILE, TILE, LANES))
    means_room, add = scratch(MOST, np.float32), sum_tile(dtype)
    reads_past, zero = hands_on or sums_decay, np.float32(0)
    nothing = np.float32(-0.0)  # adding it changes no number, and compiles to no addition

    def body(p):
        args = carray(p, 1)[0]
        n, steps, channels, numbers = args.n, args.steps, args.channels, numbers_of(args)
        means = carray(means_room(), (MOST,), np.float32)
        products, lanes = carray(products_room(), (TILE,), np.float32), carray(lanes_room(), (LANES,), np.float32)
        carry, each, known = address(carry_room()), steps // args.groups, -1
        while True:
            ticket = claim(p)
            chunk = ticket * args.chunk
            if chunk >= n:
                break
            for t in range(steps):
                alone, with_x = sums_of_ticket(args.partial, t * args.chunks + ticket, args.places)
                clear(alone, args.places)
                clear(with_x, args.places)
            if sums_decay:
                fill(lanes, zero, LANES)
            for first in range(chunk, min(chunk + args.chunk, n), args.tile):
                count, here = min(args.tile, n - first), first * 4
                m, from_m = args.m + here, carry
                if carries:
                    if args.grad_m != 0:
                        from_m = args.grad_m + here
                    else:
                        fill(states(from_m), nothing, count)
                for t in range(steps - 1, -1, -1):
                    start = t * n + first
                    past, to_m = args.m_kept + (start - n) * 4, carry + (steps - t) % 2 * TILE * 4
                    if t == 0:
                        past = args.m_first + here if args.m_first != 0 else m
                        to_m = args.grad_m_first + here if args.grad_m_first != 0 else to_m
                    b_m, b_past, b_from, b_to = states(m), states(past), states(from_m), states(to_m)
                    grad_spikes, grad = maps(args.grad_spikes + start * item), maps(args.grad + start * item)
                    for k in range(np.uint64(count)):
                        g, back, _, product = go_back(
                            b_m[k],
                            zero,
                            b_past[k] if reads_past else zero,
                            zero,
                            widen(grad_spikes[k]) if has_grad_spikes else zero,
                            b_from[k] if carries else nothing,
                            nothing,
                            numbers,
                        )
                        grad[k] = narrow(numbers.scale * g)
                        if hands_on:
                            b_to[k] = back
                        if sums_decay:
                            products[k] = product
                    if sums_decay:
                        add_to_lanes(products, lanes, count, zero)
                    if t // each != known or args.run > 1:
                        known = t // each
                        lay_out(row_of_table(args.table, known, MEAN, channels), means, args, first, count)
                    alone, with_x = sums_of_ticket(args.partial, t * args.chunks + ticket, args.places)
                    add(grad, maps(args.x + start * item), means, args, first, count, alone, with_x)
                    m, from_m = past, to_m
            for t in range(steps):
                alone, with_x = sums_of_ticket(args.partial, t * args.chunks + ticket, args.places)
                fold(alone, args.places, channels)
                fold(with_x, args.places, channels)
            if sums_decay:
                totals = carray(pointer(args.of_decay), (args.chunks,), np.float32)
                totals[ticket] = sum_of_lanes(lanes, zero)

    return compile_kernel(body, _record((*_GO_BACK, "partial", "of_decay")))

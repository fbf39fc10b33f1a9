"""Batch norm on CPU, for maps with channels innermost.

Channels are a power of two, so a tile of neurons holds each of them equally often. What belongs to a channel is written
out as a pattern, often enough to fill a row of the tile, and a loop over rows then needs no remainders. Sums go the
other way: one for each place of a row, then halves are added until one for each channel is left. Sums of a ticket are
taken in float32, at most 128 numbers for each place, and those of tickets in float64, in an order that does not depend
on the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_loop import TILE, tile_of
from ..cpu_math import element
from ..cpu_scratch import scratch
from ..cpu_threads import CHUNK, Kernel, claim, compile_kernel, inlined, pointer, run_on, workers_for
from .operands import GAIN, INVERSE, MEAN, OFFSET, Shape

ROW = 256
"""The shortest row of a tile: with fewer places, loops over a row would spend their time on beginning and ending."""
FEW = 8
"""Pixels by which the mean is guessed."""
FEWEST, MOST = 8, TILE
"""Channels: at least a byte of bits, at most a tile."""


class _Record(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                "ticket", "steps", "groups", "n", "channels", "chunks", "constant", "x", "table", "out", "grad",
                "partial", "sums", "weight", "bias", "running_mean", "running_var", "shares", "grad_weight",
                "grad_bias",
            )
        ),
        ("eps", ctypes.c_double),
    )  # fmt: skip


def _record(shape: Shape, **operands: Tensor | None) -> _Record:
    record = _Record(0, shape.steps, shape.groups, shape.neurons, shape.channels, chunks_of(shape))
    for name, tensor in operands.items():
        if tensor is not None:
            setattr(record, name, tensor.data_ptr())
    return record


def chunks_of(shape: Shape) -> int:
    """The tickets of one time step."""
    return -(-shape.neurons // CHUNK)


def partial_sums(shape: Shape) -> np.ndarray:
    """Room for two sums per ticket and place of a row."""
    return np.empty((shape.steps, chunks_of(shape), 2, max(shape.channels, ROW)), np.float32)


def statistics(
    x: Tensor, table: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, shares: list[float], eps: float,
) -> None:  # fmt: skip
    """table = gain, offset, mean and inverse of each group and channel; the running statistics take their share of the
    groups, one after the other."""
    record = _record(
        shape, x=x, table=table, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var
    )
    moments = np.empty((shape.steps, record.chunks, 2, shape.channels))
    parts = np.empty(len(shares))
    parts[:] = shares
    record.partial, record.shares, record.eps = moments.ctypes.data, parts.ctypes.data, eps
    run_on(workers_for(shape.steps * record.chunks), _moments_kernel(x.dtype), record)
    _table_kernel()(ctypes.byref(record))


def normalise(x: Tensor, table: Tensor, out: Tensor, shape: Shape) -> None:
    """out = x · gain + offset."""
    record = _record(shape, x=x, table=table, out=out)
    run_on(workers_for(shape.steps * record.chunks), _normalise_kernel(x.dtype), record)


def sums(grad: Tensor, x: Tensor, table: Tensor, out: Tensor, shape: Shape) -> None:
    """out = Σ grad and Σ grad · (x - mean) of each group and channel."""
    partial = partial_sums(shape)
    record = _record(shape, x=x, table=table, grad=grad)
    record.partial = partial.ctypes.data
    run_on(workers_for(shape.steps * record.chunks), _sums_kernel(x.dtype), record)
    add_up(partial, out, shape)


def add_up(partial: np.ndarray, out: Tensor, shape: Shape) -> None:
    """The sums of each group from those of its tickets."""
    record = _record(shape, sums=out)
    record.partial = partial.ctypes.data
    _add_up_kernel()(ctypes.byref(record))


def gradients(
    grad: Tensor, x: Tensor, table: Tensor, sums: Tensor, out: Tensor, grad_weight: Tensor, grad_bias: Tensor,
    constant: bool, shape: Shape,
) -> None:  # fmt: skip
    """out = gain · (grad - Σ grad / N - (x - mean) · inverse² · Σ grad · (x - mean) / N), or gain · grad if the
    statistics are `constant`; may be `grad` itself. grad_weight = inverse · Σ grad · (x - mean);  grad_bias = Σ grad.
    """
    record = _record(
        shape, x=x, table=table, out=out, grad=grad, sums=sums, grad_weight=grad_weight, grad_bias=grad_bias
    )
    record.constant = constant
    over = record.out == record.grad
    run_on(workers_for(shape.steps * record.chunks), _gradient_kernel(x.dtype, over), record)


@inlined
def row_of(channels):
    """Places of a row: a multiple of the channels that divides a tile."""
    return max(channels, ROW)


@inlined
def spread(values, pattern, channels):
    """What belongs to a channel at each place of a row."""
    for first in range(np.uint64(0), np.uint64(row_of(channels)), np.uint64(channels)):
        for channel in range(np.uint64(channels)):
            pattern[first + channel] = values[channel]


@inlined
def clear(row, places):
    for k in range(np.uint64(places)):
        row[k] = np.float32(0)


@inlined
def copy(source, target, places):
    for k in range(np.uint64(places)):
        target[k] = source[k]


@inlined
def fold(row, channels):
    """Add the sums of all places of a channel; they are left in the first ones."""
    places = row_of(channels)
    while places > channels:
        places //= 2
        for k in range(np.uint64(places)):
            row[k] += row[k + np.uint64(places)]


@functools.cache
def sum_tile(dtype: torch.dtype) -> Callable:
    """A function that adds Σ grad and Σ grad · (x - mean) of a tile to two rows of sums."""
    widen = element(dtype).widen
    alone_room, with_x_room = scratch(MOST, np.float32), scratch(MOST, np.float32)

    def add(grad, x, means, count, channels, total_alone, total_with_x):
        alone = carray(alone_room(), (MOST,), np.float32)
        with_x = carray(with_x_room(), (MOST,), np.float32)
        places = row_of(channels)
        copy(total_alone, alone, places)
        copy(total_with_x, with_x, places)
        # Four rows at a time: reading and writing the sums takes longer than adding to them.
        together, place = count // (4 * places) * 4 * places, np.uint64(places)
        for first in range(0, together, 4 * places):
            for k in range(place):
                i0 = np.uint64(first) + k
                i1, i2, i3 = i0 + place, i0 + np.uint64(2) * place, i0 + np.uint64(3) * place
                g0, g1, g2, g3 = widen(grad[i0]), widen(grad[i1]), widen(grad[i2]), widen(grad[i3])
                mean = means[k]
                alone[k] += (g0 + g1) + (g2 + g3)
                with_x[k] += (g0 * (widen(x[i0]) - mean) + g1 * (widen(x[i1]) - mean)) + (
                    g2 * (widen(x[i2]) - mean) + g3 * (widen(x[i3]) - mean)
                )
        for first in range(together, count, places):
            for k in range(np.uint64(min(places, count - first))):
                g = widen(grad[np.uint64(first) + k])
                alone[k] += g
                with_x[k] += g * (widen(x[np.uint64(first) + k]) - means[k])
        copy(alone, total_alone, places)
        copy(with_x, total_with_x, places)

    return inlined(add)


@inlined
def sums_of_ticket(partial, ticket, channels):
    """The two rows of a ticket's sums."""
    places = row_of(channels)
    here = partial + ticket * places * 8
    return carray(pointer(here), (MOST,), np.float32), carray(pointer(here + places * 4), (MOST,), np.float32)


@inlined
def moments_of_ticket(partial, ticket, channels):
    """A ticket's means and sums of squares."""
    here = partial + ticket * channels * 16
    return carray(pointer(here), (MOST,), np.float64), carray(pointer(here + channels * 8), (MOST,), np.float64)


@functools.cache
def _add_up_kernel() -> Kernel:
    """The sums of each group from those of its tickets."""

    def body(p):
        args = carray(p, 1)[0]
        channels, each = args.channels, args.steps // args.groups * args.chunks
        for group in range(args.groups):
            alone, with_x = moments_of_ticket(args.sums, group, channels)
            for channel in range(np.uint64(channels)):
                alone[channel] = with_x[channel] = 0.0
            for ticket in range(group * each, (group + 1) * each):
                own_alone, own_with_x = sums_of_ticket(args.partial, ticket, channels)
                for channel in range(np.uint64(channels)):
                    alone[channel] += own_alone[channel]
                    with_x[channel] += own_with_x[channel]

    return compile_kernel(body, _Record)


@inlined
def row_of_table(table, group, row, channels):
    return carray(pointer(table + (group * 4 + row) * channels * 4), (MOST,), np.float32)


@functools.cache
def _moments_kernel(dtype: torch.dtype) -> Kernel:
    """The mean of each ticket and channel, and the sum of squares around it."""
    memory, _, widen, _ = element(dtype)
    item, maps = np.dtype(memory).itemsize, tile_of(memory)
    shift_room, alone_room, squares_room = (scratch(MOST, np.float32) for _ in range(3))

    def body(p):
        args = carray(p, 1)[0]
        n, channels = args.n, args.channels
        places = row_of(channels)
        shift = carray(shift_room(), (MOST,), np.float32)
        alone = carray(alone_room(), (MOST,), np.float32)
        squares = carray(squares_room(), (MOST,), np.float32)
        while True:
            ticket = claim(p)
            if ticket >= args.steps * args.chunks:
                break
            step, chunk = ticket // args.chunks, ticket % args.chunks * CHUNK
            last = min(chunk + CHUNK, n)
            # Squares are taken of differences to the mean of a few pixels: a mean far from zero costs no digits.
            x, few = maps(args.x + (step * n + chunk) * item), min(FEW, (last - chunk) // channels)
            clear(shift, channels)
            for first in range(np.uint64(0), np.uint64(few * channels), np.uint64(channels)):
                for channel in range(np.uint64(channels)):
                    shift[channel] += widen(x[first + channel]) / np.float32(few)
            spread(shift, shift, channels)
            clear(alone, places)
            clear(squares, places)
            together, place = (last - chunk) // (4 * places) * 4 * places, np.uint64(places)
            for first in range(0, together, 4 * places):
                for k in range(place):
                    i0, origin = np.uint64(first) + k, shift[k]
                    i1, i2, i3 = i0 + place, i0 + np.uint64(2) * place, i0 + np.uint64(3) * place
                    d0, d1 = widen(x[i0]) - origin, widen(x[i1]) - origin
                    d2, d3 = widen(x[i2]) - origin, widen(x[i3]) - origin
                    alone[k] += (d0 + d1) + (d2 + d3)
                    squares[k] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)
            for first in range(together, last - chunk, places):
                for k in range(np.uint64(min(places, last - chunk - first))):
                    d = widen(x[np.uint64(first) + k]) - shift[k]
                    alone[k] += d
                    squares[k] += d * d
            fold(alone, channels)
            fold(squares, channels)
            mean, spread_out = moments_of_ticket(args.partial, ticket, channels)
            samples = (last - chunk) // channels
            for channel in range(np.uint64(channels)):
                total = float(alone[channel])
                spread_out[channel] = squares[channel] - total * total / samples
                mean[channel] = shift[channel] + total / samples

    return compile_kernel(body, _Record)


@functools.cache
def _table_kernel() -> Kernel:
    """The moments of each group from those of its tickets, what follows from them, and the running statistics."""

    def body(p):
        args = carray(p, 1)[0]
        channels = args.channels
        each = args.steps // args.groups * args.chunks
        weight = carray(pointer(args.weight), (MOST,), np.float32)
        bias = carray(pointer(args.bias), (MOST,), np.float32)
        running_mean = carray(pointer(args.running_mean), (MOST,), np.float32)
        running_var = carray(pointer(args.running_var), (MOST,), np.float32)
        shares = carray(pointer(args.shares), (args.groups,), np.float64)
        for group in range(args.groups):
            gains, offsets = (
                row_of_table(args.table, group, GAIN, channels),
                row_of_table(args.table, group, OFFSET, channels),
            )
            means, inverses = (
                row_of_table(args.table, group, MEAN, channels),
                row_of_table(args.table, group, INVERSE, channels),
            )
            for channel in range(channels):
                samples, mean, around = 0.0, 0.0, 0.0
                for ticket in range(group * each, (group + 1) * each):
                    own_mean, own_around = moments_of_ticket(args.partial, ticket, channels)
                    chunk = ticket % args.chunks * CHUNK
                    own = (min(chunk + CHUNK, args.n) - chunk) // channels
                    apart, samples = own_mean[channel] - mean, samples + own
                    mean += apart * own / samples
                    around += own_around[channel] + apart * apart * own * (samples - own) / samples
                variance = max(around, 0.0) / samples if around == around else around
                inverse = 1.0 / math.sqrt(variance + args.eps)
                gain = inverse * (weight[channel] if args.weight != 0 else np.float32(1))
                means[channel], inverses[channel] = np.float32(mean), np.float32(inverse)
                gains[channel] = np.float32(gain)
                offsets[channel] = np.float32((bias[channel] if args.bias != 0 else np.float32(0)) - mean * gain)
                if args.running_mean != 0:
                    share = shares[group]
                    unbiased = around / (samples - 1) if samples > 1 else variance
                    running_mean[channel] = np.float32((1 - share) * running_mean[channel] + share * mean)
                    running_var[channel] = np.float32((1 - share) * running_var[channel] + share * unbiased)

    return compile_kernel(body, _Record)


@functools.cache
def normalise_tile(dtype: torch.dtype) -> Callable:
    """A function that writes x · gain + offset for a tile."""
    widen, narrow = element(dtype)[2:]

    def write(x, gains, offsets, y, count, channels):
        places = row_of(channels)
        for first in range(0, count, places):
            for k in range(np.uint64(min(places, count - first))):
                y[np.uint64(first) + k] = narrow(widen(x[np.uint64(first) + k]) * gains[k] + offsets[k])

    return inlined(write)


@functools.cache
def _normalise_kernel(dtype: torch.dtype) -> Kernel:
    memory = element(dtype).memory
    item, maps = np.dtype(memory).itemsize, tile_of(memory)
    gains_room, offsets_room, write = scratch(MOST, np.float32), scratch(MOST, np.float32), normalise_tile(dtype)

    def body(p):
        args = carray(p, 1)[0]
        n, channels = args.n, args.channels
        gains, offsets = carray(gains_room(), (MOST,), np.float32), carray(offsets_room(), (MOST,), np.float32)
        each = args.steps // args.groups
        while True:
            ticket = claim(p)
            if ticket >= args.steps * args.chunks:
                break
            step, chunk = ticket // args.chunks, ticket % args.chunks * CHUNK
            spread(row_of_table(args.table, step // each, GAIN, channels), gains, channels)
            spread(row_of_table(args.table, step // each, OFFSET, channels), offsets, channels)
            for start in range(chunk, min(chunk + CHUNK, n), TILE):
                here = (step * n + start) * item
                write(maps(args.x + here), gains, offsets, maps(args.out + here), min(TILE, n - start), channels)

    return compile_kernel(body, _Record)


@functools.cache
def _sums_kernel(dtype: torch.dtype) -> Kernel:
    memory = element(dtype).memory
    item, maps = np.dtype(memory).itemsize, tile_of(memory)
    means_room, add = scratch(MOST, np.float32), sum_tile(dtype)

    def body(p):
        args = carray(p, 1)[0]
        n, channels = args.n, args.channels
        means, each = carray(means_room(), (MOST,), np.float32), args.steps // args.groups
        while True:
            ticket = claim(p)
            if ticket >= args.steps * args.chunks:
                break
            step, chunk = ticket // args.chunks, ticket % args.chunks * CHUNK
            spread(row_of_table(args.table, step // each, MEAN, channels), means, channels)
            alone, with_x = sums_of_ticket(args.partial, ticket, channels)
            clear(alone, row_of(channels))
            clear(with_x, row_of(channels))
            for start in range(chunk, min(chunk + CHUNK, n), TILE):
                here = (step * n + start) * item
                add(maps(args.grad + here), maps(args.x + here), means, min(TILE, n - start), channels, alone, with_x)
            fold(alone, channels)
            fold(with_x, channels)

    return compile_kernel(body, _Record)


@inlined
def parameter_gradients(args):
    """Those of weight and bias, the sums of all groups."""
    channels = args.channels
    grad_weight = carray(pointer(args.grad_weight), (MOST,), np.float32)
    grad_bias = carray(pointer(args.grad_bias), (MOST,), np.float32)
    for channel in range(channels):
        of_weight, of_bias = 0.0, 0.0
        for group in range(args.groups):
            alone, with_x = moments_of_ticket(args.sums, group, channels)
            of_weight += with_x[channel] * row_of_table(args.table, group, INVERSE, channels)[channel]
            of_bias += alone[channel]
        grad_weight[channel], grad_bias[channel] = np.float32(of_weight), np.float32(of_bias)


@functools.cache
def _gradient_kernel(dtype: torch.dtype, over: bool) -> Kernel:
    memory, _, widen, narrow = element(dtype)
    item, maps = np.dtype(memory).itemsize, tile_of(memory)
    rooms = [scratch(MOST, np.float32) for _ in range(4)]
    gains_room, means_room, slopes_room, rests_room = rooms

    def body(p):
        args = carray(p, 1)[0]
        n, channels = args.n, args.channels
        places, each = row_of(channels), args.steps // args.groups
        samples = float(each * n // channels)
        gains, means = carray(gains_room(), (MOST,), np.float32), carray(means_room(), (MOST,), np.float32)
        slopes, rests = carray(slopes_room(), (MOST,), np.float32), carray(rests_room(), (MOST,), np.float32)
        while True:
            ticket = claim(p)
            if ticket >= args.steps * args.chunks:
                break
            step, chunk = ticket // args.chunks, ticket % args.chunks * CHUNK
            group = step // each
            spread(row_of_table(args.table, group, GAIN, channels), gains, channels)
            spread(row_of_table(args.table, group, MEAN, channels), means, channels)
            alone, with_x = moments_of_ticket(args.sums, group, channels)
            inverses = row_of_table(args.table, group, INVERSE, channels)
            for channel in range(np.uint64(channels)):
                share = -float(gains[channel]) / samples
                slopes[channel] = np.float32(share * inverses[channel] * inverses[channel] * with_x[channel])
                rests[channel] = np.float32(share * alone[channel])
            if args.constant:
                clear(slopes, channels)
                clear(rests, channels)
            spread(slopes, slopes, channels)
            spread(rests, rests, channels)
            if ticket == 0:
                parameter_gradients(args)
            for start in range(chunk, min(chunk + CHUNK, n), TILE):
                here, count = (step * n + start) * item, min(TILE, n - start)
                grad, x, out = maps(args.grad + here), maps(args.x + here), maps(args.out + here)
                for first in range(0, count, places):
                    for k in range(np.uint64(min(places, count - first))):
                        i = np.uint64(first) + k
                        g = widen(out[i] if over else grad[i])
                        out[i] = narrow(g * gains[k] + ((widen(x[i]) - means[k]) * slopes[k] + rests[k]))

    return compile_kernel(body, _Record)

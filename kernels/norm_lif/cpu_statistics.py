"""Batch norm's statistics on CPU: the moments of each channel, and what follows from them."""

from __future__ import annotations

import ctypes
import functools
import math

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_loop import tile_of
from ..cpu_math import element
from ..cpu_scratch import scratch
from ..cpu_threads import CHUNK, Kernel, claim, compile_kernel, pointer, run_on, workers_for
from .cpu_rows import MOST, Record, clear, fold, moments_of_ticket, record_of, row_of, row_of_table, spread
from .operands import GAIN, INVERSE, MEAN, OFFSET, Shape

FEW = 8
"""Pixels by which the mean is guessed."""


def statistics(
    x: Tensor, table: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, shares: list[float], eps: float,
) -> None:  # fmt: skip
    """table = gain, offset, mean and inverse of each group and channel; the running statistics take their share of the
    groups, one after the other."""
    record = record_of(
        shape, x=x, table=table, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var
    )
    moments = np.empty((shape.steps, record.chunks, 2, shape.channels))
    parts = np.empty(len(shares))
    parts[:] = shares
    record.partial, record.shares, record.eps = moments.ctypes.data, parts.ctypes.data, eps
    run_on(workers_for(shape.steps * record.chunks), _moments_kernel(x.dtype), record)
    _table_kernel()(ctypes.byref(record))


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

    return compile_kernel(body, Record)


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

    return compile_kernel(body, Record)

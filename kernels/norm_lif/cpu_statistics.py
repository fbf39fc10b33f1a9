"""Batch norm's statistics on CPU: the moments of each channel, and what follows from them."""

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
from ..cpu_threads import Kernel, claim, compile_kernel, inlined, pointer, run_on, workers_for
from .cpu_rows import MOST, Record, clear, fold, lay_out, next_channel, plus, record_of, row_of_table
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
    moments = np.empty((shape.steps, record.chunks, 3, shape.channels))
    parts = np.empty(len(shares))
    parts[:] = shares
    record.partial, record.shares, record.eps = moments.ctypes.data, parts.ctypes.data, eps
    run_on(workers_for(shape.steps * record.chunks), _moments_kernel(x.dtype), record)
    _table_kernel()(ctypes.byref(record))


@inlined
def moments_of_ticket(partial, ticket, channels):
    """A ticket's three rows: how many elements it has of each channel, their mean, and the sum of squares around it."""
    here, row = partial + ticket * channels * 24, channels * 8
    return (
        carray(pointer(here), (MOST,), np.float64),
        carray(pointer(here + row), (MOST,), np.float64),
        carray(pointer(here + 2 * row), (MOST,), np.float64),
    )


@functools.cache
def _moments_kernel(dtype: torch.dtype) -> Kernel:
    """The moments of each ticket and channel."""
    memory = element(dtype).memory
    item, maps = np.dtype(memory).itemsize, tile_of(memory)
    of_rows, of_runs = _moments_of_rows(dtype), _moments_of_runs(dtype)

    def body(p):
        args = carray(p, 1)[0]
        while True:
            ticket = claim(p)
            if ticket >= args.steps * args.chunks:
                break
            step, chunk = ticket // args.chunks, ticket % args.chunks * args.chunk
            count = min(args.chunk, args.n - chunk)
            samples, mean, around = moments_of_ticket(args.partial, ticket, args.channels)
            x = maps(args.x + (step * args.n + chunk) * item)
            if args.run == 1:
                of_rows(x, count, args, samples, mean, around)
            else:
                of_runs(x, chunk, count, args, samples, mean, around)

    return compile_kernel(body, Record)


@functools.cache
def _moments_of_rows(dtype: torch.dtype) -> Callable:
    """A function that finds the moments of neurons with channels innermost."""
    widen = element(dtype).widen
    guess_room, shift_room, alone_room, squares_room = (scratch(MOST, np.float32) for _ in range(4))

    def moments(x, count, args, samples, mean, around):
        channels, places = args.channels, args.places
        guess, shift = carray(guess_room(), (MOST,), np.float32), carray(shift_room(), (MOST,), np.float32)
        alone, squares = carray(alone_room(), (MOST,), np.float32), carray(squares_room(), (MOST,), np.float32)
        # Squares are taken of differences to the mean of a few pixels, here and there: a mean far from zero costs no
        # digits.
        few = min(FEW, count // channels)
        apart = count // channels // few * channels
        clear(guess, channels)
        for first in range(np.uint64(0), np.uint64(few * apart), np.uint64(apart)):
            for channel in range(np.uint64(channels)):
                guess[channel] += widen(x[first + channel]) / np.float32(few)
        lay_out(guess, shift, args, 0, places)
        clear(alone, places)
        clear(squares, places)
        together, place = count // (4 * places) * 4 * places, np.uint64(places)
        for first in range(0, together, 4 * places):
            for k in range(place):
                i0, origin = np.uint64(first) + k, shift[k]
                i1, i2, i3 = i0 + place, i0 + np.uint64(2) * place, i0 + np.uint64(3) * place
                d0, d1 = widen(x[i0]) - origin, widen(x[i1]) - origin
                d2, d3 = widen(x[i2]) - origin, widen(x[i3]) - origin
                alone[k] += (d0 + d1) + (d2 + d3)
                squares[k] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)
        for first in range(together, count, places):
            for k in range(np.uint64(min(places, count - first))):
                d = widen(x[np.uint64(first) + k]) - shift[k]
                alone[k] += d
                squares[k] += d * d
        fold(alone, places, channels)
        fold(squares, places, channels)
        own = count // channels
        for channel in range(np.uint64(channels)):
            total = float(alone[channel])
            samples[channel] = own
            mean[channel] = guess[channel] + total / own
            around[channel] = squares[channel] - total * total / own

    return inlined(moments)


@functools.cache
def _moments_of_runs(dtype: torch.dtype) -> Callable:
    """A function that finds those of neurons from `first` on where channels are runs. Of some it may have none.

    Each part of a run has a guess of its own. What is found with it are moments around zero, in float64.
    """
    widen = element(dtype).widen

    def moments(x, first, count, args, samples, mean, around):
        channels, run = args.channels, args.run
        for channel in range(np.uint64(channels)):
            samples[channel] = mean[channel] = around[channel] = 0.0
        channel, start, stop = first // run % channels, 0, run - first % run
        while start < count:
            last = min(min(stop, count), start + TILE)
            few = min(FEW, last - start)
            apart = (last - start) // few
            origin, alone, squares = np.float32(0), np.float32(0), np.float32(0)
            for i in range(np.uint64(start), np.uint64(start + few * apart), np.uint64(apart)):
                origin += widen(x[i]) / np.float32(few)
            for i in range(np.uint64(start), np.uint64(last)):
                d = widen(x[i]) - origin
                alone = plus(alone, d)
                squares = plus(squares, d * d)
            own, shift, total = float(last - start), float(origin), float(alone)
            samples[channel] += own
            mean[channel] += own * shift + total
            around[channel] += squares + shift * (2 * total + own * shift)
            start = last
            if start == stop:
                channel, stop = next_channel(channel, channels), stop + run
        for channel in range(np.uint64(channels)):
            if samples[channel] > 0.0:
                total = mean[channel]
                mean[channel] = total / samples[channel]
                around[channel] -= total * mean[channel]

    return inlined(moments)


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
                    owned, own_mean, own_around = moments_of_ticket(args.partial, ticket, channels)
                    own = owned[channel]
                    if own == 0.0:
                        continue
                    apart, samples = own_mean[channel] - mean, samples + own
                    mean += apart * own / samples
                    around += own_around[channel] + apart * apart * own * (samples - own) / samples
                variance = max(around, 0.0) / samples if around == around else around
                inverse = 1.0 / math.sqrt(variance + args.eps)
                # The offset is that of the rounded gain: where x is near the mean, what the gain lost does not show.
                gain = np.float32(inverse * (weight[channel] if args.weight != 0 else np.float32(1)))
                means[channel], inverses[channel], gains[channel] = np.float32(mean), np.float32(inverse), gain
                offsets[channel] = np.float32((bias[channel] if args.bias != 0 else np.float32(0)) - mean * float(gain))
                if args.running_mean != 0:
                    share = shares[group]
                    unbiased = around / (samples - 1) if samples > 1 else variance
                    running_mean[channel] = np.float32((1 - share) * running_mean[channel] + share * mean)
                    running_var[channel] = np.float32((1 - share) * running_var[channel] + share * unbiased)

    return compile_kernel(body, Record)

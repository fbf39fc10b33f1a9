"""The sums that batch norm's gradients need, on CPU: Σ grad and Σ grad · (x - mean) of each group and channel."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_loop import copy, tile_of
from ..cpu_math import element
from ..cpu_scratch import scratch
from ..cpu_threads import Kernel, claim, compile_kernel, inlined, run_on, workers_for
from .cpu_rows import (
    MOST,
    Record,
    clear,
    fold,
    lay_out,
    next_channel,
    plus,
    record_of,
    row_of_table,
    sums_of_group,
    sums_of_ticket,
    walk_of,
)
from .operands import MEAN, Shape


def partial_sums(shape: Shape) -> np.ndarray:
    """Room for two rows of sums per ticket."""
    walk = walk_of(shape)
    return np.empty((shape.steps, walk.chunks, 2, walk.places), np.float32)


def sums(grad: Tensor, x: Tensor, table: Tensor, out: Tensor, shape: Shape) -> None:
    """out = Σ grad and Σ grad · (x - mean) of each group and channel."""
    partial = partial_sums(shape)
    record = record_of(shape, x=x, table=table, grad=grad)
    record.partial = partial.ctypes.data
    run_on(workers_for(shape.steps * record.chunks), _sums_kernel(x.dtype), record)
    add_up(partial, out, shape)


def add_up(partial: np.ndarray, out: Tensor, shape: Shape) -> None:
    """The sums of each group from those of its tickets."""
    record = record_of(shape, sums=out)
    record.partial = partial.ctypes.data
    _add_up_kernel()(ctypes.byref(record))


@functools.cache
def sum_tile(dtype: torch.dtype) -> Callable:
    """A function that adds Σ grad and Σ grad · (x - mean) of a tile to two rows of sums."""
    add_rows, add_runs = _sum_rows(dtype), _sum_runs(dtype)

    def add(grad, x, means, args, first, count, total_alone, total_with_x):
        if args.run == 1:
            add_rows(grad, x, means, count, args.row, total_alone, total_with_x)
        else:
            add_runs(grad, x, means, args, first, count, total_alone, total_with_x)

    return inlined(add)


@functools.cache
def _sum_rows(dtype: torch.dtype) -> Callable:
    """The same with channels innermost: one sum for each place of a row."""
    widen = element(dtype).widen
    alone_room, with_x_room = scratch(MOST, np.float32), scratch(MOST, np.float32)

    def add(grad, x, means, count, places, total_alone, total_with_x):
        alone = carray(alone_room(), (MOST,), np.float32)
        with_x = carray(with_x_room(), (MOST,), np.float32)
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


@functools.cache
def _sum_runs(dtype: torch.dtype) -> Callable:
    """The same where channels are runs: one sum for each channel."""
    widen = element(dtype).widen

    def add(grad, x, means, args, first, count, total_alone, total_with_x):
        channels, run = args.channels, args.run
        channel, start, stop = first // run % channels, 0, run - first % run
        while start < count:
            mean, alone, with_x = means[start], np.float32(0), np.float32(0)
            for i in range(np.uint64(start), np.uint64(min(stop, count))):
                g = widen(grad[i])
                alone = plus(alone, g)
                with_x = plus(with_x, g * (widen(x[i]) - mean))
            total_alone[channel] += alone
            total_with_x[channel] += with_x
            channel, start, stop = next_channel(channel, channels), stop, stop + run

    return inlined(add)


@functools.cache
def _sums_kernel(dtype: torch.dtype) -> Kernel:
    memory = element(dtype).memory
    item, maps = np.dtype(memory).itemsize, tile_of(memory)
    means_room, add = scratch(MOST, np.float32), sum_tile(dtype)

    def body(p):
        args = carray(p, 1)[0]
        n, channels, tile = args.n, args.channels, args.tile
        means, each = carray(means_room(), (MOST,), np.float32), args.steps // args.groups
        while True:
            ticket = claim(p)
            if ticket >= args.steps * args.chunks:
                break
            step, chunk = ticket // args.chunks, ticket % args.chunks * args.chunk
            of_mean = row_of_table(args.table, step // each, MEAN, channels)
            alone, with_x = sums_of_ticket(args.partial, ticket, args.places)
            clear(alone, args.places)
            clear(with_x, args.places)
            for start in range(chunk, min(chunk + args.chunk, n), tile):
                here, count = (step * n + start) * item, min(tile, n - start)
                if args.run > 1 or start == chunk:
                    lay_out(of_mean, means, args, start, count)
                add(maps(args.grad + here), maps(args.x + here), means, args, start, count, alone, with_x)
            fold(alone, args.places, channels)
            fold(with_x, args.places, channels)

    return compile_kernel(body, Record)


@functools.cache
def _add_up_kernel() -> Kernel:
    """The sums of each group from those of its tickets."""

    def body(p):
        args = carray(p, 1)[0]
        channels, each = args.channels, args.steps // args.groups * args.chunks
        for group in range(args.groups):
            alone, with_x = sums_of_group(args.sums, group, channels)
            for channel in range(np.uint64(channels)):
                alone[channel] = with_x[channel] = 0.0
            for ticket in range(group * each, (group + 1) * each):
                own_alone, own_with_x = sums_of_ticket(args.partial, ticket, args.places)
                for channel in range(np.uint64(channels)):
                    alone[channel] += own_alone[channel]
                    with_x[channel] += own_with_x[channel]

    return compile_kernel(body, Record)

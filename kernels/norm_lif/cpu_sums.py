"""The sums that batch norm's gradients need, on CPU: Σ grad and Σ grad · (x - mean) of each group and channel."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_loop import TILE, copy, tile_of
from ..cpu_math import element
from ..cpu_scratch import scratch
from ..cpu_threads import CHUNK, Kernel, claim, compile_kernel, inlined, run_on, workers_for
from .cpu_rows import (
    MOST,
    ROW,
    Record,
    chunks_of,
    clear,
    fold,
    moments_of_ticket,
    record_of,
    row_of,
    row_of_table,
    spread,
    sums_of_ticket,
)
from .operands import MEAN, Shape


def partial_sums(shape: Shape) -> np.ndarray:
    """Room for two sums per ticket and place of a row."""
    return np.empty((shape.steps, chunks_of(shape), 2, max(shape.channels, ROW)), np.float32)


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

    return compile_kernel(body, Record)


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

    return compile_kernel(body, Record)

"""Batch norm's output on CPU, from its statistics."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_loop import tile_of
from ..cpu_math import element
from ..cpu_scratch import scratch
from ..cpu_threads import Kernel, claim, compile_kernel, inlined, run_on, workers_for
from .cpu_rows import MOST, Record, lay_out, record_of, row_of_table
from .operands import GAIN, OFFSET, Shape


def normalise(x: Tensor, table: Tensor, out: Tensor, shape: Shape) -> None:
    """out = x · gain + offset."""
    record = record_of(shape, x=x, table=table, out=out)
    run_on(workers_for(shape.steps * record.chunks), _normalise_kernel(x.dtype), record)


@functools.cache
def normalise_tile(dtype: torch.dtype) -> Callable:
    """A function that writes x · gain + offset for a tile."""
    widen, narrow = element(dtype)[2:]

    def write(x, gains, offsets, y, count, row):
        for first in range(0, count, row):
            for k in range(np.uint64(min(row, count - first))):
                y[np.uint64(first) + k] = narrow(widen(x[np.uint64(first) + k]) * gains[k] + offsets[k])

    return inlined(write)


@functools.cache
def _normalise_kernel(dtype: torch.dtype) -> Kernel:
    memory = element(dtype).memory
    item, maps = np.dtype(memory).itemsize, tile_of(memory)
    gains_room, offsets_room = scratch(MOST, np.float32), scratch(MOST, np.float32)
    write = normalise_tile(dtype)

    def body(p):
        args = carray(p, 1)[0]
        n, channels, tile = args.n, args.channels, args.tile
        gains, offsets = carray(gains_room(), (MOST,), np.float32), carray(offsets_room(), (MOST,), np.float32)
        each = args.steps // args.groups
        while True:
            ticket = claim(p)
            if ticket >= args.steps * args.chunks:
                break
            step, chunk = ticket // args.chunks, ticket % args.chunks * args.chunk
            of_gain = row_of_table(args.table, step // each, GAIN, channels)
            of_offset = row_of_table(args.table, step // each, OFFSET, channels)
            for start in range(chunk, min(chunk + args.chunk, n), tile):
                here, count = (step * n + start) * item, min(tile, n - start)
                if args.run > 1 or start == chunk:
                    lay_out(of_gain, gains, args, start, count)
                    lay_out(of_offset, offsets, args, start, count)
                write(maps(args.x + here), gains, offsets, maps(args.out + here), count, args.row)

    return compile_kernel(body, Record)

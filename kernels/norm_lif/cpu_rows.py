"""How the kernels of batch norm on CPU go through a map.

With channels innermost, a tile holds whole pixels, so each channel equally often. What belongs to a channel is written
out as a pattern, often enough to fill a row of the tile, and a loop over rows then needs no remainders. Sums go the
other way: one for each place of a row, then halves are added until one for each channel is left.

Where each channel of a sample is a run of pixels, as in contiguous maps, the pattern is that of a tile, written for
each tile, and sums are taken run by run.

Sums of a ticket are taken in float32: of at most 256 numbers for each place, or of a run's part of a tile. Those of
tickets are taken in float64. No order of them depends on the number of threads.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
from numba import carray
from torch import Tensor

from ..cpu_loop import TILE
from ..cpu_threads import CHUNK, inlined, pointer, reordering
from .operands import Shape

ROW = 256
"""About the shortest row of a tile: with fewer places, loops over a row would spend their time on beginning and
ending."""
MOST = TILE
"""Channels, at most: those of a tile."""
OF_RUNS = TILE // 2
"""Neurons of a tile where channels are runs: its patterns are as long as it is, and stay in the first-level cache."""
SIZES = ("ticket", "steps", "groups", "n", "channels", "run", "chunks", "row", "places", "tile", "chunk")
"""How every record begins."""


class Walk(NamedTuple):
    """The parts in which a map is gone through."""

    chunks: int
    """The tickets of one time step."""
    row: int
    """Places of a pattern: a multiple of the channels, or of a tile if channels are runs."""
    places: int
    """Sums of a ticket."""
    tile: int
    """Neurons of a tile."""
    chunk: int
    """Neurons of a ticket."""


def walk_of(shape: Shape) -> Walk:
    """How to go through a map."""
    if shape.run > 1:
        row, places, tile = OF_RUNS, shape.channels, OF_RUNS
    else:
        row = shape.channels
        while 2 * row <= ROW:
            row *= 2
        places, tile = row, TILE // row * row
    chunk = CHUNK // tile * tile
    return Walk(-(-shape.neurons // chunk), row, places, tile, chunk)


def sizes_of(shape: Shape) -> tuple[int, ...]:
    """The values of `SIZES`."""
    return 0, shape.steps, shape.groups, shape.neurons, shape.channels, shape.run, *walk_of(shape)


class Record(ctypes.Structure):
    """The arguments of a kernel; each reads those that it needs."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                *SIZES, "constant", "x", "table", "out", "grad", "partial", "sums", "weight", "bias", "running_mean",
                "running_var", "shares", "grad_weight", "grad_bias",
            )
        ),
        ("eps", ctypes.c_double),
    )  # fmt: skip


def record_of(shape: Shape, **operands: Tensor | None) -> Record:
    """A record with the sizes of a map and the addresses of these operands; the others are zero."""
    record = Record(*sizes_of(shape))
    for name, tensor in operands.items():
        if tensor is not None:
            setattr(record, name, tensor.data_ptr())
    return record


@inlined
def lay_out(values, pattern, args, first, count):
    """What belongs to the channel at each place of a row; where channels are runs, of these neurons."""
    channels, run = args.channels, args.run
    if run == 1:
        for start in range(np.uint64(0), np.uint64(args.row), np.uint64(channels)):
            for channel in range(np.uint64(channels)):
                pattern[start + channel] = values[channel]
        return
    channel, start, stop = first // run % channels, 0, run - first % run
    while start < count:
        value = values[channel]
        for k in range(np.uint64(start), np.uint64(min(stop, count))):
            pattern[k] = value
        channel, start, stop = next_channel(channel, channels), stop, stop + run


@inlined
def next_channel(channel, channels):
    """The channel whose run follows."""
    return channel + 1 if channel + 1 < channels else 0


@reordering
def plus(total, more):
    """The next of a run's sums, which are taken in whatever order fills a vector."""
    return total + more


@inlined
def clear(row, places):
    for k in range(np.uint64(places)):
        row[k] = np.float32(0)


@inlined
def fold(row, places, channels):
    """Add the sums of all places of a channel; they are left in the first ones."""
    while places > channels:
        places //= 2
        for k in range(np.uint64(places)):
            row[k] += row[k + np.uint64(places)]


@inlined
def sums_of_ticket(partial, ticket, places):
    """The two rows of a ticket's sums."""
    here = partial + ticket * places * 8
    return carray(pointer(here), (MOST,), np.float32), carray(pointer(here + places * 4), (MOST,), np.float32)


@inlined
def sums_of_group(sums, group, channels):
    """The two rows of a group's sums."""
    here = sums + group * channels * 16
    return carray(pointer(here), (MOST,), np.float64), carray(pointer(here + channels * 8), (MOST,), np.float64)


@inlined
def row_of_table(table, group, row, channels):
    """A row of one group's table, one number per channel."""
    return carray(pointer(table + (group * 4 + row) * channels * 4), (MOST,), np.float32)

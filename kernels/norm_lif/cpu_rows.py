"""How the kernels of batch norm on CPU go through a map with channels innermost.

Channels are a power of two, so a tile of neurons holds each of them equally often. What belongs to a channel is written
out as a pattern, often enough to fill a row of the tile, and a loop over rows then needs no remainders. Sums go the
other way: one for each place of a row, then halves are added until one for each channel is left. Sums of a ticket are
taken in float32, at most 128 numbers for each place, and those of tickets in float64, in an order that does not depend
on the number of threads.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numba import carray
from torch import Tensor

from ..cpu_loop import TILE
from ..cpu_threads import CHUNK, inlined, pointer
from .operands import Shape

ROW = 256
"""The shortest row of a tile: with fewer places, loops over a row would spend their time on beginning and ending."""
MOST = TILE
"""Channels, at most: those of a tile."""


class Record(ctypes.Structure):
    """The arguments of a kernel; each reads those that it needs."""

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


def record_of(shape: Shape, **operands: Tensor | None) -> Record:
    """A record with the sizes of a map and the addresses of these operands; the others are zero."""
    record = Record(0, shape.steps, shape.groups, shape.neurons, shape.channels, chunks_of(shape))
    for name, tensor in operands.items():
        if tensor is not None:
            setattr(record, name, tensor.data_ptr())
    return record


def chunks_of(shape: Shape) -> int:
    """The tickets of one time step."""
    return -(-shape.neurons // CHUNK)


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
def fold(row, channels):
    """Add the sums of all places of a channel; they are left in the first ones."""
    places = row_of(channels)
    while places > channels:
        places //= 2
        for k in range(np.uint64(places)):
            row[k] += row[k + np.uint64(places)]


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


@inlined
def row_of_table(table, group, row, channels):
    """A row of one group's table, one number per channel."""
    return carray(pointer(table + (group * 4 + row) * channels * 4), (MOST,), np.float32)

"""The tiles of the Triton kernels of batch norm, the same with and without a neuron.

With channels innermost a tile is ROWS pixels of all channels, of which there are WIDTH, a power of two; those that the
map does not have are masked. Where each channel of a sample is a run of RUN pixels, as in contiguous maps, a tile is
ROWS pixels of one channel, and there is a third row of programs, one for each channel. Pixels are counted sample after
sample; `n` is how many one time step has, of which there is one row of programs each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_tile import BLOCK
from .operands import Shape

PROGRAMS = 1024
"""The most programs that share the sums of a time step."""


@triton.jit
def pixels_of(i_tile, ROWS: tl.constexpr):
    """The pixels of a tile."""
    return i_tile * ROWS + tl.arange(0, ROWS)


@triton.jit
def channels_of(WIDTH: tl.constexpr):
    """The channels of this program's tiles, counted in 64 bits as every offset is."""
    return tl.program_id(2).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)


@triton.jit
def places_of(o_row, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr):
    """Where the neurons of these pixels are."""
    o_c = channels_of(WIDTH)[None, :]
    if RUN == 1:
        o_n = o_row[:, None] * CHANNELS + o_c
    else:
        o_n = (o_row // RUN * (CHANNELS * RUN) + o_row % RUN)[:, None] + o_c * RUN
    return o_n


@triton.jit
def mask_of(o_row, n, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Which neurons of a tile there are."""
    mask = (o_row < n)[:, None]
    if CHANNELS % WIDTH != 0:
        mask = mask & (channels_of(WIDTH) < CHANNELS)[None, :]
    return mask


@triton.jit
def load_row(p_rows, row, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """A row of numbers for the channels of a tile."""
    o_c = channels_of(WIDTH)
    o_n = row * CHANNELS + o_c
    if CHANNELS % WIDTH == 0:
        b_row = tl.load(p_rows + o_n)
    else:
        b_row = tl.load(p_rows + o_n, mask=o_c < CHANNELS, other=0.0)
    return b_row


@triton.jit
def store_row(p_rows, row, b_row, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """A row of numbers for the channels of a tile."""
    o_c = channels_of(WIDTH)
    o_n = row * CHANNELS + o_c
    if CHANNELS % WIDTH == 0:
        tl.store(p_rows + o_n, b_row)
    else:
        tl.store(p_rows + o_n, b_row, mask=o_c < CHANNELS)


@triton.jit
def row_of(p_table, i_group, row, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """A row of the table of a group, as one row of a tile."""
    return load_row(p_table, i_group * 4 + row, CHANNELS, WIDTH)[None, :]


@triton.jit
def normalised(p_x, o_n, mask, b_gain, b_offset):
    """x · gain + offset, rounded as a map of it would be."""
    b_x = tl.load(p_x + o_n, mask=mask, other=0.0)
    return (b_x.to(tl.float32) * b_gain + b_offset).to(b_x.dtype).to(tl.float32)


@triton.jit
def store_sums(p_partial, i_t, b_alone, b_with_x, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """This program's two sums per channel, of a time step."""
    i_part = i_t * tl.num_programs(0) + tl.program_id(0)
    store_row(p_partial, 2 * i_part, b_alone, CHANNELS, WIDTH)
    store_row(p_partial, 2 * i_part + 1, b_with_x, CHANNELS, WIDTH)


def constants_of(shape: Shape) -> dict[str, int]:
    """What kernels are compiled for."""
    width = 1 if shape.run > 1 else triton.next_power_of_2(shape.channels)
    return {"CHANNELS": shape.channels, "WIDTH": width, "RUN": shape.run}


def pixels(shape: Shape) -> int:
    """Pixels of one time step."""
    return shape.neurons // shape.channels


def tiles(shape: Shape) -> int:
    """Tiles of one time step, or of one of its channels where these are runs."""
    return triton.cdiv(pixels(shape), rows(shape))


def rows(shape: Shape) -> int:
    """Pixels of a tile."""
    return BLOCK // constants_of(shape)["WIDTH"]


def programs_of_channels(shape: Shape) -> int:
    """One for each channel where these are runs."""
    return shape.channels if shape.run > 1 else 1


def programs_and_tiles(shape: Shape) -> tuple[int, int]:
    """Programs that share a time step, or a channel of it, and the tiles of each."""
    each = triton.cdiv(tiles(shape) * programs_of_channels(shape), PROGRAMS)
    each = min(each, tiles(shape))
    return triton.cdiv(tiles(shape), each), each


def partial_sums(x: Tensor, shape: Shape, programs: int) -> Tensor:
    """Room for the sums of so many programs."""
    return x.new_empty((shape.steps, programs, 2, shape.channels), dtype=torch.float32)


def add_up(partial: Tensor, out: Tensor, shape: Shape) -> None:
    """The sums of each group, in an order that never changes."""
    torch.sum(partial.view(shape.groups, -1, 2, shape.channels), 1, dtype=torch.float64, out=out)

"""The gradient of a convolution's input where the weight is larger than the maps, on CPU.

A tap is one place of the kernel. What a tap gives to the gradient of the input is a product of matrices: the pixels of
the output's gradient × the tap's weight, of output channels × channels. Only the pixels for which the tap lies inside
the image take part: of small maps, a third of all taps lie outside.

A ticket is a block of channels. Its weight is read once, a square at a time, and used for all pixels while it is in the
first-level cache; PyTorch would reorder the whole weight first, which takes longer than using it. Every pixel is
computed by one worker, in an order that does not depend on how many there are.
"""

from __future__ import annotations

import functools

import numba
import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_scratch import scratch
from ..cpu_threads import Kernel, claim, compile_kernel, enlist, pointer, record_of, run_on, workers_for
from .geometry import Geometry
from .products import multiply_and_add, prefetch_vectors, sums_held
from .vectors import LANES, address_of

SQUARE = 64
"""Output channels whose weights are copied together: those of 64 channels are half of a first-level cache of 32 KiB."""


_Record = record_of(
    "tickets",
    "images",
    "height",  # of the input, whose gradient is computed
    "width",
    "channels",
    "grad_height",
    "grad_width",
    "grad_channels",
    "kernel_height",
    "kernel_width",
    "down",  # the stride
    "right",
    "top",  # the padding
    "left",
    "grad",
    "weight",
    "out",
    "zeros",
    "room",
    "room_each",  # bytes per worker
)


def input_gradient(grad: Tensor, weight: Tensor, out: Tensor, geometry: Geometry) -> None:
    """out = the gradient of the input from `grad`, that of the output; channels innermost everywhere."""
    vectors = next(count for count in (4, 2, 1) if geometry.channels % (count * LANES) == 0)
    vectors = min(vectors, sums_held() // 3)
    rows, block = min(12, sums_held() // vectors), vectors * LANES
    zeros = torch.zeros(geometry.out_channels, dtype=torch.float32, device=grad.device)
    (grad_height, grad_width), (down, right), (top, left) = geometry.out_size, geometry.stride, geometry.padding
    record = _Record(
        tickets=geometry.channels // block,
        images=geometry.images,
        height=geometry.height,
        width=geometry.width,
        channels=geometry.channels,
        grad_height=grad_height,
        grad_width=grad_width,
        grad_channels=geometry.out_channels,
        kernel_height=geometry.kernel_height,
        kernel_width=geometry.kernel_width,
        down=down,
        right=right,
        top=top,
        left=left,
        grad=grad.data_ptr(),
        weight=weight.data_ptr(),
        out=out.data_ptr(),
        zeros=zeros.data_ptr(),
    )
    workers = workers_for(record.tickets)
    pixels = geometry.images * geometry.height * geometry.width
    # For each worker the sums of all pixels and of one that nobody reads, and two tables of addresses.
    room = np.empty((workers, (pixels + 1) * block // 2 + 2 * (geometry.pixels + rows)), np.int64)
    record.room, record.room_each = room.ctypes.data, room[0].nbytes
    run_on(workers, _kernel(vectors, rows), record)


@functools.cache
def _kernel(vectors: int, rows: int) -> Kernel:
    block = vectors * LANES
    square_room = scratch(SQUARE * block, np.float32)
    add, prefetch = multiply_and_add(rows, vectors), prefetch_vectors(vectors)

    def body(p):
        args = carray(p, 1)[0]
        square_address = address_of(square_room())
        square = carray(pointer(square_address), (SQUARE, block), np.float32)
        pitch = args.channels * 4
        pixels, taps = args.images * args.height * args.width, args.kernel_height * args.kernel_width
        grad_pixels = args.images * args.grad_height * args.grad_width
        sums_address = args.room + enlist(p) * args.room_each
        spare = sums_address + pixels * block * 4
        seen_address = spare + block * 4
        given_address = seen_address + (grad_pixels + rows) * 8
        sums = carray(pointer(sums_address), (pixels + 1, block), np.float32)
        seen = carray(pointer(seen_address), (grad_pixels + rows,), np.int64)
        given = carray(pointer(given_address), (grad_pixels + rows,), np.int64)
        weight = carray(pointer(args.weight), (args.grad_channels * taps, args.channels), np.float32)
        out = carray(pointer(args.out), (pixels, args.channels), np.float32)
        while True:
            ticket = claim(p)
            if ticket >= args.tickets:
                break
            first, first_byte = np.uint64(ticket * block), ticket * block * 4
            for pixel in range(np.uint64(pixels + 1)):
                for lane in range(np.uint64(block)):
                    sums[pixel, lane] = np.float32(0)
            for tap in range(taps):
                row, column = divmod(tap, args.kernel_width)
                count = _find_pixels(seen, given, sums_address, block * 4, row - args.top, column - args.left, args)
                for place in range(count, count + rows):  # a multiple of `rows` is multiplied
                    seen[place], given[place] = args.zeros, spare
                for begin in range(0, args.grad_channels if count else 0, SQUARE):
                    channels = min(SQUARE, args.grad_channels - begin)
                    for channel in range(np.uint64(channels)):
                        of_weight = (np.uint64(begin) + channel) * np.uint64(taps) + np.uint64(tap)
                        for lane in range(np.uint64(block)):
                            square[channel, lane] = weight[of_weight, first + lane]
                    # The next square is fetched meanwhile, a few rows at a time: the weight comes from main memory.
                    last = begin + SQUARE >= args.grad_channels
                    ahead = args.weight + ((0 if last else begin + SQUARE) * taps + tap + last) * pitch + first_byte
                    for place in range(0, count, rows):
                        add(seen_address + place * 8, begin * 4, square_address, channels, given_address + place * 8)
                        for channel in range(place * SQUARE // count, min(place + rows, count) * SQUARE // count):
                            prefetch(ahead + np.int64(channel) * taps * pitch)
            for pixel in range(np.uint64(pixels)):
                for lane in range(np.uint64(block)):
                    out[pixel, first + lane] = sums[pixel, lane]

    return compile_kernel(body, _Record)


@numba.njit(inline="always")
def _find_pixels(seen, given, sums, sums_pitch, down_by, right_by, args):
    """For a tap, the addresses of the pixels that it sees inside the map, of the output's gradient, and of the sums
    that it gives to. Returns how many there are."""
    count = 0
    for image in range(args.images):
        for grad_row in range(args.grad_height):
            row = grad_row * args.down + down_by
            if row < 0 or row >= args.height:
                continue
            here = args.grad + (image * args.grad_height + grad_row) * args.grad_width * args.grad_channels * 4
            there = sums + (image * args.height + row) * args.width * sums_pitch
            for grad_column in range(args.grad_width):
                column = grad_column * args.right + right_by
                if 0 <= column < args.width:
                    seen[count] = here + grad_column * args.grad_channels * 4
                    given[count] = there + column * sums_pitch
                    count += 1
    return count

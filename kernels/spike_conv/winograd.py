"""The gradient of the input of a 3 × 3 convolution by Winograd's algorithm, on CPU.

Four neighbouring outputs of a 3 × 3 convolution take 36 products. Of sums of the inputs and sums of the weights, 16 are
enough. So the maps are cut into tiles of 2 × 2 pixels, each of which sees a window of 4 × 4. Windows and weights are
transformed, which takes additions only. At each of the 16 places of a window a matrix of tiles × channels is multiplied
by one of channels × channels, and the products are transformed into pixels.

The tiles of a ticket stay in the second-level cache from the first transform to the last. Every pixel is computed by
one worker, in an order that does not depend on how many there are. The error is no larger than that of the plain sums
(`tests/kernels/test_winograd.py`).
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_scratch import scratch
from ..cpu_threads import Kernel, claim, compile_kernel, enlist, pointer, record_of, run_on, workers_for
from .geometry import Geometry
from .products import multiply, sums_held
from .vectors import LANES, VECTOR_BYTES, address_of
from .winograd_vectors import PLACES, WINDOW, transform_products, transform_weight, transform_window

TILES = 24
"""Tiles of a ticket. From 12 to 48 make no difference that could be measured."""
CHANNELS = 8
"""Output channels whose weights are transformed in one ticket."""
GAP = LANES
"""Floats between the matrices of two places. Without it all 16 would begin in the same set of the first-level cache, as
channels are mostly a power of two: with 16 channels the kernel then takes 1.5 times as long."""


_Record = record_of(
    "tickets",
    "tiles",
    "height",  # of the input, whose gradient is computed
    "width",
    "channels",
    "grad_height",
    "grad_width",
    "grad_channels",
    "top",  # the first row of the output's gradient that the first tile sees; before the map, it is negative
    "left",
    "grad",
    "weight",
    "transformed",
    "out",
    "zeros",
    "room",
    "room_each",  # bytes per worker
)


def input_gradient(grad: Tensor, weight: Tensor, out: Tensor, geometry: Geometry) -> None:
    """out = the gradient of the input from `grad`, that of the output; channels innermost everywhere."""
    channels, grad_channels = geometry.channels, geometry.out_channels
    (grad_height, grad_width), (top, left) = geometry.out_size, geometry.padding
    transformed = np.empty(PLACES * (grad_channels * channels + GAP), np.float32)
    zeros = torch.zeros(grad_channels, dtype=torch.float32, device=grad.device)
    record = _Record(
        tickets=-(-grad_channels // CHANNELS),
        tiles=geometry.images * -(-geometry.height // 2) * -(-geometry.width // 2),
        height=geometry.height,
        width=geometry.width,
        channels=channels,
        grad_height=grad_height,
        grad_width=grad_width,
        grad_channels=grad_channels,
        top=top - 2,
        left=left - 2,
        grad=grad.data_ptr(),
        weight=weight.data_ptr(),
        transformed=transformed.ctypes.data,
        out=out.data_ptr(),
        zeros=zeros.data_ptr(),
    )
    run_on(workers_for(record.tickets), _weight_kernel(), record)
    record.ticket, record.tickets = 0, -(-record.tiles // TILES)
    workers = workers_for(record.tickets)
    room = np.empty((workers, PLACES * (TILES * (grad_channels + LANES) + GAP) + channels), np.float32)
    record.room, record.room_each = room.ctypes.data, room[0].nbytes
    run_on(workers, _kernel(_tiles_together()), record)


def _tiles_together() -> int:
    """Tiles multiplied together: as many as there are registers for 16 sums of each; on a CPU with many, half."""
    return min(12, sums_held())


@functools.cache
def _weight_kernel() -> Kernel:
    def body(p):
        args = carray(p, 1)[0]
        channels, grad_channels = args.channels, args.grad_channels
        pitch = (grad_channels * channels + GAP) * 4
        while True:
            ticket = claim(p)
            if ticket >= args.tickets:
                break
            for channel in range(ticket * CHANNELS, min(ticket * CHANNELS + CHANNELS, grad_channels)):
                for block in range(channels // LANES):
                    source = args.weight + (channel * 9 * channels + block * LANES) * 4
                    target = args.transformed + (block * grad_channels + channel) * VECTOR_BYTES
                    transform_weight(source, channels * 4, target, pitch)

    return compile_kernel(body, _Record)


@functools.cache
def _kernel(together: int) -> Kernel:
    seen_room, given_room = scratch(PLACES, np.float64), scratch(4 * TILES, np.float64)
    product = multiply(together)

    def body(p):
        args = carray(p, 1)[0]
        channels, grad_channels = args.channels, args.grad_channels
        pixel, grad_pixel = channels * 4, grad_channels * 4
        down, across, blocks = (args.height + 1) // 2, (args.width + 1) // 2, channels // LANES
        # The addresses of the pixels that a tile sees, and of those that it gives. Those beside the map are read from a
        # pixel of zeros and written to one that nobody reads.
        seen_address, given_address = address_of(seen_room()), address_of(given_room())
        seen = carray(pointer(seen_address), (PLACES,), np.int64)
        given = carray(pointer(given_address), (4 * TILES,), np.int64)
        window_pitch, product_pitch = TILES * grad_pixel + GAP * 4, TILES * VECTOR_BYTES
        weight_pitch = (grad_channels * channels + GAP) * 4
        windows = args.room + enlist(p) * args.room_each
        products = windows + PLACES * window_pitch
        spare = products + PLACES * product_pitch
        while True:
            ticket = claim(p)
            if ticket >= args.tickets:
                break
            count = min(TILES, args.tiles - ticket * TILES)
            image, place = divmod(ticket * TILES, down * across)
            row, column = divmod(place, across)
            for tile in range(TILES):
                top, left = 2 * row + args.top, 2 * column + args.left
                corner = args.grad + ((image * args.grad_height + top) * args.grad_width + left) * grad_pixel
                for i in range(WINDOW):
                    for j in range(WINDOW):
                        inside = 0 <= top + i < args.grad_height and 0 <= left + j < args.grad_width and tile < count
                        there = corner + (i * args.grad_width + j) * grad_pixel
                        seen[WINDOW * i + j] = there if inside else args.zeros
                corner = args.out + ((image * args.height + 2 * row) * args.width + 2 * column) * pixel
                for i in range(2):
                    for j in range(2):
                        inside = 2 * row + i < args.height and 2 * column + j < args.width and tile < count
                        given[4 * tile + 2 * i + j] = corner + (i * args.width + j) * pixel if inside else spare
                for offset in range(0, grad_pixel, VECTOR_BYTES):
                    transform_window(seen_address, offset, windows + tile * grad_pixel + offset, window_pitch)
                column += 1
                if column == across:
                    row, column = row + 1, 0
                    if row == down:
                        image, row = image + 1, 0
            for block in range(blocks):
                weights = args.transformed + block * grad_channels * VECTOR_BYTES
                for place in range(PLACES):
                    source, target = windows + place * window_pitch, products + place * product_pitch
                    for tile in range(0, count, together):
                        product(
                            source + tile * grad_pixel, grad_pixel, weights, grad_channels, target + tile * VECTOR_BYTES
                        )
                    weights += weight_pitch
                for tile in range(count):
                    source = products + tile * VECTOR_BYTES
                    transform_products(source, product_pitch, given_address + tile * 32, block * VECTOR_BYTES)

    return compile_kernel(body, _Record)

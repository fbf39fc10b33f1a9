"""The convolution on CPU: a matrix of bits times a matrix of floats, four bits at a time, or six.

Four rows of floats have 16 subsets, and so 16 sums. With those in a table, four bits cost one addition instead of four
multiplications, whatever the bits are. Six bits take a table of 64 sums, which is small enough where there are only 16
output channels. In forward the bits are the inputs of a pixel and the rows are weights; for the weight's gradient the
bits are those of 64 pixels under one weight, and the rows are the pixels' gradients.

Channels are the innermost dimension of all operands. A pixel's inputs from one row of the image are then one run of
bits, which is read 64 at a time wherever it starts, because the image has zeros around it.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_scratch import scratch
from ..cpu_threads import Kernel, claim, compile_kernel, enlist, pointer, record_of, run_on, workers_for
from .geometry import Geometry
from .surround import with_zeros_around
from .vectors import (
    LANES,
    VECTOR_BYTES,
    add_subsets,
    add_transposed_floats,
    address_of,
    subset_sums,
    transpose_bits,
    transpose_floats,
    word_at,
)

PIXELS = 512
"""Output pixels of a ticket forward: enough to pay for its tables, few enough to stay in the second-level cache."""
WORD = 64
TICKETS = 8
"""The fewest tickets for a weight's gradient, if there are enough pixels: work for several threads from one block."""


_Record = record_of(
    "tickets",
    "blocks",  # of output channels
    "pixels",
    "pixels_each",  # of a ticket
    "bits",
    "row_bytes",
    "image_bytes",
    "stride_bytes",  # the distance from a pixel's inputs to its right neighbour's
    "stride_rows",  # the distance to those of the pixel below
    "weight",
    "out",
    "out_height",
    "out_width",
    "out_channels",
    "kernel_height",
    "run",
    "sums",
    "sums_each",  # bytes per worker
    "adds",  # whether the gradient is added to one that is there
)


def forward(bits: Tensor, weight: Tensor, out: Tensor, geometry: Geometry) -> None:
    """out = the convolution of the spikes with these bits."""
    vectors = _vectors(geometry)
    whole = geometry.run % 48 == 0  # 3 × 16 channels fill 48 bits and would leave 16 of 64 empty
    digits, bits_each = (8, 6) if whole and vectors == 1 else (12, 4) if whole else (16, 4)
    surrounded = with_zeros_around(bits, geometry)
    record = _record(surrounded, weight, out, geometry, -(-geometry.pixels // PIXELS), PIXELS)
    run_on(workers_for(record.tickets), _forward_kernel(vectors, digits, bits_each), record)


def weight_gradient(bits: Tensor, grad: Tensor, geometry: Geometry, into: Tensor | None = None) -> Tensor:
    """The gradient of the weight from that of the output, channels innermost; or `into`, to which it is added."""
    vectors = _vectors(geometry)
    blocks, words = geometry.out_channels // (vectors * LANES), -(-geometry.pixels // WORD)
    # The parts that are summed must not depend on the number of threads, or the rounding would.
    each = -(-words // min(words, -(-TICKETS // blocks)))
    parts = -(-words // each)
    shape = geometry.out_channels, geometry.kernel_height, geometry.kernel_width, geometry.channels
    if into is not None and parts == 1:
        found, adds = into.permute(0, 2, 3, 1).view(1, *shape), True
    else:
        found, adds = torch.empty(parts, *shape, dtype=torch.float32, device=grad.device), False
    surrounded = with_zeros_around(bits, geometry)
    record = _record(surrounded, found, grad, geometry, parts, each * WORD)
    workers = workers_for(record.tickets)
    rows = geometry.kernel_height * -(-geometry.run // WORD) * WORD
    sums = np.empty((workers, rows, vectors * LANES), np.float32)
    record.sums, record.sums_each, record.adds = sums.ctypes.data, sums[0].nbytes, adds
    run_on(workers, _gradient_kernel(vectors), record)
    total = (found.sum(0) if parts > 1 else found[0]).permute(0, 3, 1, 2)
    return total if adds or into is None else into.add_(total)


def _vectors(geometry: Geometry) -> int:
    """Vectors of output channels done together: with two, the tables of a word just fit in the first-level cache."""
    return 2 if geometry.out_channels % (2 * LANES) == 0 else 1


def _record(bits: Tensor, weight: Tensor, out: Tensor, geometry: Geometry, parts: int, pixels_each: int) -> Any:
    bytes_a_pixel = geometry.channels // 8
    (height, width), (out_height, out_width) = geometry.padded, geometry.out_size
    blocks = geometry.out_channels // (_vectors(geometry) * LANES)
    return _Record(
        tickets=blocks * parts,
        blocks=blocks,
        pixels=geometry.pixels,
        pixels_each=pixels_each,
        bits=bits.data_ptr(),
        row_bytes=width * bytes_a_pixel,
        image_bytes=height * width * bytes_a_pixel,
        stride_bytes=geometry.stride[1] * bytes_a_pixel,
        stride_rows=geometry.stride[0],
        weight=weight.data_ptr(),
        out=out.data_ptr(),
        out_height=out_height,
        out_width=out_width,
        out_channels=geometry.out_channels,
        kernel_height=geometry.kernel_height,
        run=geometry.run,
    )


@numba.njit(inline="always")
def _find_inputs(places, first, count, args):
    """The address of the first input bit of each of `count` output pixels."""
    image, pixel = divmod(first, args.out_height * args.out_width)
    row, column = divmod(pixel, args.out_width)
    done = 0
    while done < count:
        here = args.bits + image * args.image_bytes + row * args.stride_rows * args.row_bytes
        here += column * args.stride_bytes
        until = min(count, done + args.out_width - column)
        for place in range(np.uint64(done), np.uint64(until)):
            places[place] = here
            here += args.stride_bytes
        done, column, row = until, 0, row + 1
        if row == args.out_height:
            row, image = 0, image + 1


@functools.cache
def _forward_kernel(vectors: int, digits: int, bits: int) -> Kernel:
    block, word = vectors * LANES, bits * digits
    table_bytes, row_bytes = 2**bits * vectors * VECTOR_BYTES, 4 * block
    tables_room, tile_room = scratch(digits * table_bytes // 4, np.float32), scratch(word * block, np.float32)
    places_room, sums_room = scratch(PIXELS, np.float64), scratch(PIXELS * block, np.float32)
    build, add = subset_sums(vectors, bits), add_subsets(vectors, digits, bits)
    whole = np.uint64(2**word - 1)

    def body(p):
        args = carray(p, 1)[0]
        tables, tile_address = address_of(tables_room()), address_of(tile_room())
        tile = carray(pointer(tile_address), (word, block), np.float32)
        places, sums_address = carray(places_room(), (PIXELS,), np.int64), address_of(sums_room())
        sums = carray(pointer(sums_address), (PIXELS, block), np.float32)
        out = carray(pointer(args.out), (args.pixels, args.out_channels), np.float32)
        pitch = args.kernel_height * args.run * 4
        while True:
            ticket = claim(p)
            if ticket >= args.tickets:
                break
            # Neighbouring tickets have different pixels, not different channels of the same ones: threads would share
            # cache lines.
            parts = args.tickets // args.blocks
            part, channel = ticket % parts, ticket // parts * block
            first = part * PIXELS
            count = min(PIXELS, args.pixels - first)
            _find_inputs(places, first, count, args)
            for pixel in range(np.uint64(count)):
                for lane in range(np.uint64(block)):
                    sums[pixel, lane] = np.float32(0)
            for kernel_row in range(args.kernel_height):
                for begin in range(0, args.run, word):
                    # The weights of these inputs, transposed from one row per output channel to one row per input.
                    rows = min(word, args.run - begin)
                    weights = args.weight + channel * pitch + (kernel_row * args.run + begin) * 4
                    for row in range(0, rows, LANES):
                        for lane in range(0, block, LANES):
                            source = weights + lane * pitch + row * 4
                            transpose_floats(source, pitch, tile_address + row * row_bytes + lane * 4, row_bytes)
                    for row in range(np.uint64(rows), np.uint64(word)):
                        for lane in range(np.uint64(block)):
                            tile[row, lane] = np.float32(0)
                    for digit in range(digits):
                        build(tile_address + bits * digit * row_bytes, row_bytes, tables + digit * table_bytes)
                    shift = kernel_row * args.row_bytes + begin // 8
                    target = sums_address
                    for pixel in range(np.uint64(count)):
                        seen = word_at(places[pixel] + shift) & whole
                        if seen:  # none beside the image, and where few neurons fire
                            add(target, tables, seen)
                        target += row_bytes
            for pixel in range(np.uint64(count)):
                for lane in range(np.uint64(block)):
                    out[np.uint64(first) + pixel, np.uint64(channel) + lane] = sums[pixel, lane]

    return compile_kernel(body, _Record)


@functools.cache
def _gradient_kernel(vectors: int) -> Kernel:
    block, nibbles = vectors * LANES, WORD // 4
    table_bytes, row_bytes = 16 * vectors * VECTOR_BYTES, 4 * block
    tables_room, tile_room = scratch(nibbles * table_bytes // 4, np.float32), scratch(WORD * block, np.float32)
    places_room, words_room = scratch(WORD, np.float64), scratch(WORD, np.float64)
    build, add = subset_sums(vectors, 4), add_subsets(vectors, nibbles, 4)

    def body(p):
        args = carray(p, 1)[0]
        tables, tile_address = address_of(tables_room()), address_of(tile_room())
        tile = carray(pointer(tile_address), (WORD, block), np.float32)
        places, words_address = carray(places_room(), (WORD,), np.int64), address_of(words_room())
        words = carray(pointer(words_address), (WORD,), np.uint64)
        grad = carray(pointer(args.out), (args.pixels, args.out_channels), np.float32)
        padded_run = (args.run + WORD - 1) // WORD * WORD
        sums_address = args.sums + enlist(p) * args.sums_each
        sums = carray(pointer(sums_address), (args.kernel_height * padded_run, block), np.float32)
        pitch = args.kernel_height * args.run * 4
        while True:
            ticket = claim(p)
            if ticket >= args.tickets:
                break
            part, channel = ticket // args.blocks, ticket % args.blocks * block
            for row in range(np.uint64(args.kernel_height * padded_run)):
                for lane in range(np.uint64(block)):
                    sums[row, lane] = np.float32(0)
            for first in range(part * args.pixels_each, min((part + 1) * args.pixels_each, args.pixels), WORD):
                count = min(WORD, args.pixels - first)
                _find_inputs(places, first, count, args)
                for pixel in range(np.uint64(count), np.uint64(WORD)):
                    places[pixel] = args.bits  # any bits will do: the rows of these pixels are zeros
                for pixel in range(np.uint64(WORD)):
                    for lane in range(np.uint64(block)):
                        real = pixel < np.uint64(count)
                        tile[pixel, lane] = grad[np.uint64(first) + pixel, np.uint64(channel) + lane] if real else 0
                for nibble in range(nibbles):
                    build(tile_address + 4 * nibble * row_bytes, row_bytes, tables + nibble * table_bytes)
                for kernel_row in range(args.kernel_height):
                    for begin in range(0, args.run, WORD):
                        shift = kernel_row * args.row_bytes + begin // 8
                        for pixel in range(np.uint64(WORD)):
                            words[pixel] = word_at(places[pixel] + shift)
                        transpose_bits(words_address)
                        target = sums_address + (kernel_row * padded_run + begin) * row_bytes
                        for row in range(np.uint64(min(WORD, args.run - begin))):
                            if words[row]:
                                add(target, tables, words[row])
                            target += row_bytes
            # Transposed from one row per input to one row per output channel, as weights are stored.
            weights = args.weight + (part * args.out_channels + channel) * pitch
            for kernel_row in range(args.kernel_height):
                for row in range(0, args.run, LANES):
                    for lane in range(0, block, LANES):
                        source = sums_address + (kernel_row * padded_run + row) * row_bytes + lane * 4
                        target = weights + lane * pitch + (kernel_row * args.run + row) * 4
                        if args.adds:
                            add_transposed_floats(source, row_bytes, target, pitch)
                        else:
                            transpose_floats(source, row_bytes, target, pitch)

    return compile_kernel(body, _Record)

"""The bits of images with zeros around them, on CPU, so that a convolution finds no borders."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_threads import Kernel, claim, compile_kernel, pointer, record_of, run_on, workers_for
from .geometry import Geometry

TOGETHER = 1 << 15
"""Bytes of a ticket, at the least: below that another thread costs more than it saves."""


_Record = record_of(
    "tickets",
    "images",
    "images_each",  # of a ticket
    "rows",  # with those around
    "top",
    "height",
    "before",  # bytes of zeros to the left of a row
    "row_bytes",
    "padded_bytes",  # of a row with what is around it
    "bits",
    "found",
)


def with_zeros_around(bits: Tensor, geometry: Geometry) -> Tensor:
    """The bits of the images, channels innermost, with zeros around each, and one more word at the end that may be
    read."""
    (rows, columns), (top, left) = geometry.padded, geometry.padding
    pixel_bytes = geometry.channels // 8
    image_bytes = rows * columns * pixel_bytes
    needed = geometry.images * geometry.height * geometry.width * pixel_bytes
    if bits.numel() != needed:
        raise ValueError(f"the bits of these spikes are {needed} bytes, and {bits.numel()} were given.")
    bits = bits.contiguous()
    found = torch.empty(geometry.images * image_bytes + 8, dtype=torch.uint8, device=bits.device)
    each = max(1, TOGETHER // image_bytes)
    record = _Record(
        tickets=-(-geometry.images // each),
        images=geometry.images,
        images_each=each,
        rows=rows,
        top=top,
        height=geometry.height,
        before=left * pixel_bytes,
        row_bytes=geometry.width * pixel_bytes,
        padded_bytes=columns * pixel_bytes,
        bits=bits.data_ptr(),
        found=found.data_ptr(),
    )
    run_on(workers_for(record.tickets), _kernel(), record)
    return found


@functools.cache
def _kernel() -> Kernel:
    def body(p):
        args = carray(p, 1)[0]
        bits = carray(pointer(args.bits), (args.images * args.height * args.row_bytes,), np.uint8)
        size = args.images * args.rows * args.padded_bytes
        found = carray(pointer(args.found), (size + 8,), np.uint8)
        while True:
            ticket = claim(p)
            if ticket >= args.tickets:
                break
            for image in range(ticket * args.images_each, min((ticket + 1) * args.images_each, args.images)):
                for row in range(args.rows):
                    start = np.uint64((image * args.rows + row) * args.padded_bytes)
                    inside = args.top <= row < args.top + args.height
                    if not inside or args.before or args.row_bytes < args.padded_bytes:
                        for byte in range(np.uint64(args.padded_bytes)):
                            found[start + byte] = 0
                    if inside:
                        start += np.uint64(args.before)
                        source = np.uint64((image * args.height + row - args.top) * args.row_bytes)
                        for byte in range(np.uint64(args.row_bytes)):
                            found[start + byte] = bits[source + byte]
            if ticket == args.tickets - 1:
                for byte in range(size, size + 8):
                    found[byte] = 0

    return compile_kernel(body, _Record)

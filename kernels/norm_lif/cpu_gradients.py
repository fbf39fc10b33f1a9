"""Batch norm's gradients on CPU, from their sums."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_loop import tile_of
from ..cpu_math import element
from ..cpu_scratch import scratch
from ..cpu_threads import Kernel, claim, compile_kernel, inlined, pointer, run_on, workers_for
from .cpu_rows import MOST, Record, clear, lay_out, record_of, row_of_table, sums_of_group
from .operands import GAIN, INVERSE, MEAN, Shape


def gradients(
    grad: Tensor, x: Tensor, table: Tensor, sums: Tensor, out: Tensor, grad_weight: Tensor, grad_bias: Tensor,
    constant: bool, shape: Shape,
) -> None:  # fmt: skip
    """out = gain · (grad - Σ grad / N - (x - mean) · inverse² · Σ grad · (x - mean) / N), or gain · grad if the
    statistics are `constant`; may be `grad` itself. grad_weight = inverse · Σ grad · (x - mean);  grad_bias = Σ grad.
    """
    record = record_of(
        shape, x=x, table=table, out=out, grad=grad, sums=sums, grad_weight=grad_weight, grad_bias=grad_bias
    )
    record.constant = constant
    over = record.out == record.grad
    run_on(workers_for(shape.steps * record.chunks), _gradient_kernel(x.dtype, over), record)


@inlined
def parameter_gradients(args):
    """Those of weight and bias, the sums of all groups."""
    channels = args.channels
    grad_weight = carray(pointer(args.grad_weight), (MOST,), np.float32)
    grad_bias = carray(pointer(args.grad_bias), (MOST,), np.float32)
    for channel in range(channels):
        of_weight, of_bias = 0.0, 0.0
        for group in range(args.groups):
            alone, with_x = sums_of_group(args.sums, group, channels)
            of_weight += with_x[channel] * row_of_table(args.table, group, INVERSE, channels)[channel]
            of_bias += alone[channel]
        grad_weight[channel], grad_bias[channel] = np.float32(of_weight), np.float32(of_bias)


@functools.cache
def _gradient_kernel(dtype: torch.dtype, over: bool) -> Kernel:
    memory, _, widen, narrow = element(dtype)
    item, maps = np.dtype(memory).itemsize, tile_of(memory)
    gains_room, means_room, slopes_room, rests_room = (scratch(MOST, np.float32) for _ in range(4))
    of_slope_room, of_rest_room = scratch(MOST, np.float32), scratch(MOST, np.float32)

    def body(p):
        args = carray(p, 1)[0]
        n, channels, row, tile = args.n, args.channels, args.row, args.tile
        each = args.steps // args.groups
        samples = float(each * n // channels)
        gains, means = carray(gains_room(), (MOST,), np.float32), carray(means_room(), (MOST,), np.float32)
        slopes, rests = carray(slopes_room(), (MOST,), np.float32), carray(rests_room(), (MOST,), np.float32)
        of_slope, of_rest = carray(of_slope_room(), (MOST,), np.float32), carray(of_rest_room(), (MOST,), np.float32)
        while True:
            ticket = claim(p)
            if ticket >= args.steps * args.chunks:
                break
            step, chunk = ticket // args.chunks, ticket % args.chunks * args.chunk
            group = step // each
            of_gain = row_of_table(args.table, group, GAIN, channels)
            of_mean = row_of_table(args.table, group, MEAN, channels)
            inverses = row_of_table(args.table, group, INVERSE, channels)
            alone, with_x = sums_of_group(args.sums, group, channels)
            for channel in range(np.uint64(channels)):
                share = -float(of_gain[channel]) / samples
                of_slope[channel] = np.float32(share * inverses[channel] * inverses[channel] * with_x[channel])
                of_rest[channel] = np.float32(share * alone[channel])
            if args.constant:
                clear(of_slope, channels)
                clear(of_rest, channels)
            if ticket == 0:
                parameter_gradients(args)
            for start in range(chunk, min(chunk + args.chunk, n), tile):
                here, count = (step * n + start) * item, min(tile, n - start)
                if args.run > 1 or start == chunk:
                    lay_out(of_gain, gains, args, start, count)
                    lay_out(of_mean, means, args, start, count)
                    lay_out(of_slope, slopes, args, start, count)
                    lay_out(of_rest, rests, args, start, count)
                grad, x, out = maps(args.grad + here), maps(args.x + here), maps(args.out + here)
                for first in range(0, count, row):
                    for k in range(np.uint64(min(row, count - first))):
                        i = np.uint64(first) + k
                        g = widen(out[i] if over else grad[i])
                        out[i] = narrow(g * gains[k] + ((widen(x[i]) - means[k]) * slopes[k] + rests[k]))

    return compile_kernel(body, Record)

"""Batch norm as Triton kernels: its statistics, its output, and its gradients.

For sums over the pixels of a channel, a program goes through several tiles and keeps one sum per channel in registers;
each program writes its own, and these are added up in an order that never changes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..triton_tile import launch
from .operands import Shape
from .triton_tile import (
    add_up,
    constants_of,
    load_row,
    mask_of,
    normalised,
    partial_sums,
    pixels,
    pixels_of,
    places_of,
    programs_and_tiles,
    programs_of_channels,
    row_of,
    rows,
    store_row,
    store_sums,
    tiles,
)


@triton.jit
def norm_moments(
    p_x, p_partial, n, tiles_each, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr
):
    """partial = mean and Σ (x - mean)² of each channel, over this program's pixels."""
    ROWS: tl.constexpr = BLOCK // WIDTH
    i_program, i_t = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    p_x += i_t * n * CHANNELS
    first, last = i_program * tiles_each * ROWS, tl.minimum((i_program + 1) * tiles_each * ROWS, n)
    # Squares are taken of differences to the mean of the first tile: a mean far from zero costs no digits.
    o_row = pixels_of(i_program * tiles_each, ROWS)
    mask = mask_of(o_row, n, CHANNELS, WIDTH)
    b_x = tl.load(p_x + places_of(o_row, CHANNELS, WIDTH, RUN), mask=mask, other=0.0).to(tl.float32)
    b_shift = tl.sum(b_x, axis=0) / tl.minimum(last - first, ROWS).to(tl.float32)
    b_sum = tl.zeros((WIDTH,), tl.float32)
    b_squares = tl.zeros((WIDTH,), tl.float32)
    for i_tile in range(tiles_each):
        o_row = pixels_of(i_program * tiles_each + i_tile, ROWS)
        mask = mask_of(o_row, n, CHANNELS, WIDTH)
        b_x = tl.load(p_x + places_of(o_row, CHANNELS, WIDTH, RUN), mask=mask, other=0.0).to(tl.float32)
        b_apart = tl.where(mask, b_x - b_shift[None, :], 0.0)
        b_sum += tl.sum(b_apart, axis=0)
        b_squares += tl.sum(b_apart * b_apart, axis=0)
    count = (last - first).to(tl.float32)
    store_sums(p_partial, i_t, b_shift + b_sum / count, b_squares - b_sum * b_sum / count, CHANNELS, WIDTH)


@triton.jit
def norm_table(
    p_partial, p_table, p_weight, p_bias, p_running_mean, p_running_var, p_shares, n, programs, pixels_each, groups,
    steps_each, eps, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, TRACKS: tl.constexpr, CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """table = gain, offset, mean and inverse of each group, from the moments of its programs; one program.

    running = (1 - share) · running + share · statistics, group by group.
    """
    b_weight = tl.full((WIDTH,), 1.0, tl.float32)
    b_bias = tl.zeros((WIDTH,), tl.float32)
    if HAS_WEIGHT:
        b_weight = load_row(p_weight, 0, CHANNELS, WIDTH)
    if HAS_BIAS:
        b_bias = load_row(p_bias, 0, CHANNELS, WIDTH)
    total = steps_each * n.to(tl.float32)
    for i_group in range(groups):
        i_first = tl.full((), 0, tl.int64) + i_group * steps_each * programs
        b_mean = tl.zeros((WIDTH,), tl.float32)
        for i_part in range(steps_each * programs):
            count = tl.minimum(n - (i_part % programs) * pixels_each, pixels_each).to(tl.float32)
            b_mean += load_row(p_partial, 2 * (i_first + i_part), CHANNELS, WIDTH) * (count / total)
        b_around = tl.zeros((WIDTH,), tl.float32)
        for i_part in range(steps_each * programs):
            count = tl.minimum(n - (i_part % programs) * pixels_each, pixels_each).to(tl.float32)
            i_own = 2 * (i_first + i_part)
            b_apart = load_row(p_partial, i_own, CHANNELS, WIDTH) - b_mean
            b_around += load_row(p_partial, i_own + 1, CHANNELS, WIDTH) + b_apart * b_apart * count
        b_inverse = 1.0 / tl.sqrt(tl.maximum(b_around, 0.0, propagate_nan=tl.PropagateNan.ALL) / total + eps)
        b_gain = b_weight * b_inverse
        store_row(p_table, i_group * 4, b_gain, CHANNELS, WIDTH)
        store_row(p_table, i_group * 4 + 1, b_bias - b_mean * b_gain, CHANNELS, WIDTH)
        store_row(p_table, i_group * 4 + 2, b_mean, CHANNELS, WIDTH)
        store_row(p_table, i_group * 4 + 3, b_inverse, CHANNELS, WIDTH)
        if TRACKS:
            share = tl.load(p_shares + i_group)
            b_unbiased = b_around / tl.maximum(total - 1.0, 1.0)
            b_before = load_row(p_running_mean, 0, CHANNELS, WIDTH)
            store_row(p_running_mean, 0, (1.0 - share) * b_before + share * b_mean, CHANNELS, WIDTH)
            b_before = load_row(p_running_var, 0, CHANNELS, WIDTH)
            store_row(p_running_var, 0, (1.0 - share) * b_before + share * b_unbiased, CHANNELS, WIDTH)


@triton.jit
def norm_map(
    p_x, p_table, p_y, n, steps_each,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = x · gain + offset."""
    ROWS: tl.constexpr = BLOCK // WIDTH
    i_t = tl.program_id(1).to(tl.int64)
    o_row = pixels_of(tl.program_id(0).to(tl.int64), ROWS)
    o_n = i_t * n * CHANNELS + places_of(o_row, CHANNELS, WIDTH, RUN)
    mask = mask_of(o_row, n, CHANNELS, WIDTH)
    b_gain = row_of(p_table, i_t // steps_each, 0, CHANNELS, WIDTH)
    b_offset = row_of(p_table, i_t // steps_each, 1, CHANNELS, WIDTH)
    b_y = normalised(p_x, o_n, mask, b_gain, b_offset)
    tl.store(p_y + o_n, b_y.to(p_y.dtype.element_ty), mask=mask)


@triton.jit
def norm_sums(
    p_grad, p_x, p_table, p_partial, n, steps_each, tiles_each,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """partial = Σ grad and Σ grad · (x - mean) of each channel, over this program's pixels."""
    ROWS: tl.constexpr = BLOCK // WIDTH
    i_program, i_t = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b_mean = row_of(p_table, i_t // steps_each, 2, CHANNELS, WIDTH)
    b_alone = tl.zeros((WIDTH,), tl.float32)
    b_with_x = tl.zeros((WIDTH,), tl.float32)
    for i_tile in range(tiles_each):
        o_row = pixels_of(i_program * tiles_each + i_tile, ROWS)
        o_n = i_t * n * CHANNELS + places_of(o_row, CHANNELS, WIDTH, RUN)
        mask = mask_of(o_row, n, CHANNELS, WIDTH)
        b_grad = tl.load(p_grad + o_n, mask=mask, other=0.0).to(tl.float32)
        b_x = tl.load(p_x + o_n, mask=mask, other=0.0).to(tl.float32)
        b_alone += tl.sum(b_grad, axis=0)
        b_with_x += tl.sum(b_grad * (b_x - b_mean), axis=0)
    store_sums(p_partial, i_t, b_alone, b_with_x, CHANNELS, WIDTH)


@triton.jit
def norm_grad_x(
    p_grad, p_x, p_table, p_sums, p_grad_x, p_grad_weight, p_grad_bias, n, groups, steps_each, samples,
    CONSTANT: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """grad_x = gain · (grad - Σ grad / N - (x - mean) · inverse² · Σ grad · (x - mean) / N); gain · grad if CONSTANT;
    grad_weight = Σ inverse · Σ grad · (x - mean) and grad_bias = ΣΣ grad, over the groups, by the first program.

    p_grad_x may be p_grad: each number is read before it is written, by the same thread.
    """
    ROWS: tl.constexpr = BLOCK // WIDTH
    i_t = tl.program_id(1).to(tl.int64)
    i_group = i_t // steps_each
    o_row = pixels_of(tl.program_id(0).to(tl.int64), ROWS)
    o_n = i_t * n * CHANNELS + places_of(o_row, CHANNELS, WIDTH, RUN)
    mask = mask_of(o_row, n, CHANNELS, WIDTH)
    b_gain = row_of(p_table, i_group, 0, CHANNELS, WIDTH)
    b_grad_x = tl.load(p_grad + o_n, mask=mask, other=0.0).to(tl.float32) * b_gain
    if not CONSTANT:
        b_x = tl.load(p_x + o_n, mask=mask, other=0.0).to(tl.float32)
        b_mean = row_of(p_table, i_group, 2, CHANNELS, WIDTH)
        b_inverse = row_of(p_table, i_group, 3, CHANNELS, WIDTH)
        b_with_x = load_row(p_sums, i_group * 2 + 1, CHANNELS, WIDTH).to(tl.float32)[None, :]
        b_slope = -b_gain * b_inverse * b_inverse * b_with_x / samples
        b_alone = load_row(p_sums, i_group * 2, CHANNELS, WIDTH).to(tl.float32)[None, :]
        b_grad_x = b_grad_x + ((b_x - b_mean) * b_slope - b_gain * b_alone / samples)
    tl.store(p_grad_x + o_n, b_grad_x.to(p_grad_x.dtype.element_ty), mask=mask)
    if (tl.program_id(0) == 0) & (i_t == 0):
        b_weight = tl.zeros((WIDTH,), tl.float32)
        b_bias = tl.zeros((WIDTH,), tl.float32)
        i_group = tl.full((), 0, tl.int64)
        for _ in range(groups):
            b_bias += load_row(p_sums, i_group * 2, CHANNELS, WIDTH).to(tl.float32)
            b_sum = load_row(p_sums, i_group * 2 + 1, CHANNELS, WIDTH).to(tl.float32)
            b_weight += b_sum * load_row(p_table, i_group * 4 + 3, CHANNELS, WIDTH)
            i_group += 1
        store_row(p_grad_weight, 0, b_weight, CHANNELS, WIDTH)
        store_row(p_grad_bias, 0, b_bias, CHANNELS, WIDTH)


def statistics(
    x: Tensor, table: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, shares: list[float], eps: float,
) -> None:  # fmt: skip
    """Launch `norm_moments` and `norm_table`."""
    n, (programs, each) = pixels(shape), programs_and_tiles(shape)
    partial, grid = partial_sums(x, shape, programs), (programs, shape.steps, programs_of_channels(shape))
    launch(norm_moments, grid, x, (x, partial, n, each), **constants_of(shape))
    tracks = running_mean is not None
    parts = torch.tensor(shares, dtype=torch.float32, device=x.device) if tracks else None
    launch(
        norm_table, (1,), x,
        (partial, table, weight, bias, running_mean, running_var, parts, n, programs, each * rows(shape), shape.groups,
         shape.steps // shape.groups, eps),
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, TRACKS=tracks, CHANNELS=shape.channels,
        WIDTH=triton.next_power_of_2(shape.channels),
    )  # fmt: skip


def normalise(x: Tensor, table: Tensor, out: Tensor, shape: Shape) -> None:
    """Launch `norm_map`."""
    arguments = x, table, out, pixels(shape), shape.steps // shape.groups
    launch(norm_map, (tiles(shape), shape.steps, programs_of_channels(shape)), x, arguments, **constants_of(shape))


def sums(grad: Tensor, x: Tensor, table: Tensor, out: Tensor, shape: Shape) -> None:
    """Launch `norm_sums`, and add up."""
    programs, each = programs_and_tiles(shape)
    partial, grid = partial_sums(x, shape, programs), (programs, shape.steps, programs_of_channels(shape))
    arguments = grad, x, table, partial, pixels(shape), shape.steps // shape.groups, each
    launch(norm_sums, grid, x, arguments, **constants_of(shape))
    add_up(partial, out, shape)


def gradients(
    grad: Tensor, x: Tensor, table: Tensor, sums: Tensor, out: Tensor, grad_weight: Tensor, grad_bias: Tensor,
    constant: bool, shape: Shape,
) -> None:  # fmt: skip
    """Launch `norm_grad_x`."""
    sizes = pixels(shape), shape.groups, shape.steps // shape.groups, float(shape.samples)
    arguments = grad, x, table, sums, out, grad_weight, grad_bias, *sizes
    grid = tiles(shape), shape.steps, programs_of_channels(shape)
    launch(norm_grad_x, grid, x, arguments, CONSTANT=constant, **constants_of(shape))

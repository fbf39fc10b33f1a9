"""Batch norm, alone and in one pass with LIF or PLIF, as Triton kernels for maps with channels innermost.

A tile is ROWS pixels of all channels. For sums over the pixels of a channel, a program goes through several tiles and
keeps one sum per channel in registers; each program writes its own, and these are added up in an order that never
changes. `n` counts the pixels of one time step, of which there is one row of programs each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..lif.triton import decay_product, integrate, learned, plif_grad_w, through_reset
from ..triton_tile import BLOCK, launch, surrogate
from .operands import Fire, GoBack, Shape

if TYPE_CHECKING:
    from ..lif.ops import Options

MOST = BLOCK
"""Channels: a tile has all of them."""
PROGRAMS = 1024
"""The most programs that share the sums of a time step."""


@triton.jit
def pixels_of(i_tile, ROWS: tl.constexpr):
    """The pixels of a tile."""
    return i_tile * ROWS + tl.arange(0, ROWS)


@triton.jit
def places_of(o_row, CHANNELS: tl.constexpr):
    """Where the neurons of these pixels are."""
    return o_row[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]


@triton.jit
def channels_of(CHANNELS: tl.constexpr):
    """All channels, counted in 64 bits as every offset is."""
    return tl.arange(0, CHANNELS).to(tl.int64)


@triton.jit
def row_of(p_table, i_group, row, CHANNELS: tl.constexpr):
    """A row of the table of a group, as one row of a tile."""
    return tl.load(p_table + ((i_group * 4 + row) * CHANNELS + channels_of(CHANNELS)))[None, :]


@triton.jit
def normalised(p_x, o_n, mask, b_gain, b_offset):
    """x · gain + offset, rounded as a map of it would be."""
    b_x = tl.load(p_x + o_n, mask=mask, other=0.0)
    return (b_x.to(tl.float32) * b_gain + b_offset).to(b_x.dtype).to(tl.float32)


@triton.jit
def norm_moments(p_x, p_partial, n, tiles_each, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """partial = mean and Σ (x - mean)² of each channel, over this program's pixels."""
    ROWS: tl.constexpr = BLOCK // CHANNELS
    i_program, i_t = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    o_c, p_x = channels_of(CHANNELS), p_x + i_t * n * CHANNELS
    first, last = i_program * tiles_each * ROWS, tl.minimum((i_program + 1) * tiles_each * ROWS, n)
    # Squares are taken of differences to the mean of the first tile: a mean far from zero costs no digits.
    o_row = pixels_of(i_program * tiles_each, ROWS)
    b_x = tl.load(p_x + places_of(o_row, CHANNELS), mask=(o_row < n)[:, None], other=0.0).to(tl.float32)
    b_shift = tl.sum(b_x, axis=0) / tl.minimum(last - first, ROWS).to(tl.float32)
    b_sum = tl.zeros((CHANNELS,), tl.float32)
    b_squares = tl.zeros((CHANNELS,), tl.float32)
    for i_tile in range(tiles_each):
        o_row = pixels_of(i_program * tiles_each + i_tile, ROWS)
        mask = (o_row < n)[:, None]
        b_x = tl.load(p_x + places_of(o_row, CHANNELS), mask=mask, other=0.0).to(tl.float32)
        b_apart = tl.where(mask, b_x - b_shift[None, :], 0.0)
        b_sum += tl.sum(b_apart, axis=0)
        b_squares += tl.sum(b_apart * b_apart, axis=0)
    count = (last - first).to(tl.float32)
    p_partial += (i_t * tl.num_programs(0) + i_program) * 2 * CHANNELS
    tl.store(p_partial + o_c, b_shift + b_sum / count)
    tl.store(p_partial + (CHANNELS + o_c), b_squares - b_sum * b_sum / count)


@triton.jit
def norm_table(
    p_partial, p_table, p_weight, p_bias, p_running_mean, p_running_var, p_shares, n, programs, pixels_each, groups,
    steps_each, eps, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, TRACKS: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """table = gain, offset, mean and inverse of each group, from the moments of its programs; one program.

    running = (1 - share) · running + share · statistics, group by group.
    """
    o_c = channels_of(CHANNELS)
    b_weight = tl.full((CHANNELS,), 1.0, tl.float32)
    b_bias = tl.zeros((CHANNELS,), tl.float32)
    if HAS_WEIGHT:
        b_weight = tl.load(p_weight + o_c)
    if HAS_BIAS:
        b_bias = tl.load(p_bias + o_c)
    total = steps_each * n.to(tl.float32)
    for i_group in range(groups):
        b_mean = tl.zeros((CHANNELS,), tl.float32)
        for i_part in range(steps_each * programs):
            count = tl.minimum(n - (i_part % programs) * pixels_each, pixels_each).to(tl.float32)
            b_own = tl.load(p_partial + ((i_group * steps_each * programs + i_part) * 2) * CHANNELS + o_c)
            b_mean += b_own * (count / total)
        b_around = tl.zeros((CHANNELS,), tl.float32)
        for i_part in range(steps_each * programs):
            count = tl.minimum(n - (i_part % programs) * pixels_each, pixels_each).to(tl.float32)
            p_own = p_partial + ((i_group * steps_each * programs + i_part) * 2) * CHANNELS + o_c
            b_apart = tl.load(p_own) - b_mean
            b_around += tl.load(p_own + CHANNELS) + b_apart * b_apart * count
        b_inverse = 1.0 / tl.sqrt(tl.maximum(b_around, 0.0, propagate_nan=tl.PropagateNan.ALL) / total + eps)
        b_gain = b_weight * b_inverse
        p_own = p_table + i_group * 4 * CHANNELS + o_c
        tl.store(p_own, b_gain)
        tl.store(p_own + CHANNELS, b_bias - b_mean * b_gain)
        tl.store(p_own + 2 * CHANNELS, b_mean)
        tl.store(p_own + 3 * CHANNELS, b_inverse)
        if TRACKS:
            share = tl.load(p_shares + i_group)
            b_unbiased = b_around / tl.maximum(total - 1.0, 1.0)
            b_before, b_var = tl.load(p_running_mean + o_c), tl.load(p_running_var + o_c)
            tl.store(p_running_mean + o_c, (1.0 - share) * b_before + share * b_mean)
            tl.store(p_running_var + o_c, (1.0 - share) * b_var + share * b_unbiased)


@triton.jit
def norm_map(p_x, p_table, p_y, n, steps_each, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """y = x · gain + offset."""
    ROWS: tl.constexpr = BLOCK // CHANNELS
    i_t = tl.program_id(1).to(tl.int64)
    o_row = pixels_of(tl.program_id(0).to(tl.int64), ROWS)
    o_n, mask = i_t * n * CHANNELS + places_of(o_row, CHANNELS), (o_row < n)[:, None]
    b_gain, b_offset = row_of(p_table, i_t // steps_each, 0, CHANNELS), row_of(p_table, i_t // steps_each, 1, CHANNELS)
    b_y = normalised(p_x, o_n, mask, b_gain, b_offset)
    tl.store(p_y + o_n, b_y.to(p_y.dtype.element_ty), mask=mask)


@triton.jit
def store_sums(p_partial, b_alone, b_with_x, CHANNELS: tl.constexpr):
    """This program's two sums per channel."""
    i_part = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    o_own = i_part * 2 * CHANNELS + channels_of(CHANNELS)
    tl.store(p_partial + o_own, b_alone)
    tl.store(p_partial + (o_own + CHANNELS), b_with_x)


@triton.jit
def norm_sums(p_grad, p_x, p_table, p_partial, n, steps_each, tiles_each, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """partial = Σ grad and Σ grad · (x - mean) of each channel, over this program's pixels."""
    ROWS: tl.constexpr = BLOCK // CHANNELS
    i_program, i_t = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b_mean = row_of(p_table, i_t // steps_each, 2, CHANNELS)
    b_alone = tl.zeros((CHANNELS,), tl.float32)
    b_with_x = tl.zeros((CHANNELS,), tl.float32)
    for i_tile in range(tiles_each):
        o_row = pixels_of(i_program * tiles_each + i_tile, ROWS)
        o_n, mask = i_t * n * CHANNELS + places_of(o_row, CHANNELS), (o_row < n)[:, None]
        b_grad = tl.load(p_grad + o_n, mask=mask, other=0.0).to(tl.float32)
        b_x = tl.load(p_x + o_n, mask=mask, other=0.0).to(tl.float32)
        b_alone += tl.sum(b_grad, axis=0)
        b_with_x += tl.sum(b_grad * (b_x - b_mean), axis=0)
    store_sums(p_partial, b_alone, b_with_x, CHANNELS)


@triton.jit
def norm_grad_x(
    p_grad, p_x, p_table, p_sums, p_grad_x, p_grad_weight, p_grad_bias, n, groups, steps_each, samples,
    CONSTANT: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """grad_x = gain · (grad - Σ grad / N - (x - mean) · inverse² · Σ grad · (x - mean) / N); gain · grad if CONSTANT;
    grad_weight = Σ inverse · Σ grad · (x - mean) and grad_bias = ΣΣ grad, over the groups, by the first program.

    p_grad_x may be p_grad: each number is read before it is written, by the same thread.
    """
    ROWS: tl.constexpr = BLOCK // CHANNELS
    i_t = tl.program_id(1).to(tl.int64)
    i_group = i_t // steps_each
    o_row = pixels_of(tl.program_id(0).to(tl.int64), ROWS)
    o_n, mask = i_t * n * CHANNELS + places_of(o_row, CHANNELS), (o_row < n)[:, None]
    b_gain, o_c = row_of(p_table, i_group, 0, CHANNELS), channels_of(CHANNELS)
    b_grad_x = tl.load(p_grad + o_n, mask=mask, other=0.0).to(tl.float32) * b_gain
    if not CONSTANT:
        b_mean, b_inverse = row_of(p_table, i_group, 2, CHANNELS), row_of(p_table, i_group, 3, CHANNELS)
        o_own = i_group * 2 * CHANNELS + o_c
        b_alone = tl.load(p_sums + o_own).to(tl.float32)[None, :]
        b_with_x = tl.load(p_sums + (o_own + CHANNELS)).to(tl.float32)[None, :]
        b_slope = -b_gain * b_inverse * b_inverse * b_with_x / samples
        b_x = tl.load(p_x + o_n, mask=mask, other=0.0).to(tl.float32)
        b_grad_x = b_grad_x + ((b_x - b_mean) * b_slope - b_gain * b_alone / samples)
    tl.store(p_grad_x + o_n, b_grad_x.to(p_grad_x.dtype.element_ty), mask=mask)
    if (tl.program_id(0) == 0) & (i_t == 0):
        b_weight = tl.zeros((CHANNELS,), tl.float32)
        b_bias = tl.zeros((CHANNELS,), tl.float32)
        o_sum, o_inverse = o_c, 3 * CHANNELS + o_c
        for _ in range(groups):
            b_bias += tl.load(p_sums + o_sum).to(tl.float32)
            b_weight += tl.load(p_sums + (o_sum + CHANNELS)).to(tl.float32) * tl.load(p_table + o_inverse)
            o_sum, o_inverse = o_sum + 2 * CHANNELS, o_inverse + 4 * CHANNELS
        tl.store(p_grad_weight + o_c, b_weight)
        tl.store(p_grad_bias + o_c, b_bias)


@triton.jit
def store_fired(
    p_spikes, p_bits, o_row, o_n, mask, b_fired, DENSE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the spikes of a tile as bits, and DENSE as a map."""
    ROWS: tl.constexpr = BLOCK // CHANNELS
    if DENSE:
        tl.store(p_spikes + o_n, tl.where(b_fired, 1.0, 0.0).to(p_spikes.dtype.element_ty), mask=mask)
    b_eights = tl.reshape(b_fired.to(tl.int32), (ROWS, CHANNELS // 8, 8)) << tl.arange(0, 8)[None, None, :]
    o_byte = o_row[:, None] * (CHANNELS // 8) + tl.arange(0, CHANNELS // 8)[None, :]
    tl.store(p_bits + o_byte, tl.sum(b_eights, axis=2).to(tl.uint8), mask=mask)


@triton.jit
def load_bits(p_bits, o_row, mask, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """The spikes of a tile from their bits."""
    ROWS: tl.constexpr = BLOCK // CHANNELS
    o_byte = o_row[:, None] * (CHANNELS // 8) + tl.arange(0, CHANNELS // 8)[None, :]
    b_bytes = tl.load(p_bits + o_byte, mask=mask, other=0).to(tl.int32)
    b_bits = (b_bytes[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
    return tl.reshape(b_bits, (ROWS, CHANNELS)).to(tl.float32)


@triton.jit(do_not_specialize=["steps", "steps_each"])
def norm_lif_fwd(
    p_x, p_table, p_m_first, p_m, p_bits, p_spikes, p_m_kept, p_added, p_added_bits, p_decay,
    n, steps, steps_each, decay, threshold, reset_value, scale,
    RESET: tl.constexpr, LEARNED: tl.constexpr, SCALE_BY_DECAY: tl.constexpr, KEEP: tl.constexpr, DENSE: tl.constexpr,
    ADDS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y[t] = x[t] · gain + offset (+ added[t]);  m[t] = decay · reset(m[t-1]) + scale · y[t];
    spikes[t] = m[t] >= threshold.

    m[-1] is m_first, p_m gets the last membrane, and p_m_kept the others. p_m may be p_m_first.
    """
    ROWS: tl.constexpr = BLOCK // CHANNELS
    o_row = pixels_of(tl.program_id(0).to(tl.int64), ROWS)
    o_m, mask = places_of(o_row, CHANNELS), (o_row < n)[:, None]
    decay, scale = learned(p_decay, decay, scale, LEARNED, SCALE_BY_DECAY)
    b_m = tl.load(p_m_first + o_m, mask=mask, other=0.0)
    i_t = tl.full((), 0, tl.int64)
    for _ in range(steps):
        b_gain = row_of(p_table, i_t // steps_each, 0, CHANNELS)
        b_offset = row_of(p_table, i_t // steps_each, 1, CHANNELS)
        o_there = i_t * n + o_row
        o_n = places_of(o_there, CHANNELS)
        b_y = normalised(p_x, o_n, mask, b_gain, b_offset)
        if ADDS == "map":
            b_y += tl.load(p_added + o_n, mask=mask, other=0.0).to(tl.float32)
        if ADDS == "bits":
            b_y += load_bits(p_added_bits, o_there, mask, CHANNELS, BLOCK)
        b_y = b_y.to(p_x.dtype.element_ty).to(tl.float32)
        b_m = integrate(b_m, scale * b_y, decay, threshold, reset_value, RESET)
        if KEEP:
            tl.store(p_m_kept + o_n, b_m, mask=mask & (i_t < steps - 1))
        store_fired(p_spikes, p_bits, o_there, o_n, mask, b_m >= threshold, DENSE, CHANNELS, BLOCK)
        i_t += 1
    tl.store(p_m + o_m, b_m, mask=mask)


@triton.jit(do_not_specialize=["steps", "steps_each", "tiles_each"])
def norm_lif_bwd(
    p_x, p_table, p_m, p_grad, p_grad_spikes, p_grad_m, p_m_kept, p_m_first, p_grad_m_first, p_decay, p_partial,
    p_partial_w, n, steps, steps_each, tiles_each, decay, threshold, reset_value, scale, a, b,
    SURROGATE: tl.constexpr, RESET: tl.constexpr, DETACH_RESET: tl.constexpr, LEARNED: tl.constexpr,
    SCALE_BY_DECAY: tl.constexpr, HAS_GRAD_SPIKES: tl.constexpr, HAS_GRAD_M: tl.constexpr, HAS_PAST: tl.constexpr,
    HAS_GRAD_W: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """g = grad_m + grad_spikes · surrogate(m - threshold);  grad = scale · g;  grad_m_first = decay · g · reset'(m');
    partial = Σ grad and Σ grad · (x - mean) of this program's pixels, and Σ of what each neuron adds to the decay's.

    Of one time step, or online of each of several, which do not wait for one another; m' is the membrane before.
    """
    ROWS: tl.constexpr = BLOCK // CHANNELS
    i_program, i_t = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    decay, scale = learned(p_decay, decay, scale, LEARNED, SCALE_BY_DECAY)
    p_past = p_m_first
    if i_t > 0:
        p_past = p_m_kept + (i_t - 1) * n * CHANNELS
    if i_t < steps - 1:
        p_m = p_m_kept + i_t * n * CHANNELS
    b_mean = row_of(p_table, i_t // steps_each, 2, CHANNELS)
    b_alone = tl.zeros((CHANNELS,), tl.float32)
    b_with_x = tl.zeros((CHANNELS,), tl.float32)
    b_products = tl.zeros((ROWS, CHANNELS), tl.float32)
    for i_tile in range(tiles_each):
        o_row = pixels_of(i_program * tiles_each + i_tile, ROWS)
        o_m, mask = places_of(o_row, CHANNELS), (o_row < n)[:, None]
        o_n = i_t * n * CHANNELS + o_m
        b_m = tl.load(p_m + o_m, mask=mask, other=0.0)
        b_g = tl.full((ROWS, CHANNELS), -0.0, tl.float32)  # which leaves every number as it is when it is added
        if HAS_GRAD_M:
            b_g = tl.load(p_grad_m + o_m, mask=mask, other=0.0)
        if HAS_GRAD_SPIKES:
            b_grad_spikes = tl.load(p_grad_spikes + o_n, mask=mask, other=0.0).to(tl.float32)
            b_g = b_g + b_grad_spikes * SURROGATE(b_m - threshold, a, b)
        b_grad = (scale * b_g).to(p_grad.dtype.element_ty)
        tl.store(p_grad + o_n, b_grad, mask=mask)
        if HAS_PAST or HAS_GRAD_W:
            b_past = tl.load(p_past + o_m, mask=mask, other=0.0)
            if HAS_GRAD_W:
                b_product = decay_product(b_g, b_m, b_past, threshold, reset_value, RESET, SCALE_BY_DECAY)
                b_products += tl.where(mask, b_product, 0.0)
            if HAS_PAST:
                b_back = decay * b_g
                b_back = through_reset(b_back, b_past, threshold, reset_value, a, b, SURROGATE, RESET, DETACH_RESET)
                tl.store(p_grad_m_first + o_m, b_back, mask=mask)
        b_grad = b_grad.to(tl.float32)
        b_x = tl.load(p_x + o_n, mask=mask, other=0.0).to(tl.float32)
        b_alone += tl.sum(tl.where(mask, b_grad, 0.0), axis=0)
        b_with_x += tl.sum(tl.where(mask, b_grad * (b_x - b_mean), 0.0), axis=0)
    store_sums(p_partial, b_alone, b_with_x, CHANNELS)
    if HAS_GRAD_W:
        tl.store(p_partial_w + i_t * tl.num_programs(0) + i_program, tl.sum(b_products))


def _pixels(shape: Shape) -> int:
    return shape.neurons // shape.channels


def _tiles(shape: Shape) -> int:
    return triton.cdiv(shape.neurons, BLOCK)


def _shares(shape: Shape) -> tuple[int, int]:
    """Programs that share a time step, and the tiles of each."""
    each = triton.cdiv(_tiles(shape), PROGRAMS)
    return triton.cdiv(_tiles(shape), each), each


def _partial(x: Tensor, shape: Shape) -> Tensor:
    return torch.empty(shape.steps, _shares(shape)[0], 2, shape.channels, dtype=torch.float32, device=x.device)


def statistics(
    x: Tensor, table: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, shares: list[float], eps: float,
) -> None:  # fmt: skip
    """Launch `norm_moments` and `norm_table`."""
    partial, (programs, each) = _partial(x, shape), _shares(shape)
    n, rows, constants = _pixels(shape), BLOCK // shape.channels, {"CHANNELS": shape.channels}
    launch(norm_moments, (programs, shape.steps), x, (x, partial, n, each), **constants)
    tracks = running_mean is not None
    parts = torch.tensor(shares, dtype=torch.float32, device=x.device) if tracks else None
    launch(
        norm_table, (1,), x,
        (partial, table, weight, bias, running_mean, running_var, parts, n, programs, each * rows, shape.groups,
         shape.steps // shape.groups, eps),
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, TRACKS=tracks, **constants,
    )  # fmt: skip


def normalise(x: Tensor, table: Tensor, out: Tensor, shape: Shape) -> None:
    """Launch `norm_map`."""
    arguments = x, table, out, _pixels(shape), shape.steps // shape.groups
    launch(norm_map, (_tiles(shape), shape.steps), x, arguments, CHANNELS=shape.channels)


def sums(grad: Tensor, x: Tensor, table: Tensor, out: Tensor, shape: Shape) -> None:
    """Launch `norm_sums`, and add up."""
    partial, (programs, each) = _partial(x, shape), _shares(shape)
    arguments = grad, x, table, partial, _pixels(shape), shape.steps // shape.groups, each
    launch(norm_sums, (programs, shape.steps), x, arguments, CHANNELS=shape.channels)
    _add_up(partial, out, shape)


def _add_up(partial: Tensor, out: Tensor, shape: Shape) -> None:
    torch.sum(partial.view(shape.groups, -1, 2, shape.channels), 1, dtype=torch.float64, out=out)


def gradients(
    grad: Tensor, x: Tensor, table: Tensor, sums: Tensor, out: Tensor, grad_weight: Tensor, grad_bias: Tensor,
    constant: bool, shape: Shape,
) -> None:  # fmt: skip
    """Launch `norm_grad_x`."""
    sizes = _pixels(shape), shape.groups, shape.steps // shape.groups, float(shape.samples)
    arguments = grad, x, table, sums, out, grad_weight, grad_bias, *sizes
    launch(norm_grad_x, (_tiles(shape), shape.steps), x, arguments, CONSTANT=constant, CHANNELS=shape.channels)


def fire(operands: Fire, options: Options) -> None:
    """Launch `norm_lif_fwd`."""
    o, shape = operands, operands.shape
    launch(
        norm_lif_fwd, (_tiles(shape),), o.m,
        (o.x, o.table, o.m_first, o.m, o.bits, o.spikes, o.m_kept, o.added, o.added_bits, o.decay,
         _pixels(shape), shape.steps, shape.steps // shape.groups, options.decay, options.threshold,
         options.reset_value, options.scale),
        RESET=options.reset, LEARNED=o.decay is not None, SCALE_BY_DECAY=options.scale_by_decay,
        KEEP=o.m_kept is not None, DENSE=o.spikes is not None,
        ADDS="map" if o.added is not None else "bits" if o.added_bits is not None else "", CHANNELS=shape.channels,
    )  # fmt: skip


def go_back(operands: GoBack, options: Options) -> None:
    """Launch `norm_lif_bwd`, and `plif_grad_w` if the decay's gradient is wanted."""
    o, shape = operands, operands.shape
    assert o.online or shape.steps == 1, "several steps that wait for one another are not taken (pending.takes_steps)"
    programs, each = _shares(shape)
    partial = _partial(o.x, shape)
    partial_w = None if o.grad_w is None else o.m.new_empty(shape.steps * programs)
    constants: dict[str, Any] = {"SCALE_BY_DECAY": options.scale_by_decay}
    launch(
        norm_lif_bwd, (programs, shape.steps), o.m,
        (o.x, o.table, o.m, o.grad, o.grad_spikes, o.grad_m, o.m_kept, o.m_first, o.grad_m_first, o.decay, partial,
         partial_w, _pixels(shape), shape.steps, shape.steps // shape.groups, each, options.decay, options.threshold,
         options.reset_value, options.scale, options.a, options.b),
        SURROGATE=surrogate(options.form), RESET=options.reset, DETACH_RESET=options.detach_reset,
        LEARNED=o.decay is not None, HAS_GRAD_SPIKES=o.grad_spikes is not None, HAS_GRAD_M=o.grad_m is not None,
        HAS_PAST=o.grad_m_first is not None, HAS_GRAD_W=o.grad_w is not None, CHANNELS=shape.channels, **constants,
    )  # fmt: skip
    _add_up(partial, o.sums, shape)
    if partial_w is not None:
        launch(plif_grad_w, (1,), o.m, (partial_w, o.decay, o.grad_w, partial_w.numel()), **constants)

"""Batch norm in one pass with LIF or PLIF, as Triton kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from ..lif.triton import decay_product, integrate, learned, plif_grad_w, through_reset
from ..triton_tile import launch, surrogate
from .operands import Fire, GoBack
from .triton_tile import (
    add_up,
    constants_of,
    mask_of,
    normalised,
    partial_sums,
    pixels,
    pixels_of,
    places_of,
    programs_and_tiles,
    programs_of_channels,
    row_of,
    store_sums,
    tiles,
)

if TYPE_CHECKING:
    from ..lif.ops import Options


@triton.jit
def bytes_of(i_tile, i_before, n, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr):
    """Where the bits of a tile are, after so many pixels of other time steps, and which of its bytes there are: each is
    of eight neighbours in memory, channels or pixels."""
    ROWS: tl.constexpr = BLOCK // WIDTH
    if RUN == 1:
        o_row, o_eight = pixels_of(i_tile, ROWS), tl.arange(0, WIDTH // 8)
        o_byte = (i_before + o_row)[:, None] * (CHANNELS // 8) + o_eight[None, :]
        mask = (o_row < n)[:, None]
        if CHANNELS % WIDTH != 0:
            mask = mask & (o_eight < CHANNELS // 8)[None, :]
    else:
        o_row = pixels_of(i_tile, ROWS // 8) * 8
        o_byte, mask = places_of(i_before + o_row, CHANNELS, WIDTH, RUN) // 8, (o_row < n)[:, None]
    return o_byte, mask


@triton.jit
def packed(b_fired, WIDTH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr):
    """The spikes of a tile as bytes."""
    EIGHTS: tl.constexpr = WIDTH // 8 if RUN == 1 else 1
    b_eights = tl.reshape(b_fired.to(tl.int32), (BLOCK // (8 * EIGHTS), EIGHTS, 8)) << tl.arange(0, 8)[None, None, :]
    return tl.sum(b_eights, axis=2).to(tl.uint8)


@triton.jit
def unpacked(b_bytes, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The spikes of a tile from its bytes."""
    b_bits = (b_bytes.to(tl.int32)[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
    return tl.reshape(b_bits, (BLOCK // WIDTH, WIDTH)).to(tl.float32)


@triton.jit(do_not_specialize=["steps", "steps_each"])
def norm_lif_fwd(
    p_x, p_table, p_m_first, p_m, p_bits, p_spikes, p_m_kept, p_added, p_added_bits, p_decay,
    n, steps, steps_each, decay, threshold, reset_value, scale,
    RESET: tl.constexpr, LEARNED: tl.constexpr, SCALE_BY_DECAY: tl.constexpr, KEEP: tl.constexpr, DENSE: tl.constexpr,
    ADDS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y[t] = x[t] · gain + offset (+ added[t]);  m[t] = decay · reset(m[t-1]) + scale · y[t];
    spikes[t] = m[t] >= threshold.

    m[-1] is m_first, p_m gets the last membrane, and p_m_kept the others. p_m may be p_m_first.
    """
    i_tile = tl.program_id(0).to(tl.int64)
    o_row = pixels_of(i_tile, BLOCK // WIDTH)
    o_m, mask = places_of(o_row, CHANNELS, WIDTH, RUN), mask_of(o_row, n, CHANNELS, WIDTH)
    decay, scale = learned(p_decay, decay, scale, LEARNED, SCALE_BY_DECAY)
    b_m = tl.load(p_m_first + o_m, mask=mask, other=0.0)
    i_t = tl.full((), 0, tl.int64)
    for _ in range(steps):
        b_gain = row_of(p_table, i_t // steps_each, 0, CHANNELS, WIDTH)
        b_offset = row_of(p_table, i_t // steps_each, 1, CHANNELS, WIDTH)
        o_n = i_t * n * CHANNELS + o_m
        o_byte, there = bytes_of(i_tile, i_t * n, n, CHANNELS, WIDTH, RUN, BLOCK)
        b_y = normalised(p_x, o_n, mask, b_gain, b_offset)
        if ADDS == "map":
            b_y += tl.load(p_added + o_n, mask=mask, other=0.0).to(tl.float32)
        if ADDS == "bits":
            b_y += unpacked(tl.load(p_added_bits + o_byte, mask=there, other=0), WIDTH, BLOCK)
        b_y = b_y.to(p_x.dtype.element_ty).to(tl.float32)
        b_m = integrate(b_m, scale * b_y, decay, threshold, reset_value, RESET)
        if KEEP:
            tl.store(p_m_kept + o_n, b_m, mask=mask & (i_t < steps - 1))
        b_fired = b_m >= threshold
        if DENSE:
            tl.store(p_spikes + o_n, tl.where(b_fired, 1.0, 0.0).to(p_spikes.dtype.element_ty), mask=mask)
        tl.store(p_bits + o_byte, packed(b_fired, WIDTH, RUN, BLOCK), mask=there)
        i_t += 1
    tl.store(p_m + o_m, b_m, mask=mask)


@triton.jit
def gradient_at(
    p_grad, p_grad_spikes, o_n, mask, b_g, b_m, threshold, scale, a, b,
    SURROGATE: tl.constexpr, HAS_GRAD_SPIKES: tl.constexpr,
):  # fmt: skip
    """g with the spikes' part, and grad = scale · g, which is written."""
    if HAS_GRAD_SPIKES:
        b_grad_spikes = tl.load(p_grad_spikes + o_n, mask=mask, other=0.0).to(tl.float32)
        b_g = b_g + b_grad_spikes * SURROGATE(b_m - threshold, a, b)
    b_grad = (scale * b_g).to(p_grad.dtype.element_ty)
    tl.store(p_grad + o_n, b_grad, mask=mask)
    return b_g, b_grad


@triton.jit
def sums_of(p_x, o_n, mask, b_grad, b_mean):
    """Σ grad and Σ grad · (x - mean) of a tile."""
    b_grad = tl.where(mask, b_grad.to(tl.float32), 0.0)
    b_x = tl.load(p_x + o_n, mask=mask, other=0.0).to(tl.float32)
    return tl.sum(b_grad, axis=0), tl.sum(b_grad * (b_x - b_mean), axis=0)


@triton.jit(do_not_specialize=["steps", "steps_each", "tiles_each"])
def norm_lif_bwd(
    p_x, p_table, p_m, p_grad, p_grad_spikes, p_grad_m, p_m_kept, p_m_first, p_grad_m_first, p_decay, p_partial,
    p_partial_w, n, steps, steps_each, tiles_each, decay, threshold, reset_value, scale, a, b,
    SURROGATE: tl.constexpr, RESET: tl.constexpr, DETACH_RESET: tl.constexpr, LEARNED: tl.constexpr,
    SCALE_BY_DECAY: tl.constexpr, HAS_GRAD_SPIKES: tl.constexpr, HAS_GRAD_M: tl.constexpr, HAS_PAST: tl.constexpr,
    HAS_GRAD_W: tl.constexpr,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """g = grad_m + grad_spikes · surrogate(m - threshold);  grad = scale · g;  grad_m_first = decay · g · reset'(m');
    partial = Σ grad and Σ grad · (x - mean) of this program's pixels, and Σ of what each neuron adds to the decay's.

    Of one time step, or online of each of several, which do not wait for one another; m' is the membrane before.
    """
    ROWS: tl.constexpr = BLOCK // WIDTH
    i_program, i_t = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    decay, scale = learned(p_decay, decay, scale, LEARNED, SCALE_BY_DECAY)
    p_past = p_m_first
    if i_t > 0:
        p_past = p_m_kept + (i_t - 1) * n * CHANNELS
    if i_t < steps - 1:
        p_m = p_m_kept + i_t * n * CHANNELS
    b_mean = row_of(p_table, i_t // steps_each, 2, CHANNELS, WIDTH)
    b_alone = tl.zeros((WIDTH,), tl.float32)
    b_with_x = tl.zeros((WIDTH,), tl.float32)
    b_products = tl.zeros((ROWS, WIDTH), tl.float32)
    for i_tile in range(tiles_each):
        o_row = pixels_of(i_program * tiles_each + i_tile, ROWS)
        o_m, mask = places_of(o_row, CHANNELS, WIDTH, RUN), mask_of(o_row, n, CHANNELS, WIDTH)
        o_n = i_t * n * CHANNELS + o_m
        b_m = tl.load(p_m + o_m, mask=mask, other=0.0)
        b_g = tl.full((ROWS, WIDTH), -0.0, tl.float32)  # which leaves every number as it is when it is added
        if HAS_GRAD_M:
            b_g = tl.load(p_grad_m + o_m, mask=mask, other=0.0)
        b_g, b_grad = gradient_at(
            p_grad, p_grad_spikes, o_n, mask, b_g, b_m, threshold, scale, a, b, SURROGATE, HAS_GRAD_SPIKES
        )
        if HAS_PAST or HAS_GRAD_W:
            b_past = tl.load(p_past + o_m, mask=mask, other=0.0)
            if HAS_GRAD_W:
                b_product = decay_product(b_g, b_m, b_past, threshold, reset_value, RESET, SCALE_BY_DECAY)
                b_products += tl.where(mask, b_product, 0.0)
            if HAS_PAST:
                b_back = decay * b_g
                b_back = through_reset(b_back, b_past, threshold, reset_value, a, b, SURROGATE, RESET, DETACH_RESET)
                tl.store(p_grad_m_first + o_m, b_back, mask=mask)
        b_own_alone, b_own_with_x = sums_of(p_x, o_n, mask, b_grad, b_mean)
        b_alone += b_own_alone
        b_with_x += b_own_with_x
    store_sums(p_partial, i_t, b_alone, b_with_x, CHANNELS, WIDTH)
    if HAS_GRAD_W:
        store_product(p_partial_w, b_products)


@triton.jit
def store_product(p_partial_w, b_products):
    """This program's part of the decay's gradient."""
    i_row = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(p_partial_w + (i_row * tl.num_programs(0) + tl.program_id(0)), tl.sum(b_products))


@triton.jit(do_not_specialize=["steps", "steps_each"])
def norm_lif_steps_bwd(
    p_x, p_table, p_m, p_grad, p_grad_spikes, p_grad_m, p_m_kept, p_m_first, p_grad_m_first, p_decay, p_partial,
    p_partial_w, n, steps, steps_each, decay, threshold, reset_value, scale, a, b,
    SURROGATE: tl.constexpr, RESET: tl.constexpr, DETACH_RESET: tl.constexpr, LEARNED: tl.constexpr,
    SCALE_BY_DECAY: tl.constexpr, HAS_GRAD_SPIKES: tl.constexpr, HAS_GRAD_M: tl.constexpr, HAS_PAST: tl.constexpr,
    HAS_GRAD_W: tl.constexpr,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same of several time steps, the last one first: grad_m of a step is decay · g · reset'(m) of the next.

    A program has one tile, so the sums of each time step are those of this tile.
    """
    o_row = pixels_of(tl.program_id(0).to(tl.int64), BLOCK // WIDTH)
    o_m, mask = places_of(o_row, CHANNELS, WIDTH, RUN), mask_of(o_row, n, CHANNELS, WIDTH)
    decay, scale = learned(p_decay, decay, scale, LEARNED, SCALE_BY_DECAY)
    b_m = tl.load(p_m + o_m, mask=mask, other=0.0)
    b_g = tl.full((BLOCK // WIDTH, WIDTH), -0.0, tl.float32)
    if HAS_GRAD_M:
        b_g = tl.load(p_grad_m + o_m, mask=mask, other=0.0)
    b_products = tl.zeros((BLOCK // WIDTH, WIDTH), tl.float32)
    i_t = (steps - 1).to(tl.int64)
    for _ in range(steps - 1):
        b_mean = row_of(p_table, i_t // steps_each, 2, CHANNELS, WIDTH)
        o_n = i_t * n * CHANNELS + o_m
        b_g, b_grad = gradient_at(
            p_grad, p_grad_spikes, o_n, mask, b_g, b_m, threshold, scale, a, b, SURROGATE, HAS_GRAD_SPIKES
        )
        b_alone, b_with_x = sums_of(p_x, o_n, mask, b_grad, b_mean)
        store_sums(p_partial, i_t, b_alone, b_with_x, CHANNELS, WIDTH)
        i_t -= 1
        b_past = tl.load(p_m_kept + (i_t * n * CHANNELS + o_m), mask=mask, other=0.0)
        if HAS_GRAD_W:
            b_product = decay_product(b_g, b_m, b_past, threshold, reset_value, RESET, SCALE_BY_DECAY)
            b_products += tl.where(mask, b_product, 0.0)
        b_g = through_reset(decay * b_g, b_past, threshold, reset_value, a, b, SURROGATE, RESET, DETACH_RESET)
        b_m = b_past
    b_mean = row_of(p_table, i_t, 2, CHANNELS, WIDTH)
    b_g, b_grad = gradient_at(
        p_grad, p_grad_spikes, o_m, mask, b_g, b_m, threshold, scale, a, b, SURROGATE, HAS_GRAD_SPIKES
    )
    b_alone, b_with_x = sums_of(p_x, o_m, mask, b_grad, b_mean)
    store_sums(p_partial, i_t, b_alone, b_with_x, CHANNELS, WIDTH)
    if HAS_PAST or HAS_GRAD_W:
        b_past = tl.load(p_m_first + o_m, mask=mask, other=0.0)
        if HAS_GRAD_W:
            b_product = decay_product(b_g, b_m, b_past, threshold, reset_value, RESET, SCALE_BY_DECAY)
            store_product(p_partial_w, b_products + tl.where(mask, b_product, 0.0))
        if HAS_PAST:
            b_g = through_reset(decay * b_g, b_past, threshold, reset_value, a, b, SURROGATE, RESET, DETACH_RESET)
            tl.store(p_grad_m_first + o_m, b_g, mask=mask)


def fire(operands: Fire, options: Options) -> None:
    """Launch `norm_lif_fwd`."""
    o, shape = operands, operands.shape
    launch(
        norm_lif_fwd, (tiles(shape), 1, programs_of_channels(shape)), o.m,
        (o.x, o.table, o.m_first, o.m, o.bits, o.spikes, o.m_kept, o.added, o.added_bits, o.decay,
         pixels(shape), shape.steps, shape.steps // shape.groups, options.decay, options.threshold,
         options.reset_value, options.scale),
        RESET=options.reset, LEARNED=o.decay is not None, SCALE_BY_DECAY=options.scale_by_decay,
        KEEP=o.m_kept is not None, DENSE=o.spikes is not None,
        ADDS="map" if o.added is not None else "bits" if o.added_bits is not None else "", **constants_of(shape),
    )  # fmt: skip


def go_back(operands: GoBack, options: Options) -> None:
    """Launch `norm_lif_bwd` or `norm_lif_steps_bwd`, and `plif_grad_w` if the decay's gradient is wanted."""
    o, shape = operands, operands.shape
    together = o.online or shape.steps == 1
    programs, each = programs_and_tiles(shape) if together else (tiles(shape), 1)
    grid = programs, shape.steps if together else 1, programs_of_channels(shape)
    partial = partial_sums(o.x, shape, programs)
    partial_w = None if o.grad_w is None else o.m.new_empty(grid[0] * grid[1] * grid[2])
    constants: dict[str, Any] = {"SCALE_BY_DECAY": options.scale_by_decay}
    launch(
        norm_lif_bwd if together else norm_lif_steps_bwd, grid, o.m,
        (o.x, o.table, o.m, o.grad, o.grad_spikes, o.grad_m, o.m_kept, o.m_first, o.grad_m_first, o.decay, partial,
         partial_w, pixels(shape), shape.steps, shape.steps // shape.groups, *([each] if together else []),
         options.decay, options.threshold, options.reset_value, options.scale, options.a, options.b),
        SURROGATE=surrogate(options.form), RESET=options.reset, DETACH_RESET=options.detach_reset,
        LEARNED=o.decay is not None, HAS_GRAD_SPIKES=o.grad_spikes is not None, HAS_GRAD_M=o.grad_m is not None,
        HAS_PAST=o.grad_m_first is not None, HAS_GRAD_W=o.grad_w is not None, **constants, **constants_of(shape),
    )  # fmt: skip
    add_up(partial, o.sums, shape)
    if partial_w is not None:
        launch(plif_grad_w, (1,), o.m, (partial_w, o.decay, o.grad_w, partial_w.numel()), **constants)

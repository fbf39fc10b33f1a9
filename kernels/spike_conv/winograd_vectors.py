"""Winograd's transforms F(2 × 2, 3 × 3) for 16 channels at a time, as LLVM instructions.

In the names of Lavin and Gray (Fast Algorithms for Convolutional Neural Networks): a window d of 4 × 4 pixels and a
kernel g of 3 × 3 give the 2 × 2 outputs Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A. Addresses are integers, as in `vectors`; a pitch is
the bytes from one of the 16 places of a window, or from one tile, to the next.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vectors import FLOATS, LANES, addresses_in, load, rows_at, store

WINDOW, PLACES = 4, 16
_DIFFERENCES = ((0, 2, "fsub"), (1, 2, "fadd"), (2, 1, "fsub"), (1, 3, "fsub"))
"""Bᵀ: each row is the difference or the sum of two."""


@intrinsic
def transform_window(typingctx, pixels, offset, target, pitch):
    """Write Bᵀ d B at `target`; `pixels` is a table of the addresses of d's pixels, row by row."""

    def generate(context, builder, signature, args):
        pixels, offset, target, pitch = args
        seen, places = addresses_in(builder, pixels, PLACES, offset), rows_at(builder, target, pitch, PLACES)
        # A row of Bᵀ d at a time: its pixels are loaded twice, from the first-level cache, but few registers are held.
        for i, (first, second, combine) in enumerate(_DIFFERENCES):
            pairs = [
                (load(builder, seen[WINDOW * first + j]), load(builder, seen[WINDOW * second + j])) for j in range(4)
            ]
            row = [getattr(builder, combine)(*pair) for pair in pairs]
            for j, (left, right, across) in enumerate(_DIFFERENCES):
                store(builder, getattr(builder, across)(row[left], row[right]), places[WINDOW * i + j])
        return context.get_dummy_value()

    return types.void(pixels, offset, target, pitch), generate


@intrinsic
def transform_products(typingctx, source, pitch, pixels, offset):
    """Write Aᵀ m A, 2 × 2 pixels; `pixels` is a table of their addresses, row by row."""

    def generate(context, builder, signature, args):
        source, pitch, pixels, offset = args
        m = [load(builder, place) for place in rows_at(builder, source, pitch, PLACES)]

        def halves(a, b, c, d):
            return (
                builder.fadd(a, builder.fadd(b, c)),
                builder.fsub(builder.fsub(b, c), d),
            )

        columns = [halves(*m[j::WINDOW]) for j in range(WINDOW)]
        values = [value for i in range(2) for value in halves(*(column[i] for column in columns))]
        for value, place in zip(values, addresses_in(builder, pixels, 4, offset), strict=True):
            store(builder, value, place)
        return context.get_dummy_value()

    return types.void(source, pitch, pixels, offset), generate


@intrinsic
def transform_weight(typingctx, source, tap, target, pitch):
    """Write G g Gᵀ of a kernel that is turned by 180 degrees; its taps are `tap` bytes apart, row by row."""

    def generate(context, builder, signature, args):
        source, tap, target, pitch = args
        taps = [load(builder, place) for place in rows_at(builder, source, tap, 9)][::-1]
        half = ir.Constant(FLOATS, [0.5] * LANES)

        def spread(a, b, c):
            outer = builder.fadd(a, c)
            return a, builder.fmul(half, builder.fadd(outer, b)), builder.fmul(half, builder.fsub(outer, b)), c

        columns = [spread(*taps[j::3]) for j in range(3)]
        values = [value for i in range(WINDOW) for value in spread(*(column[i] for column in columns))]
        for value, place in zip(values, rows_at(builder, target, pitch, PLACES), strict=True):
            store(builder, value, place)
        return context.get_dummy_value()

    return types.void(source, tap, target, pitch), generate

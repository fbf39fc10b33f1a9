"""Winograd's transforms F(2 × 2, 3 × 3) and the products between them, for 16 channels at a time, as LLVM instructions.

In the names of Lavin and Gray (Fast Algorithms for Convolutional Neural Networks): a window d of 4 × 4 pixels and a
kernel g of 3 × 3 give the 2 × 2 outputs Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A. Addresses are integers, as in `vectors`; a pitch is
the bytes from one of the 16 places of a window, or from one tile, to the next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vectors import FLOATS, INT64, LANES, VECTOR_BYTES, constant, floats_at, rows_at

WINDOW, PLACES = 4, 16
_SPREAD = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
_DIFFERENCES = ((0, 2, "fsub"), (1, 2, "fadd"), (2, 1, "fsub"), (1, 3, "fsub"))
"""Bᵀ: each row is the difference or the sum of two."""


def _load(builder: ir.IRBuilder, address: ir.Value, offset: int = 0) -> ir.Value:
    return builder.load(floats_at(builder, address, offset), align=4)


def _store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, floats_at(builder, address), align=4)


def _addresses(builder: ir.IRBuilder, table: ir.Value, count: int, offset: ir.Value) -> list[ir.Value]:
    """The addresses in a table, each so many bytes further on."""
    places = (builder.inttoptr(builder.add(table, constant(8 * k)), INT64.as_pointer()) for k in range(count))
    return [builder.add(builder.load(place, align=8), offset) for place in places]


@intrinsic
def transform_window(typingctx, pixels, offset, target, pitch):
    """Write Bᵀ d B at `target`; `pixels` is a table of the addresses of d's pixels, row by row."""

    def generate(context, builder, signature, args):
        pixels, offset, target, pitch = args
        seen, places = _addresses(builder, pixels, PLACES, offset), rows_at(builder, target, pitch, PLACES)
        # A row of Bᵀ d at a time: its pixels are loaded twice, from the first-level cache, but few registers are held.
        for i, (first, second, combine) in enumerate(_DIFFERENCES):
            pairs = [
                (_load(builder, seen[WINDOW * first + j]), _load(builder, seen[WINDOW * second + j])) for j in range(4)
            ]
            row = [getattr(builder, combine)(*pair) for pair in pairs]
            for j, (left, right, across) in enumerate(_DIFFERENCES):
                _store(builder, getattr(builder, across)(row[left], row[right]), places[WINDOW * i + j])
        return context.get_dummy_value()

    return types.void(pixels, offset, target, pitch), generate


@intrinsic
def transform_products(typingctx, source, pitch, pixels, offset):
    """Write Aᵀ m A, 2 × 2 pixels; `pixels` is a table of their addresses, row by row."""

    def generate(context, builder, signature, args):
        source, pitch, pixels, offset = args
        m = [_load(builder, place) for place in rows_at(builder, source, pitch, PLACES)]

        def halves(a, b, c, d):
            return (
                builder.fadd(a, builder.fadd(b, c)),
                builder.fsub(builder.fsub(b, c), d),
            )

        columns = [halves(*m[j::WINDOW]) for j in range(WINDOW)]
        values = [value for i in range(2) for value in halves(*(column[i] for column in columns))]
        for value, place in zip(values, _addresses(builder, pixels, 4, offset), strict=True):
            _store(builder, value, place)
        return context.get_dummy_value()

    return types.void(source, pitch, pixels, offset), generate


@intrinsic
def transform_weight(typingctx, source, tap, target, pitch):
    """Write G g Gᵀ of a kernel that is turned by 180 degrees; its taps are `tap` bytes apart, row by row."""

    def generate(context, builder, signature, args):
        source, tap, target, pitch = args
        taps = [_load(builder, place) for place in rows_at(builder, source, tap, 9)][::-1]
        half = ir.Constant(FLOATS, [0.5] * LANES)

        def spread(a, b, c):
            outer = builder.fadd(a, c)
            return a, builder.fmul(half, builder.fadd(outer, b)), builder.fmul(half, builder.fsub(outer, b)), c

        columns = [spread(*taps[j::3]) for j in range(3)]
        values = [value for i in range(WINDOW) for value in spread(*(column[i] for column in columns))]
        for value, place in zip(values, rows_at(builder, target, pitch, PLACES), strict=True):
            _store(builder, value, place)
        return context.get_dummy_value()

    return types.void(source, tap, target, pitch), generate


@functools.cache
def multiply(tiles: int) -> Callable:
    """A function that multiplies a matrix of `tiles` rows by one of 16 columns, whose rows lie one after the other.

    All sums are in registers; `count`, the number of products in each, must be a multiple of 16.
    """

    @intrinsic
    def product(typingctx, left, pitch, right, count, target):
        def generate(context, builder, signature, args):
            left, pitch, right, count, target = args
            multiply_add = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), f"llvm.fmuladd.v{LANES}f32"
            )
            rows = rows_at(builder, left, pitch, tiles)
            before, loop = builder.block, builder.append_basic_block("products")
            after = builder.append_basic_block("sums")
            builder.branch(loop)
            builder.position_at_end(loop)
            done, sums = builder.phi(INT64), [builder.phi(FLOATS) for _ in range(tiles)]
            totals = list(sums)
            for k in range(LANES):
                place = builder.add(done, constant(k))
                weights = _load(builder, builder.add(right, builder.mul(place, constant(VECTOR_BYTES))))
                for row, start in enumerate(rows):
                    one = builder.inttoptr(
                        builder.add(start, builder.mul(place, constant(4))), ir.FloatType().as_pointer()
                    )
                    alone = builder.insert_element(
                        ir.Constant(FLOATS, ir.Undefined), builder.load(one, align=4), ir.Constant(ir.IntType(32), 0)
                    )
                    spread = builder.shuffle_vector(alone, alone, _SPREAD)
                    totals[row] = builder.call(multiply_add, [spread, weights, totals[row]])
            following = builder.add(done, constant(LANES))
            for phi, start, end in zip(
                (done, *sums), (constant(0), *[ir.Constant(FLOATS, [0.0] * LANES)] * tiles), (following, *totals),
                strict=True,
            ):  # fmt: skip
                phi.add_incoming(start, before)
                phi.add_incoming(end, loop)
            builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
            builder.position_at_end(after)
            for row, total in enumerate(totals):
                _store(builder, total, builder.add(target, constant(row * VECTOR_BYTES)))
            return context.get_dummy_value()

        return types.void(left, pitch, right, count, target), generate

    return product

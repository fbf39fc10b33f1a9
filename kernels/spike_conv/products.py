"""Products of matrices for 16 columns of floats at a time, as LLVM instructions. Addresses are integers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .vectors import FLOATS, INT64, LANES, VECTOR_BYTES, addresses_in, constant, floats_at, load, rows_at, store

_SPREAD = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
_ZEROS = ir.Constant(FLOATS, [0.0] * LANES)


@functools.cache
def sums_held() -> int:
    """Vectors of sums for which a matrix product has registers, beside those of its operands."""
    wide = "+avx512f" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return 24 if wide else 6


def _add_products(
    builder: ir.IRBuilder, lefts: Sequence[ir.Value], right: ir.Value, count: ir.Value, starts: Sequence[ir.Value]
) -> list[ir.Value]:
    """Sums of `count` products, added to `starts`: each of the rows at `lefts` times the matrix at `right`, whose rows
    of a few vectors lie one after the other. All sums are in registers; `count` must be a multiple of 16."""
    multiply_add = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), f"llvm.fmuladd.v{LANES}f32"
    )
    vectors = len(starts) // len(lefts)
    before, loop = builder.block, builder.append_basic_block("products")
    after = builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    done, sums = builder.phi(INT64), [builder.phi(FLOATS) for _ in starts]
    totals = list(sums)
    together = LANES // vectors
    for k in range(together):
        place = builder.add(done, constant(k))
        weights = builder.add(right, builder.mul(place, constant(vectors * VECTOR_BYTES)))
        columns = [load(builder, weights, v * VECTOR_BYTES) for v in range(vectors)]
        for row, start in enumerate(lefts):
            one = builder.inttoptr(builder.add(start, builder.mul(place, constant(4))), ir.FloatType().as_pointer())
            alone = builder.insert_element(
                ir.Constant(FLOATS, ir.Undefined), builder.load(one, align=4), ir.Constant(ir.IntType(32), 0)
            )
            spread = builder.shuffle_vector(alone, alone, _SPREAD)
            for v, column in enumerate(columns):
                place_of_sum = row * vectors + v
                totals[place_of_sum] = builder.call(multiply_add, [spread, column, totals[place_of_sum]])
    following = builder.add(done, constant(together))
    for phi, start, end in zip((done, *sums), (constant(0), *starts), (following, *totals), strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(end, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    return totals


@functools.cache
def multiply(rows: int) -> Callable:
    """A function that writes the product of a matrix of so many rows, which are `pitch` bytes apart, and one of 16
    columns."""

    @intrinsic
    def product(typingctx, left, pitch, right, count, target):
        def generate(context, builder, signature, args):
            left, pitch, right, count, target = args
            totals = _add_products(builder, rows_at(builder, left, pitch, rows), right, count, [_ZEROS] * rows)
            for row, total in enumerate(totals):
                store(builder, total, builder.add(target, constant(row * VECTOR_BYTES)))
            return context.get_dummy_value()

        return types.void(left, pitch, right, count, target), generate

    return product


@functools.cache
def multiply_and_add(rows: int, vectors: int) -> Callable:
    """A function that adds the product of a matrix of so many rows and one of `vectors` × 16 columns to what is there.
    `lefts` and `targets` are tables of the rows' addresses; the left ones are `offset` bytes further on."""

    @intrinsic
    def product(typingctx, lefts, offset, right, count, targets):
        def generate(context, builder, signature, args):
            lefts, offset, right, count, targets = args
            from_rows = addresses_in(builder, lefts, rows, offset)
            to_rows = addresses_in(builder, targets, rows, constant(0))
            places = [builder.add(row, constant(v * VECTOR_BYTES)) for row in to_rows for v in range(vectors)]
            starts = [builder.load(floats_at(builder, place), align=4) for place in places]
            for place, total in zip(places, _add_products(builder, from_rows, right, count, starts), strict=True):
                store(builder, total, place)
            return context.get_dummy_value()

        return types.void(lefts, offset, right, count, targets), generate

    return product


@functools.cache
def prefetch_vectors(vectors: int) -> Callable:
    """A function that has so many vectors brought into the second-level cache. Any address will do."""

    @intrinsic
    def prefetch(typingctx, address):
        def generate(context, builder, signature, args):
            bytes_at, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [bytes_at] + [number] * 3)
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            how = [ir.Constant(number, value) for value in (0, 2, 1)]  # for reading, second level, data
            for v in range(vectors):
                place = builder.add(args[0], constant(v * VECTOR_BYTES))
                builder.call(function, [builder.inttoptr(place, bytes_at), *how])
            return context.get_dummy_value()

        return types.void(address), generate

    return prefetch

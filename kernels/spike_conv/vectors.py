"""What the convolution's loops do to whole vectors, written as LLVM instructions, as numba has no form for them.

Addresses are integers. LLVM splits a vector of 16 floats if the machine's vectors are narrower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
VECTOR_BYTES = 4 * LANES
INT64 = ir.IntType(64)
FLOATS = ir.VectorType(ir.FloatType(), LANES)
_BYTES = ir.VectorType(ir.IntType(8), 64)


def constant(value: int) -> ir.Constant:
    return ir.Constant(INT64, value)


def floats_at(builder: ir.IRBuilder, address: ir.Value, offset: int = 0) -> ir.Value:
    return builder.inttoptr(builder.add(address, constant(offset)), FLOATS.as_pointer())


def load(builder: ir.IRBuilder, address: ir.Value, offset: int = 0) -> ir.Value:
    return builder.load(floats_at(builder, address, offset), align=4)


def store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, floats_at(builder, address), align=4)


def addresses_in(builder: ir.IRBuilder, table: ir.Value, count: int, offset: ir.Value) -> list[ir.Value]:
    """The addresses in a table, each so many bytes further on."""
    places = (builder.inttoptr(builder.add(table, constant(8 * k)), INT64.as_pointer()) for k in range(count))
    return [builder.add(builder.load(place, align=8), offset) for place in places]


def rows_at(builder: ir.IRBuilder, address: ir.Value, pitch: ir.Value, count: int) -> list[ir.Value]:
    return [builder.add(address, builder.mul(pitch, constant(row))) for row in range(count)]


def _shuffle(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, lanes: list[int]) -> ir.Value:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


@intrinsic
def address_of(typingctx, place):
    """A pointer as an integer."""
    return types.int64(place), lambda context, builder, signature, args: builder.ptrtoint(args[0], INT64)


@intrinsic
def word_at(typingctx, address):
    """64 bits that start at any byte."""

    def generate(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], INT64.as_pointer()), align=1)

    return types.uint64(address), generate


def _transposing(adds: bool, says: str) -> Callable:
    """A function that writes 16 × 16 floats, rows to columns, or `adds` them to what is there. A pitch is the bytes
    from one row to the next."""

    def transpose(typingctx, source, source_pitch, target, target_pitch):
        def generate(context, builder, signature, args):
            source, source_pitch, target, target_pitch = args
            rows = [
                builder.load(floats_at(builder, row), align=4) for row in rows_at(builder, source, source_pitch, LANES)
            ]
            # Swap the off-diagonal quarters of ever smaller squares.
            for half in (8, 4, 2, 1):
                first = [lane if not lane & half else lane - half + LANES for lane in range(LANES)]
                second = [lane + half if not lane & half else lane + LANES for lane in range(LANES)]
                for i in (i for i in range(LANES) if not i & half):
                    a, b = rows[i], rows[i + half]
                    rows[i], rows[i + half] = _shuffle(builder, a, b, first), _shuffle(builder, a, b, second)
            for row, address in zip(rows, rows_at(builder, target, target_pitch, LANES), strict=True):
                place = floats_at(builder, address)
                builder.store(builder.fadd(builder.load(place, align=4), row) if adds else row, place, align=4)
            return context.get_dummy_value()

        return types.void(source, source_pitch, target, target_pitch), generate

    transpose.__doc__ = says
    return intrinsic(transpose)


transpose_floats = _transposing(False, "Write 16 × 16 floats, rows to columns.")
add_transposed_floats = _transposing(True, "Add 16 × 16 floats, rows to columns.")


@intrinsic
def transpose_bits(typingctx, address):
    """Transpose 64 words of 64 bits, in place."""

    def generate(context, builder, signature, args):
        places = [builder.add(args[0], constant(8 * word)) for word in range(64)]
        loaded = [builder.load(builder.inttoptr(place, _BYTES.as_pointer()), align=8) for place in places[::8]]
        # Halves of even and of odd bytes, three times: the last has, for each byte of a word, that byte of all words.
        groups = {0: loaded}
        for bit in range(3):
            halves = {}
            for byte, vectors in groups.items():
                for odd in (0, 1):
                    lanes = list(range(odd, 128, 2))
                    pairs = zip(vectors[::2], vectors[1::2], strict=True)
                    halves[byte | odd << bit] = [_shuffle(builder, a, b, lanes) for a, b in pairs]
            groups = halves
        zero = ir.Constant(_BYTES, [0] * 64)
        for byte, (vector,) in groups.items():
            for bit in reversed(range(8)):  # the sign is the highest bit; doubling moves the next one there
                signs = builder.bitcast(builder.icmp_signed("<", vector, zero), INT64)
                builder.store(signs, builder.inttoptr(places[8 * byte + bit], INT64.as_pointer()), align=8)
                vector = builder.add(vector, vector)
        return context.get_dummy_value()

    return types.void(address), generate


@functools.cache
def subset_sums(vectors: int, count: int) -> Callable:
    """A function that writes the sums of the subsets of `count` rows of `vectors` × 16 floats: table[m] is the sum of
    the rows whose bit is set in m."""

    @intrinsic
    def build(typingctx, rows, pitch, table):
        def generate(context, builder, signature, args):
            rows, pitch, table = args
            for k in range(vectors):
                row = [load(builder, place, k * VECTOR_BYTES) for place in rows_at(builder, rows, pitch, count)]
                sums = [ir.Constant(FLOATS, [0.0] * LANES)]
                for place in range(count):
                    sums += [
                        row[place] if m == 0 else builder.fadd(so_far, row[place]) for m, so_far in enumerate(sums)
                    ]
                for m, total in enumerate(sums):
                    builder.store(
                        total, floats_at(builder, table, (m * vectors + k) * VECTOR_BYTES), align=VECTOR_BYTES
                    )
            return context.get_dummy_value()

        return types.void(rows, pitch, table), generate

    return build


@functools.cache
def add_subsets(vectors: int, digits: int, bits: int) -> Callable:
    """A function that adds to `vectors` × 16 floats, for each digit of so many bits of a word, the sum it selects from
    its table."""

    @intrinsic
    def add(typingctx, target, tables, word):
        def generate(context, builder, signature, args):
            target, tables, word = args
            total = [load(builder, target, k * VECTOR_BYTES) for k in range(vectors)]
            size = vectors * VECTOR_BYTES
            for digit in range(digits):
                chosen = builder.and_(builder.lshr(word, constant(bits * digit)), constant(2**bits - 1))
                row = builder.add(tables, builder.mul(chosen, constant(size)))
                for k in range(vectors):
                    place = floats_at(builder, row, (digit * 2**bits * size) + k * VECTOR_BYTES)
                    total[k] = builder.fadd(total[k], builder.load(place, align=VECTOR_BYTES))
            for k in range(vectors):
                builder.store(total[k], floats_at(builder, target, k * VECTOR_BYTES), align=4)
            return context.get_dummy_value()

        return types.void(target, tables, word), generate

    return add

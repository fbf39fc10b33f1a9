"""The names a surrogate may use (`where`, `abs`, `exp`) for numba, written so that LLVM vectorises loops with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693145751953125)
_LN2_LOW = np.float32(1.42860682030941723212e-6)
_ROUND = np.float32(1.5 * 2**23)  # adding it rounds to a whole number, which is then in the lowest bits
_ONE_BITS = np.uint32(0x3F800000)
_LOWEST = np.float32(-87.0)  # below this exp is under the smallest normal float32: take it as exp(-87) ~ 1.6e-38
_POLYNOMIAL = tuple(np.float32(c) for c in (1.0, 1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040))


@numba.njit(inline="always")
def where(condition, value, otherwise):
    return value if condition else otherwise


@numba.njit(inline="always")
def abs(x):  # noqa: A001 - the surrogates' name for it
    return np.abs(x)


def exp(x):
    """exp for x <= 0, which is all that the surrogates need: within 2 ulp in float32, math.exp in float64."""
    raise NotImplementedError("compiled code only")


@overload(exp, inline="always")
def _exp(x):
    return _exp_float32 if x == types.float32 else _exp_float64


def _exp_float64(x):
    return math.exp(x)


def _exp_float32(x):
    # libm's scalar expf would keep the loop from vectorising (5x slower): exp(x) = 2^k · e^r with |r| <= ln2 / 2.
    clamped = max(x, _LOWEST)  # NaN stays NaN
    shifted = multiply_add(clamped, _LOG2E, _ROUND)  # its low bits are k
    k = shifted - _ROUND
    r = multiply_add(k, -_LN2_LOW, multiply_add(k, -_LN2_HIGH, clamped))
    p = multiply_add(_POLYNOMIAL[7], r, _POLYNOMIAL[6])
    p = multiply_add(p, r, _POLYNOMIAL[5])
    p = multiply_add(p, r, _POLYNOMIAL[4])
    p = multiply_add(p, r, _POLYNOMIAL[3])
    p = multiply_add(p, r, _POLYNOMIAL[2])
    p = multiply_add(p, r, _POLYNOMIAL[1])
    p = multiply_add(p, r, _POLYNOMIAL[0])
    # A product, not a sum of bit patterns: that would lose a NaN.
    return p * float32_from_bits(np.uint32(np.uint32(bits_from_float32(shifted) << np.uint32(23)) + _ONE_BITS))


@intrinsic
def multiply_add(typingctx, x, y, z):
    """x · y + z in float32, with one rounding where the machine has the instruction for it."""

    def generate(context, builder, signature, args):
        number = ir.FloatType()
        signature = ir.FunctionType(number, [number] * 3)
        return builder.call(builder.module.declare_intrinsic("llvm.fmuladd", [number], signature), args)

    return types.float32(x, y, z), generate


@intrinsic
def float32_from_bits(typingctx, bits):
    """The float32 with these 32 bits."""
    return types.float32(bits), lambda context, builder, signature, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic
def bits_from_float32(typingctx, value):
    """The 32 bits of a float32."""
    return types.uint32(value), lambda context, builder, signature, args: builder.bitcast(args[0], ir.IntType(32))


@intrinsic
def _half_to_float32(typingctx, bits):
    def generate(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(bits), generate


@intrinsic
def _float32_to_half(typingctx, value):
    def generate(context, builder, signature, args):
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(value), generate


@numba.njit(inline="always")
def _bfloat16_to_float32(bits):
    return float32_from_bits(np.uint32(np.uint32(bits) << np.uint32(16)))


@numba.njit(inline="always")
def _float32_to_bfloat16(value):
    bits = bits_from_float32(value)
    rounded = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))  # to nearest, ties to even
    quiet_nan = np.uint32(0x7FC00000)
    return np.uint16((rounded if value == value else quiet_nan) >> np.uint32(16))


@numba.njit(inline="always")
def _same(value):
    return value


class Element(NamedTuple):
    """An element type of x, spikes and gradients, as compiled loops see it."""

    memory: type
    arithmetic: type
    widen: Callable
    """Converts an element from memory to the type of the arithmetic."""
    narrow: Callable
    """And back."""


ELEMENTS = {
    "float32": Element(np.float32, np.float32, _same, _same),
    "float64": Element(np.float64, np.float64, _same, _same),
    "bfloat16": Element(np.uint16, np.float32, _bfloat16_to_float32, _float32_to_bfloat16),
    "float16": Element(np.uint16, np.float32, _half_to_float32, _float32_to_half),
}


def element(dtype: torch.dtype) -> Element:
    """The row of `ELEMENTS` for a torch dtype."""
    return ELEMENTS[str(dtype).removeprefix("torch.")]

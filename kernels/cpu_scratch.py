"""Scratch space on a compiled loop's stack."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def scratch(count: int, element: type[np.floating]) -> Callable:
    """A function for compiled loops that returns the address of `count` uninitialised elements, always the same ones.

    LLVM knows that no operand overlaps them, so it vectorises loops that write there.
    """
    llvm_type = {np.float32: ir.FloatType(), np.float64: ir.DoubleType()}[element]

    @intrinsic
    def room(typingctx):
        def generate(context, builder, signature, args):
            with builder.goto_entry_block():  # not where it is called: a loop would allocate again in every iteration
                array = builder.alloca(ir.ArrayType(llvm_type, count))
            array.align = 64
            return builder.bitcast(array, ir.IntType(8).as_pointer())

        return types.voidptr(), generate

    return room

"""Unpacking on CPU: one pass, compiled by numba, on torch's threads."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_math import element
from ..cpu_threads import CHUNK, Kernel, claim, compile_kernel, pointer, run


class _Record(ctypes.Structure):
    _fields_ = (
        ("ticket", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("packed", ctypes.c_int64),
        ("dense", ctypes.c_int64),
    )


def unpack(packed: Tensor, dense: Tensor) -> None:
    """dense[i] = bit i % 8 of packed[i // 8], in memory order."""
    n = dense.numel()
    run(_kernel(dense.dtype), _Record(0, n, packed.data_ptr(), dense.data_ptr()), n)


@functools.cache
def _kernel(dtype: torch.dtype) -> Kernel:
    memory, arithmetic, _, narrow = element(dtype)
    one, zero = arithmetic(1), arithmetic(0)

    def body(p):
        args = carray(p, 1)[0]
        n = args.n
        packed = carray(pointer(args.packed), ((n + 7) // 8,), np.uint8)
        dense = carray(pointer(args.dense), (n,), memory)
        while True:
            chunk = claim(p) * CHUNK
            if chunk >= n:
                break
            last = min(chunk + CHUNK, n)
            for byte in range(chunk // 8, last // 8):
                bits = packed[byte]
                for place in range(8):
                    dense[byte * 8 + place] = narrow(one if bits & (1 << place) else zero)
            for i in range(last - last % 8, last):
                dense[i] = narrow(one if packed[i // 8] & (1 << (i % 8)) else zero)

    return compile_kernel(body, _Record)

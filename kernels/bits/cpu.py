"""Unpacking and adding on CPU, and packing of small numbers: one pass, compiled by numba, on torch's threads."""

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
    _run(packed, dense, adds=False)


def add(packed: Tensor, dense: Tensor) -> None:
    """dense[i] += bit i % 8 of packed[i // 8], in memory order."""
    _run(packed, dense, adds=True)


def _run(packed: Tensor, dense: Tensor, adds: bool) -> None:
    n = dense.numel()
    run(_kernel(dense.dtype, adds), _Record(0, n, packed.data_ptr(), dense.data_ptr()), n)


class _PlanesRecord(ctypes.Structure):
    _fields_ = (
        ("ticket", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("dense", ctypes.c_int64),
        ("low", ctypes.c_int64),
        ("high", ctypes.c_int64),
        ("seen", ctypes.c_int64),
    )


def pack_planes(dense: Tensor, low: Tensor, high: Tensor, seen: Tensor) -> None:
    """The two binary digits of each number as bits, in memory order. seen[0] says whether any number is not 0, 1, 2 or
    3, in which case the rest may be left unread; seen[1] says whether one is above 1."""
    record = _PlanesRecord(0, dense.numel(), *(t.data_ptr() for t in (dense, low, high, seen)))
    run(_planes_kernel(), record, dense.numel())


@functools.cache
def _kernel(dtype: torch.dtype, adds: bool) -> Kernel:
    memory, arithmetic, widen, narrow = element(dtype)
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
            # Unsigned, as a signed index that could wrap round keeps LLVM from vectorising (3 times slower).
            for byte in range(np.uint64(chunk // 8), np.uint64(last // 8)):
                bits = packed[byte]
                for place in range(np.uint64(8)):
                    i, spike = byte * np.uint64(8) + place, one if bits & (np.uint8(1) << np.uint8(place)) else zero
                    dense[i] = narrow(widen(dense[i]) + spike if adds else spike)
            for i in range(last - last % 8, last):
                spike = one if packed[i // 8] & (1 << (i % 8)) else zero
                dense[i] = narrow(widen(dense[i]) + spike if adds else spike)

    return compile_kernel(body, _Record)


@functools.cache
def _planes_kernel() -> Kernel:
    def body(p):
        args = carray(p, 1)[0]
        n = args.n
        dense = carray(pointer(args.dense), (n,), np.float32)
        low = carray(pointer(args.low), ((n + 7) // 8,), np.uint8)
        high = carray(pointer(args.high), ((n + 7) // 8,), np.uint8)
        seen = carray(pointer(args.seen), (2,), np.int64)
        while seen[0] == 0:
            chunk = claim(p) * CHUNK
            if chunk >= n:
                break
            last = min(chunk + CHUNK, n)
            known, above = True, np.uint8(0)
            for byte in range(chunk // 8, (last + 7) // 8):
                ones, twos = np.uint8(0), np.uint8(0)
                for place in range(min(8, n - byte * 8)):
                    value = dense[byte * 8 + place]
                    # Comparisons and not a conversion, which would be undefined for a NaN or a large number.
                    one, two, three = value == 1, value == 2, value == 3
                    known &= one | two | three | (value == 0)
                    ones |= np.uint8(one | three) << np.uint8(place)
                    twos |= np.uint8(two | three) << np.uint8(place)
                low[byte], high[byte] = ones, twos
                above |= twos
            if not known:
                seen[0] = 1
            if above:
                seen[1] = 1

    return compile_kernel(body, _PlanesRecord)

"""Sums of a few spikes as bits, on CPU: one pass that looks at the numbers and packs their binary digits."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import torch
from numba import carray
from torch import Tensor

from ..cpu_threads import CHUNK, Kernel, claim, compile_kernel, pointer, run
from ..layout import is_dense
from .ops import packed_size


class _Record(ctypes.Structure):
    _fields_ = (
        ("ticket", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("dense", ctypes.c_int64),
        ("low", ctypes.c_int64),
        ("high", ctypes.c_int64),
        ("seen", ctypes.c_int64),
    )


def planes_of(t: Tensor) -> tuple[Tensor, ...] | None:
    """The binary digits of a tensor that holds nothing but 0, 1, 2 and 3, lowest first, each as bits in memory order:
    one digit where there is nothing above 1, else two. None for all other numbers, and for what is no ordinary float32
    tensor on a CPU. Where the first numbers are others already, the rest is not read."""
    if type(t) is not Tensor or t.device.type != "cpu" or t.dtype != torch.float32 or not is_dense(t) or not t.numel():
        return None
    n = t.numel()
    low, high = (torch.empty(packed_size(n), dtype=torch.uint8) for _ in range(2))
    seen = torch.zeros(2, dtype=torch.int64)
    run(_kernel(), _Record(0, n, t.data_ptr(), low.data_ptr(), high.data_ptr(), seen.data_ptr()), n)
    others, above_one = seen.tolist()
    if others:
        return None
    return (low, high) if above_one else (low,)


@functools.cache
def _kernel() -> Kernel:
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
                    # Comparisons and not a conversion, which a NaN or a large number would make undefined.
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

    return compile_kernel(body, _Record)

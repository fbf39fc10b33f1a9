"""Running a compiled loop on all cores.

A CPU kernel is a C function of one pointer, to a record of arguments. Every worker runs the same function on the same
record and takes the next chunk of neurons by the record's ticket until none is left, so any threads can be workers. On
Linux they are torch's own OpenMP threads: a second pool would compete with torch's, whose threads spin for milliseconds
after each operator. Elsewhere they are Python threads (the call releases the GIL).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from . import cpu_cache

CHUNK = 32768
"""Neurons a worker takes at a time: 128 KiB per float32 operand, so that they stay in the second-level cache."""


# "numpy" divides as C does; Python's check for a zero divisor is a branch that keeps loops from vectorising (7 times
# slower).
_OPTIONS: dict[str, Any] = {"error_model": "numpy"}
_INLINED: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inlined = numba.njit(**_INLINED, **_OPTIONS)
"""For functions that only compiled loops call: LLVM inlines them. Without entry points for Python and C each takes half
as long to compile."""

reordering = numba.njit(**_INLINED, **_OPTIONS, fastmath={"reassoc"})
"""The same for additions that LLVM may do in another order, in several running sums at a time."""


def _counter(field: int, says: str) -> Callable:
    """A function for compiled loops that takes the next number of a record's field, an int64, atomically."""

    def count(typingctx, record):
        def generate(context, builder, signature, args):
            fields = builder.bitcast(args[0], ir.IntType(64).as_pointer())
            place = builder.gep(fields, [ir.Constant(ir.IntType(64), field)])
            return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

        return types.int64(record), generate

    count.__doc__ = says
    return intrinsic(count)


claim = _counter(0, "Take the next ticket, the record's first field.")
enlist = _counter(1, "This worker's number, from the record's second field: for kernels that keep something for each.")


@intrinsic
def pointer(typingctx, address):
    """An integer address as a pointer for `numba.carray`."""
    return types.voidptr(address), lambda context, builder, signature, args: builder.inttoptr(
        args[0], ir.IntType(8).as_pointer()
    )


@intrinsic
def address(typingctx, data):
    """The integer address of a pointer, to count from."""
    return types.int64(data), lambda context, builder, signature, args: builder.ptrtoint(args[0], ir.IntType(64))


@intrinsic
def nonzero_8(typingctx, array, first):
    """Eight comparisons `array[first + i] != 0` as one byte, bit i for element i, in one vector instruction."""

    def generate(context, builder, signature, args):
        array_type = signature.args[0]
        vector = ir.VectorType(context.get_data_type(array_type.dtype), 8)
        data = builder.gep(context.make_array(array_type)(context, builder, args[0]).data, [args[1]])
        values = builder.load(builder.bitcast(data, vector.as_pointer()), align=array_type.dtype.bitwidth // 8)
        zero = ir.Constant(vector, None)
        is_float = isinstance(array_type.dtype, types.Float)
        differ = builder.fcmp_unordered("!=", values, zero) if is_float else builder.icmp_unsigned("!=", values, zero)
        return builder.bitcast(differ, ir.IntType(8))

    return types.uint8(array, first), generate


class Kernel(Protocol):
    """A compiled loop: a C function of a pointer to its record."""

    address: int

    def __call__(self, record: Any) -> None: ...


def record_of(*fields: str) -> type[ctypes.Structure]:
    """A kernel's record of these int64 fields, after the two that count its tickets and workers."""
    names = ("ticket", "worker", *fields)
    return type("Record", (ctypes.Structure,), {"_fields_": tuple((name, ctypes.c_int64) for name in names)})


_C_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def compile_kernel(body: Callable, record: type[ctypes.Structure]) -> Kernel:
    """Compile `body(record_pointer)` to a C function, or find it on disk; `record` starts with an int64 ticket."""
    path = cpu_cache.place_of(body, record)
    kept = None if path is None else cpu_cache.read(path)
    if kept is not None:
        keep_alive, place = kept
    else:
        entry: Any = numba.cfunc(types.void(types.CPointer(numba.from_dtype(np.dtype(record)))), **_OPTIONS)(body)
        keep_alive, place = entry, entry.address
        if path is not None:
            cpu_cache.write(path, keep_alive)
    function: Any = _C_FUNCTION(place)
    function.address, function.keep_alive = place, keep_alive
    return function


def run(kernel: Kernel, record: ctypes.Structure, elements: int) -> None:
    """Run a kernel over `elements` neurons with as many threads as torch would use."""
    if elements <= CHUNK:
        kernel(ctypes.byref(record))
    else:
        run_on(workers_for(-(-elements // CHUNK)), kernel, record)


def workers_for(tickets: int) -> int:
    """How many workers share this many tickets."""
    return min(torch.get_num_threads(), tickets)


def run_on(workers: int, kernel: Kernel, record: ctypes.Structure) -> None:
    """Run a kernel on this many threads."""
    arguments = ctypes.byref(record)
    if workers <= 1:
        kernel(arguments)
    elif openmp := _torch_openmp():
        openmp.GOMP_parallel(kernel.address, arguments, workers, 0)
    else:
        others = [_python_threads(workers).submit(kernel, arguments) for _ in range(workers - 1)]
        kernel(arguments)
        for other in others:
            other.result()


@functools.cache
def _torch_openmp() -> ctypes.CDLL | None:
    library = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    if not library.exists():
        return None
    openmp = ctypes.CDLL(str(library))
    openmp.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    openmp.GOMP_parallel.restype = None
    return openmp


@functools.cache
def _python_threads(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="stdl-kernel")


def thread_pool() -> str:
    """Whose threads run kernels."""
    return "torch's OpenMP" if _torch_openmp() else "Python (torch's OpenMP library was not found)"

"""Compiled loops kept on disk: each kernel is compiled once per machine, not once per process.

The name of a kernel's file is a hash of everything its machine code depends on: the source of this package, what its
closure holds, the versions of the compilers and the CPU they compile for. So nothing is ever out of date, and processes
that compile the same kernel at the same time write the same file. A file is written completely or not at all; if one is
damaged, the kernel is compiled again. STDL_KERNEL_CACHE names another folder than the user's cache, or is "off".
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

VARIABLE = "STDL_KERNEL_CACHE"
PACKAGE = Path(__file__).resolve().parent
_MAGIC = b"stdl-engine kernel 1\n"
_DIGEST = hashlib.sha256().digest_size
_SETTINGS = (
    "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "USING_SVML", "ENABLE_AVX",
    "LLVM_REFPRUNE_PASS",
)  # fmt: skip
"""The settings of numba that change machine code."""


class Unknown(Exception):
    """A kernel's closure holds something that cannot be described in the name of a file."""


def folder() -> Path | None:
    """The folder of compiled kernels; None if they are not kept."""
    named = os.environ.get(VARIABLE)
    if named == "off":
        return None
    if named:
        return Path(named)
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return Path(base) / "stdl-engine" / "kernels"


def place_of(body: Callable, record: type[ctypes.Structure]) -> Path | None:
    """The file of a kernel; None if it cannot have one."""
    home = folder()
    if home is None:
        return None
    found = hashlib.sha256(_surroundings())
    try:
        for part in (*_described(body), *(f"{name}:{kind}" for name, kind, *_ in record._fields_)):
            found.update(part.encode() + b"\0")
    except Unknown:
        return None
    return home / f"{found.hexdigest()[:40]}.o"


def read(path: Path) -> tuple[Any, int] | None:
    """A kernel's library and the address of its entry, if the file exists, is intact, and belongs to the user."""
    try:
        with path.open("rb") as file:
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            content = file.read()
    except OSError:
        return None
    digest, packed = content[len(_MAGIC) : len(_MAGIC) + _DIGEST], content[len(_MAGIC) + _DIGEST :]
    if not content.startswith(_MAGIC) or hashlib.sha256(packed).digest() != digest:
        return None
    name, entry, code, bitcode = _unpack(packed)
    context = cpu_target.target_context
    rtsys.initialize(context)  # compiled code refers to numba's runtime
    library = context.codegen().unserialize_library((name.decode(), "object", (code, bitcode)))
    return library, library.get_pointer_to_function(entry.decode())


def write(path: Path, kernel: Any) -> None:
    """Save a kernel that numba has compiled. A folder that cannot be written saves nothing, which only costs time."""
    library = kernel._library
    if library.has_dynamic_globals:  # it would hold addresses of this process
        return
    name, _, (code, bitcode) = library.serialize_using_object_code()
    packed = _pack(name.encode(), kernel._wrapper_name.encode(), code, bitcode)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(packed).digest() + packed)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _pack(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _unpack(packed: bytes) -> list[bytes]:
    parts, place = [], 0
    while place < len(packed):
        size = int.from_bytes(packed[place : place + 8], "little")
        parts.append(packed[place + 8 : place + 8 + size])
        place += 8 + size
    return parts


@functools.cache
def _surroundings() -> bytes:
    """What all kernels of this process depend on."""
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        found.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    versions = numba.__version__, llvmlite.__version__, np.__version__, sys.version, platform.platform()
    target = cpu_target.target_context.codegen().magic_tuple()
    settings = [(name, getattr(numba.config, name, None)) for name in _SETTINGS]
    found.update(repr((versions, target, settings)).encode())
    return found.digest()


def _described(value: Any) -> Iterator[str]:
    """A value in a kernel's closure, described in the same way in every process."""
    yield type(value).__name__
    if isinstance(value, np.generic):
        yield f"{value.dtype} {value.tobytes().hex()}"
    elif value is None or isinstance(value, bool | int | float | str | torch.dtype | ir.Type):
        yield repr(value) if not isinstance(value, ir.Type) else str(value)
    elif isinstance(value, tuple):
        yield str(len(value))
        for item in value:
            yield from _described(item)
    elif isinstance(value, type | types.ModuleType):
        yield f"{getattr(value, '__module__', '')} {value.__name__}"
    elif isinstance(value, Dispatcher):
        yield repr(sorted(value.targetoptions.items()))
        yield from _described(value.py_func)
    elif isinstance(value, _Intrinsic):
        yield from _described(value._defn)
    elif isinstance(value, types.FunctionType):
        yield from _described_function(value)
    else:
        raise Unknown(value)


def _described_function(function: types.FunctionType) -> Iterator[str]:
    """A function's place in this package's source, its closure, and the numbers and functions it refers to."""
    code = function.__code__
    path = Path(code.co_filename).resolve()
    if not path.is_relative_to(PACKAGE):
        raise Unknown(function)
    yield f"{path.relative_to(PACKAGE).as_posix()}:{code.co_firstlineno} {code.co_qualname} {code.co_code.hex()}"
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield name
        yield from _described(cell.cell_contents)
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, bool | int | float | str | np.generic | Dispatcher | _Intrinsic) and _is_ours(value):
            yield name
            yield from _described(value)
    yield from _described(function.__defaults__)


def _is_ours(value: Any) -> bool:
    """Whether a global belongs to this package or is a number; for other packages their version counts."""
    function = value.py_func if isinstance(value, Dispatcher) else getattr(value, "_defn", None)
    return function is None or Path(function.__code__.co_filename).resolve().is_relative_to(PACKAGE)

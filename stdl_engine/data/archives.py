"""Reading .npy and .npz files from anywhere: what a header promises is checked before memory is allocated for it.

Every problem is a ValueError with its reason; the caller adds which file it is and what to do.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from ..planning.budgets import format_bytes

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,
}
"""How the header of each version of the format is read; 3.0 differs from 2.0 only in the encoding of field names."""

DEFLATE = 1032
"""The largest ratio by which deflate can compress."""


def read_npy(path: Path) -> np.ndarray:
    """The array of a .npy file."""
    with _reasons(), path.open("rb") as file:
        return _read_array(file, path.stat().st_size, "it")


def read_npz(path: Path, wanted: Callable[[list[str]], list[str]]) -> dict[str, np.ndarray]:
    """Arrays of a .npz file: `wanted` is given the names of all and says which to read."""
    with _reasons(), path.open("rb") as file:
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it is a single array")
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            chosen = wanted(list(members))
            check_promise(sum(members[name].file_size for name in chosen), "it all together")
            return {name: _read_member(archive, members[name], name) for name in chosen}


def check_promise(size: int, what: str) -> None:
    """Reject a size that cannot fit into this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise ValueError(f"{what} has {format_bytes(size)}, and this machine's memory {format_bytes(memory)}")


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> np.ndarray:
    if info.flag_bits & 1:
        raise ValueError("it is encrypted")
    if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > DEFLATE * (info.compress_size + 64):
        raise ValueError(f"{name} promises {info.file_size} bytes out of {info.compress_size} compressed ones")
    with archive.open(info) as member:
        array = _read_array(member, info.file_size, name)
        member.read(1)  # the checksum is compared only at the very end
        return array


def _read_array(file: IO[bytes], size: int, name: str) -> np.ndarray:
    """An array from a file of `size` bytes, which must be as many as its header says."""
    if size == 0:
        raise ValueError(f"{name} is empty")
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"{name} has the unknown version {version} of the format")
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are never loaded, as they may run code")
    if min(shape, default=0) < 0:
        raise ValueError(f"{name} has shape {shape}")
    promised, there = math.prod(shape) * dtype.itemsize, size - file.tell()
    if promised != there:
        raise ValueError(f"the header of {name} promises {promised} bytes of shape {shape}, and there are {there}")
    check_promise(promised, name)
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


@contextmanager
def _reasons() -> Iterator[None]:
    """Turns whatever a broken file raises into a ValueError that says why in one line."""
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception as error:  # zipfile alone raises seven kinds
        raise ValueError(reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """What an error says, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # the caller names the path
    if isinstance(error, KeyError):
        return f"there is no {error}"
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__

"""The memory of the whole process: how it is allocated, and its peak.

A budget counts live tensors. The system sees the whole process: the interpreter and its libraries, the data held in
memory, workspaces inside operators, and memory that the allocator keeps after a tensor was freed.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's settings (malloc.h)."""
MALLOC = {"fast": (2**31 - 1, 32 << 20), "system": (), "tight": (128 << 10,)}
"""How memory is allocated on CPU: the bytes from which glibc maps a block on its own, and returns it to the system when
it is freed; the first number that this glibc takes. For "fast" it is the largest it can be told, and in old versions
the largest they take; "tight" is what every process begins with."""


def set_malloc(how: str) -> bool:
    """Choose how glibc allocates the memory of this process; returns False where there is no glibc.

    "fast" keeps freed memory for the next tensors, as PyTorch does on a GPU. "tight" returns every large block when it
    is freed. "system" leaves glibc as it is: it begins tight, and whenever a large block is freed it serves blocks of
    that size from its heap, which it returns to the system and takes back all the time. Memory that comes from the
    system costs time on first use, page by page (`python -m bench.process_memory`).
    """
    if how not in MALLOC:
        raise ValueError(f"unknown malloc {how!r}: pass one of {', '.join(MALLOC)}.")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    return not MALLOC[how] or any(
        all(mallopt(setting, size) == 1 for setting in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)) for size in MALLOC[how]
    )


@dataclass
class ProcessPeak:
    """The peak of a process's memory since `start`, and how much more that is than it held then."""

    held: int = 0
    """Bytes that it had at `start`."""

    @classmethod
    def start(cls) -> ProcessPeak:
        """Count from now on, if the system can; otherwise the peak is that since the process began."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        return cls(_status("VmRSS") or 0)

    @property
    def peak(self) -> int:
        """The most bytes of physical memory that the process had."""
        if (peak := _status("VmHWM")) is not None:
            return peak
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    @property
    def growth(self) -> int:
        """How much of it came after `start`."""
        return max(0, self.peak - self.held)


def _status(name: str) -> int | None:
    """A figure of /proc/self/status in bytes; None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)

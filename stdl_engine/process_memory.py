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
THRESHOLD = 128 << 10
"""The size in bytes from which a block is mapped on its own, and returned to the system as soon as it is freed; glibc's
initial value."""


def keep_malloc_tight() -> bool:
    """Make glibc return large blocks when they are freed; returns False where there is no glibc.

    By default it raises its thresholds whenever a large block is freed, up to 32 MiB, and then serves tensors from one
    heap, whose holes stay part of the process. Mapping each block takes time (`python -m bench.process_memory`).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(setting, THRESHOLD) == 1 for setting in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))


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

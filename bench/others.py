"""How busy other processes kept the machine during a measurement, which every row says."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")


class Others:
    """Processor time of other processes, counted from its creation."""

    def __init__(self) -> None:
        self.start = _now()

    def cores(self) -> float | None:
        """The number of cores that others kept busy, on average; None where the system does not say."""
        if self.start is None:
            return None
        wall, machine, ours = (now - then for now, then in zip(_now(), self.start, strict=True))
        return max(0.0, (machine - ours) / wall)


def _now() -> tuple[float, float, float] | None:
    if not STAT.exists():
        return None
    user, nice, system, _idle, _waiting, *interrupts = map(int, STAT.read_text().splitlines()[0].split()[1:9])
    busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return time.monotonic(), busy, sum(os.times()[:4])

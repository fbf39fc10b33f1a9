"""The machine, the versions, the commit and the time, which every row carries."""

from __future__ import annotations

import datetime
import functools
import platform
from pathlib import Path

import torch

from stdl_engine.runs import PACKAGES as ENGINE_PACKAGES
from stdl_engine.runs import commit, versions

from .libraries import version

MORE_PACKAGES = ("llvmlite", "snntorch", "norse", "sinabs")
PACKAGES = ("python", "stdl-engine", *ENGINE_PACKAGES, *MORE_PACKAGES)
CONDITIONS = ("mode", "device", "cpu", "threads", "others", *PACKAGES, "commit", "date")


def conditions(device: str, mode: str) -> dict[str, str]:
    """What is the same for every row of a run that begins now; how busy other processes were is known at its end."""
    packages = versions() | {package: version(package) for package in MORE_PACKAGES}
    return {
        "mode": mode,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "cpu": cpu_model(),
        "threads": str(torch.get_num_threads()),
        **{package: packages.get(package, "") for package in PACKAGES},
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@functools.cache
def cpu_model() -> str:
    """The processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

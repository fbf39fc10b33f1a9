"""Every benchmark by name: a module whose docstring starts with its claim and whose `run(session)` measures it."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

MAIN = {
    "kernels": "bench.kernels",
    "static": "bench.static",
    "memory": "bench.memory",
    "training": "bench.training",
}
"""What `python -m bench` runs, and docs/benchmarks.md shows."""
MORE = {
    "training_step": "bench.training_step",
    "cpu_bandwidth": "bench.cpu_bandwidth",
    "cpu_candidates": "bench.cpu_candidates",
    "call_overhead": "bench.call_overhead",
    "spike_conv": "bench.spike_conv",
}
"""Run when named."""
BENCHMARKS = MAIN | MORE


def load(name: str) -> ModuleType:
    """The module of a benchmark."""
    return importlib.import_module(BENCHMARKS[name])


def claim(name: str) -> str:
    """What a benchmark sets out to show: the first line of its docstring."""
    return inspect.getdoc(load(name)).splitlines()[0]

"""Every benchmark by name: a module whose docstring starts with its claim and whose `run(session)` measures it."""

from __future__ import annotations

import importlib
from types import ModuleType

BENCHMARKS = {
    "cpu_bandwidth": "bench.cpu_bandwidth",
    "cpu_candidates": "bench.cpu_candidates",
    "peers": "bench.peers",
    "call_overhead": "bench.call_overhead",
    "training_step": "bench.training_step",
}


def load(name: str) -> ModuleType:
    """The module of a benchmark."""
    return importlib.import_module(BENCHMARKS[name])

"""Every benchmark by name. A benchmark is a module with

- a docstring: its first line says what is measured and is the heading on the page, the rest says how;
- `run(session)`, which measures;
- `tables(rows)`, if the page should show something other than a list of the rows: parts of Markdown;
- `plot(rows)`, if there is a picture: a PNG, or None where the rows have nothing to draw;
- `DEVICE = "cpu"`, if it uses no GPU even where there is one.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from types import ModuleType

from .markdown import listing
from .results import Row

MAIN = (
    "kernels",
    "static",
    "memory",
    "training",
    "engine_cost",
    "protocol",
)
"""What `python -m bench` runs."""
MORE = (
    "cpu_bandwidth",
    "cpu_candidates",
    "call_overhead",
    "parallel",
    "spike_conv",
    "dropin",
    "inference",
    "yardstick",
)
"""Run when named."""
BENCHMARKS = (*MAIN, *MORE)


def load(name: str) -> ModuleType:
    """The module of a benchmark."""
    return importlib.import_module(f"bench.{name}")


def title(name: str) -> str:
    """What a benchmark measures: the first line of its docstring."""
    return inspect.getdoc(load(name)).splitlines()[0].removesuffix(".")


def description(name: str) -> str:
    """How it measures: the rest of its docstring."""
    return inspect.getdoc(load(name)).partition("\n")[2].strip()


def tables(name: str, rows: Sequence[Row]) -> list[str]:
    """Its rows on a page."""
    benchmark = load(name)
    return benchmark.tables(rows) if hasattr(benchmark, "tables") else [listing(rows)]


def plot(name: str, rows: Sequence[Row]) -> bytes | None:
    """Its picture, if it has one."""
    benchmark = load(name)
    return benchmark.plot(rows) if hasattr(benchmark, "plot") else None


def device(name: str) -> str | None:
    """Where it runs, if the machine does not decide that."""
    return getattr(load(name), "DEVICE", None)

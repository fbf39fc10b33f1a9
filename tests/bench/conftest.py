"""No test of the benchmarks writes where a reader's or the project's own results are."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from bench import places


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> SimpleNamespace:
    """The places of results, all in a folder of the test's own."""
    found = SimpleNamespace(
        mine=tmp_path / "bench" / "mine",
        published=tmp_path / "bench" / "results",
        page=tmp_path / "docs" / "benchmarks.md",
    )
    found.published.mkdir(parents=True)
    found.page.parent.mkdir()
    monkeypatch.setattr(places, "MINE", found.mine)
    monkeypatch.setattr(places, "PUBLISHED", found.published)
    monkeypatch.setattr(places, "PUBLISHED_PAGE", found.page)
    return found


class Event:
    """A CUDA event on the clock of the CPU."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.seconds = 0.0

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return (end.seconds - self.seconds) * 1e3


@pytest.fixture
def pretended_gpu(monkeypatch) -> None:
    """The clock and the memory statistics of CUDA, stood in for: 5 MB are allocated, and at the peak 9 MB."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: 5_000_000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: 9_000_000)

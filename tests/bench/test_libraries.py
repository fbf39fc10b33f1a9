"""A machine that lacks libraries, or has a GPU: sentences in place of figures, and the right device."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import libraries, memory, registry, static, training
from bench.session import Session

NOTE = "spikingjelly is not installed: pip install 'stdl-engine[bench]'"


@pytest.fixture
def _no_spikingjelly(monkeypatch):
    installed = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "spikingjelly" else installed(name))
    monkeypatch.setattr("bench.memopt.trainer", lambda *_: pytest.fail("built"))


@pytest.mark.usefixtures("_no_spikingjelly")
def test_memory_without_spikingjelly(monkeypatch):
    monkeypatch.setattr(memory, "planned_gb", lambda *_: 2.0)
    session = Session("memory", 2)
    memory.over_time(session, (4,))
    refused = [row for row in session.rows if row.spread is None]
    assert [row.who for row in refused] == list(memory.PEERS)
    assert {row.note for row in refused} == {NOTE}
    assert [row.against for row in session.rows if row.unit == "x less"] == ["BPTT, plain"]
    monkeypatch.setattr(memory, "SHOWN", ())
    session = Session("memory", 2)
    memory.small(session)
    assert [(row.who, row.spread, row.note) for row in session.rows] == [(who, None, NOTE) for who in memory.PEERS]


@pytest.mark.usefixtures("_no_spikingjelly")
def test_training_without_spikingjelly(monkeypatch):
    monkeypatch.setattr(training, "differs", lambda *_: pytest.fail("compared"))
    session = Session("training", 2)
    training.compare(session, training.Size(width=0.125, batch=2), {training.PEER: training.TRAINEES[training.PEER]})
    assert [(row.who, row.spread, row.note) for row in session.rows] == [(training.PEER, None, NOTE)]


@pytest.mark.usefixtures("_no_spikingjelly")
def test_static_without_spikingjelly():
    session = Session("static", 2)
    static.against_spikingjelly(session)
    assert [(row.who, row.spread, row.note) for row in session.rows] == [("SpikingJelly", None, NOTE)]


def test_a_library_that_is_there_is_not_missing():
    assert libraries.missing("torch") == ""
    assert libraries.version("no_such_package_here") == ""


@pytest.mark.parametrize("library", ["rich", "matplotlib"])
def test_what_the_command_itself_needs(library):
    code = f"import sys, runpy; sys.modules[{library!r}] = None; runpy.run_module('bench', run_name='__main__')"
    command, root = [sys.executable, "-W", "ignore", "-c", code], Path(__file__).parents[2]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == f"python -m bench: {library} is not installed: pip install 'stdl-engine[bench]'.\n"


def test_benchmarks_of_cpu_kernels_and_processes_stay_on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    on_cpu = [name for name in registry.BENCHMARKS if Session(name, 2, device=registry.device(name)).device == "cpu"]
    assert on_cpu == ["cpu_bandwidth", "cpu_candidates", "call_overhead", "parallel", "spike_conv", "dropin"]
    assert Session("kernels", 2, device=registry.device("kernels")).device == "cuda"

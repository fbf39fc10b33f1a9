"""The CPU kernels on one core, on torch's threads, on Python's, and from several callers at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stdl_engine.kernels import cpu_threads

from .compare import CPU
from .every_neuron import LIF, check, every_neuron, random

N = 5 * cpu_threads.CHUNK + 13
"""Several chunks for each worker, and one that is cut short."""


@pytest.fixture
def threads():
    """Ask torch for a number of threads; put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def check_large() -> None:
    check(LIF, random(LIF, (N,)), CPU)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("openmp", [True, False], ids=["openmp", "python"])
def test_any_number_of_threads(threads, monkeypatch, openmp, count):
    if not openmp:
        monkeypatch.setattr(cpu_threads, "_torch_openmp", lambda: None)
    threads(count)
    check_large()


def test_torchs_openmp_is_found_on_linux():
    import sys

    assert (cpu_threads._torch_openmp() is not None) == sys.platform.startswith("linux")


@pytest.mark.parametrize("openmp", [True, False], ids=["openmp", "python"])
def test_several_callers_at_once(threads, monkeypatch, openmp):
    if not openmp:
        monkeypatch.setattr(cpu_threads, "_torch_openmp", lambda: None)
    threads(2)
    with ThreadPoolExecutor(4) as callers:
        for done in [callers.submit(check_large) for _ in range(12)]:
            done.result()


@every_neuron
@pytest.mark.parametrize("elements", [cpu_threads.CHUNK - 1, cpu_threads.CHUNK, cpu_threads.CHUNK + 1])
def test_sizes_about_a_chunk(neuron, elements):
    check(neuron, random(neuron, (elements,)), CPU)

"""What must be set before torch and triton are imported, and what holds for every test."""

import os

# oneDNN's bfloat16 kernels for newer instruction sets die with an illegal instruction on some virtual machines.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Tests run side by side, a process for each core: more threads than that would only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from .unfinished import (  # noqa: F401 - pytest finds hooks by their names
    pytest_runtest_logfinish,
    pytest_runtest_logreport,
    pytest_runtest_logstart,
    pytest_terminal_summary,
)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items):
    """Mark as `gpu` what runs on a GPU where there is one: tests that need it, and those of the Triton kernels, which
    run in Triton's interpreter elsewhere."""
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        of_triton = any(str(getattr(value, "backend", value)) == "triton" for value in parameters)
        if of_triton or any("GPU" in mark.kwargs.get("reason", "") for mark in item.iter_markers("skipif")):
            item.add_marker("gpu")


@pytest.fixture(autouse=True)
def _unwritten_memory_is_nan():
    """torch.empty gives NaN (255 in bytes), so that nothing passes by reading what it did not write."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _same_numbers_every_run():
    torch.manual_seed(0)


@pytest.fixture
def norms_by_pytorch(monkeypatch):
    """Batch norm is PyTorch's in lean memory, too. Ours differs by rounding, and all else that lean memory does by
    nothing at all."""
    monkeypatch.setattr("stdl_engine.memory.norms.takes", lambda x: False)

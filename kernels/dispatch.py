"""Which backend runs a call."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType

import torch
from torch._guards import active_fake_mode

BACKENDS = ("auto", "triton", "cpu", "reference")
_BY_DEVICE = {
    "cuda": "triton",
    "cpu": "cpu",
    "meta": "cpu",
}  # ROCm devices are called "cuda"; on meta only shapes are computed


def interpreting() -> bool:
    """Whether Triton kernels run in Triton's own interpreter, on CPU tensors.

    It is so when TRITON_INTERPRET=1 was set before triton was imported.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)


def check_name(backend: str) -> None:
    """Reject a name that is not a backend."""
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: pass one of {', '.join(BACKENDS)}.")


def kernels(package: str, backend: str, device: torch.device) -> ModuleType:
    """The kernels of a folder for tensors on `device`: its module "triton" or "cpu"."""
    return _module(package, choose(backend, device))


@functools.cache
def _module(package: str, name: str) -> ModuleType:
    return importlib.import_module(f"{package}.{name}")  # imported only now: triton is not available on every system


def choose(backend: str, device: torch.device) -> str:
    """The backend for tensors on `device`: "triton", "cpu" or "reference".

    A backend that is asked for by name and cannot run is an error.
    """
    if backend == "auto":
        if device.type in _BY_DEVICE:
            return _BY_DEVICE[device.type]
        raise ValueError(
            f'no fused kernel for device {device.type!r}: pass backend="reference", or move the tensors to cuda or cpu.'
        )
    check_name(backend)
    if device.type == "meta":
        return backend  # only shapes are computed, as when a training step is planned
    if backend == "cpu" and device.type != "cpu":
        raise ValueError(
            f'backend "cpu" cannot run on {device.type} tensors: move them to the CPU, or pass backend="auto".'
        )
    if backend == "triton" and device.type != "cuda" and not (interpreting() or _is_fake(device)):
        raise ValueError(
            f'backend "triton" needs tensors on a GPU, these are on {device.type}: pass backend="auto", or set '
            "TRITON_INTERPRET=1 to test the kernels."
        )
    return backend


def _is_fake(device: torch.device) -> bool:
    """Whether tensors on the CPU are fake ones, which stand for those of any device and have only shapes."""
    return device.type == "cpu" and not torch.compiler.is_compiling() and active_fake_mode() is not None

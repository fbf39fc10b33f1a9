"""What a bug report needs: `python -m stdl_engine.doctor` prints versions, CPU, GPU, what the kernels run on and how
they compare with the reference, and which optional libraries are installed.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import __version__
from .extras import EXTRAS, PACKAGES
from .kernels import cpu_cache, dispatch
from .kernels.bits import reference as bits_reference
from .kernels.bits import unpack
from .kernels.cpu_threads import compile_kernel, enlist, run_on, thread_pool
from .kernels.norm_lif import Pending
from .kernels.spike_conv import (
    spike_conv,
    spike_conv_weight_gradient,
    taps_input_gradient,
    winograd_input_gradient,
)
from .memory.norms import table_for
from .neurons import NEURONS, FusedLIF, Neuron
from .unread_output import ending_quietly

CORE = ("torch", "triton", "numpy", "numba", "llvmlite")
VECTOR_FEATURES = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "amx_tile", "neon", "sve")
SETTINGS = (
    "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES",
    "TRITON_INTERPRET", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "LD_PRELOAD",
)  # fmt: skip
"""Environment variables that change what runs or how much memory it takes."""
TOLERANCE = 1e-5
AMD_DRIVER = Path("/sys/module/amdgpu/version")


def main() -> int:
    """Print the report; returns 1 if a kernel does not compute what the reference does."""
    code = 0
    with ending_quietly():
        code = report()
    return code  # noqa: RET504, as it is 0 if the context was left early


def report() -> int:
    """Print the report and return the exit code."""
    sections = {
        "versions": versions(),
        "CPU": cpu(),
        "GPU": gpu(),
        "environment": ((name, os.environ.get(name, "-")) for name in SETTINGS),
        "extras": extras(),
    }
    for title, lines in sections.items():
        print(title)
        for name, value in lines:
            print(f"  {name:<22} {value}")
    print("kernels against the reference (largest difference; relative where numbers are above 1)")
    failed = 0
    for name, check in checks():
        start = time.perf_counter()
        try:
            difference = check()
            right, verdict = difference <= TOLERANCE, f"{difference:.1e}"
        except Exception as error:  # whatever it is, the report names it and continues
            right, verdict = False, f"{type(error).__name__}: {error}"
        if not right:
            failed, verdict = failed + 1, f"FAILED {verdict}"
        print(f"  {name:<22} {verdict}  ({time.perf_counter() - start:.1f} s)")
    print("all kernels agree." if not failed else f"{failed} checks failed: please report this whole page.")
    return min(failed, 1)


def versions() -> Iterator[tuple[str, str]]:
    yield "stdl-engine", f"{__version__} in {Path(__file__).parent}"
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    for package in CORE:
        yield package, installed(package) or "missing"


def cpu() -> Iterator[tuple[str, str]]:
    import llvmlite.binding as llvm

    flags = {name for name, present in llvm.get_host_cpu_features().items() if present}
    flags |= {name.replace("_", "") for name in flags}
    yield "model", cpu_model()
    yield "cores", f"{os.cpu_count()}, usable by this process {len(os.sched_getaffinity(0))}"
    yield "vector features", " ".join(f for f in VECTOR_FEATURES if f in flags or f.replace("_", "") in flags) or "none"
    yield "torch uses", torch.backends.cpu.get_cpu_capability()
    yield "LLVM targets", os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    yield "backend", dispatch.choose("auto", torch.device("cpu"))
    yield "threads", f"{threads_that_run()} of {torch.get_num_threads()} ran a kernel ({thread_pool()})"
    yield "compiled kernels", str(cpu_cache.folder() or "not kept")


class _Enlisted(ctypes.Structure):
    _fields_ = (("ticket", ctypes.c_int64), ("worker", ctypes.c_int64))


def threads_that_run() -> int:
    """How many threads take part when a kernel is given all of torch's threads."""

    def body(p: Any) -> None:
        enlist(p)

    record = _Enlisted()
    run_on(torch.get_num_threads(), compile_kernel(body, _Enlisted), record)
    return record.worker


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def gpu() -> Iterator[tuple[str, str]]:
    if not torch.cuda.is_available():
        yield "devices", "none"
        interpreter = 'the interpreter of Triton, for backend "triton" on CPU tensors'
        compiler = "none; python -m stdl_engine.kernels.inspect compiles the kernels without a GPU"
        yield "Triton target", interpreter if dispatch.interpreting() else compiler
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield f"device {index}", f"{properties.name}, {properties.total_memory / 1e9:.1f} GB"
    built_for = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    yield "torch is built for", f"{built_for}, cuDNN or MIOpen {torch.backends.cudnn.version()}"
    yield "driver", gpu_driver()
    import triton

    yield "Triton target", str(triton.runtime.driver.active.get_current_target())


def gpu_driver() -> str:
    """The version of the driver, from nvidia-smi or AMD's kernel module."""
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
        return " and ".join(dict.fromkeys(said)) or "not reported by nvidia-smi"
    except (OSError, subprocess.SubprocessError):
        return AMD_DRIVER.read_text().strip() if AMD_DRIVER.exists() else "unknown: there is no nvidia-smi"


def extras() -> Iterator[tuple[str, str]]:
    for extra, modules in EXTRAS.items():
        packages = [PACKAGES.get(module, module) for module in modules]
        versions = {package: installed(package) for package in packages}
        missing = [package for package, version in versions.items() if not version]
        there = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
        hint = f"missing {', '.join(missing)}: pip install 'stdl-engine[{extra}]'" if missing else ""
        yield extra, "; ".join(part for part in (there, hint) if part)


def installed(package: str) -> str:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def checks() -> Iterator[tuple[str, Callable[[], float]]]:
    """Every kernel that can run here, with a comparison that takes about a second, including compilation."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        backend = dispatch.choose("auto", torch.device(device))
        for name, kind in NEURONS.items():
            for mode in ("s", "m"):
                yield f"{name} {'step' if mode == 's' else 'sequence'}, {backend}", neuron_check(kind, mode, device)
        yield f"norm and lif, {backend}", functools.partial(norm_difference, device)
        yield f"bits, {backend}", functools.partial(bits_difference, device)
    yield "spike_conv, cpu", spike_conv_difference


def neuron_check(kind: Callable[..., Neuron], mode: str, device: str) -> Callable[[], float]:
    """Spikes, state and gradient of three time steps on an odd number of neurons."""

    def results(backend: str) -> list[Any]:
        torch.manual_seed(0)
        layer = kind(decay=0.5, step_mode=mode, backend=backend).to(device)
        x = torch.randn(3, 5, 1001).to(device).requires_grad_()
        spikes = layer(x) if mode == "m" else torch.stack([layer(frame) for frame in x])
        spikes.backward(torch.randn(spikes.shape).to(device))
        return [spikes, layer.membrane, x.grad, *(p.grad for p in layer.parameters())]

    return lambda: largest_difference(results("auto"), results("reference"))


def norm_difference(device: str) -> float:
    """Spikes, state and gradients of a time step with batch norm in the same pass, and of the two one after the other
    by PyTorch and the reference."""

    def results(fused: bool) -> list[Any]:
        torch.manual_seed(0)
        x = torch.randn(3, 8, 7, 5).to(device, memory_format=torch.channels_last).requires_grad_()
        norm = nn.BatchNorm2d(8, track_running_stats=False).to(device)
        neuron = FusedLIF(decay=0.5, backend="auto" if fused else "reference").to(device)
        if fused:
            table, _ = table_for(norm, x, groups=1)
            spikes, _ = neuron.fire(Pending.after(x, table, norm.weight, norm.bias, constant=False), dense=True)
        else:
            spikes = neuron(norm(x))
        spikes.backward(torch.randn(spikes.shape).to(device))
        return [spikes, neuron.membrane, x.grad, norm.weight.grad, norm.bias.grad]

    return largest_difference(results(True), results(False))


def bits_difference(device: str) -> float:
    spikes = (torch.randn(1001) > 0).float()
    packed = bits_reference.pack(spikes).to(device)
    return largest_difference([unpack(packed, (1001,), (1,), torch.float32).cpu()], [spikes])


def spike_conv_difference() -> float:
    """A convolution of bits and the gradients of its weight and, both ways, of its input."""
    spikes = (torch.randn(2, 16, 7, 7) > 0).float().contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = (torch.randn(16, 16, 3, 3) / 12).contiguous(memory_format=torch.channels_last).requires_grad_()
    expected = nn.functional.conv2d(spikes, weight, padding=1)
    upstream = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad(expected, (weight, spikes), upstream)
    bits, shape, pair = bits_reference.pack(spikes.detach()), list(spikes.shape), [1, 1]
    output = spike_conv(bits, weight.detach(), shape, pair, pair)
    gradient = spike_conv_weight_gradient(bits, upstream, shape, list(weight.shape), pair, pair)
    by_taps = taps_input_gradient(upstream, weight.detach(), shape, pair, pair)
    by_winograd = winograd_input_gradient(upstream, weight.detach(), shape, pair)
    found = [output, gradient, by_taps, by_winograd]
    return largest_difference(found, [expected, *expected_gradients, expected_gradients[1]])


def largest_difference(some: list[Tensor], others: list[Tensor]) -> float:
    pairs = [(a.detach().double().cpu(), b.detach().double().cpu()) for a, b in zip(some, others, strict=True)]
    return max(((a - b).abs() / b.abs().clamp(min=1)).max().item() for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main())

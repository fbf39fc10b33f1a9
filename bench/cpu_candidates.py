"""Speed and start-up of the CPU kernels compiled by numba (ours), as a C++ op, and by torch.compile.

The same online LIF step, forward and backward, float32, on the same preallocated tensors. Start-up is a new process
with empty caches, from the end of `import torch` to the end of the first forward and backward; "again" is the next
process, which finds what the first one cached. `python -m bench.cpu_candidates NAME` is that process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .session import Session
from .timing import Case, ratios

DEVICE = "cpu"
NEURONS = 4_000_000
DECAY, THRESHOLD = 0.1, 1.0
REPOSITORY = Path(__file__).parent.parent

CPP_SOURCE = """
#include <torch/extension.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

constexpr int64_t TILE = 2048;

static inline uint8_t pack(const float* m, float threshold, int64_t count) {
#ifdef __AVX__
  if (count == 8) return _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(m), _mm256_set1_ps(threshold), _CMP_GE_OQ));
#endif
  uint8_t packed = 0;
  for (int64_t i = 0; i < count; i++) packed |= uint8_t(m[i] >= threshold) << i;
  return packed;
}

void forward(at::Tensor x, at::Tensor m, at::Tensor spikes, at::Tensor bits, double decay64, double threshold64) {
  const float decay = decay64, threshold = threshold64;
  const float* __restrict__ p_x = x.data_ptr<float>();
  float* __restrict__ p_m = m.data_ptr<float>();
  float* __restrict__ p_spikes = spikes.data_ptr<float>();
  uint8_t* __restrict__ p_bits = bits.data_ptr<uint8_t>();
  const int64_t n = x.numel();
#pragma omp parallel for
  for (int64_t first = 0; first < n; first += TILE) {
    const int64_t last = std::min(first + TILE, n);
    for (int64_t i = first; i < last; i++) {
      const float u = p_m[i] >= threshold ? p_m[i] - threshold : p_m[i];
      const float v = decay * u + p_x[i];
      p_m[i] = v;
      p_spikes[i] = v >= threshold ? 1.0f : 0.0f;
    }
    for (int64_t byte = first / 8; byte < (last + 7) / 8; byte++)
      p_bits[byte] = pack(p_m + byte * 8, threshold, std::min<int64_t>(8, last - byte * 8));
  }
}

void backward(at::Tensor m, at::Tensor grad_spikes, at::Tensor grad_x, double threshold64) {
  const float threshold = threshold64;
  const float* __restrict__ p_m = m.data_ptr<float>();
  const float* __restrict__ p_grad_spikes = grad_spikes.data_ptr<float>();
  float* __restrict__ p_grad_x = grad_x.data_ptr<float>();
  const int64_t n = m.numel();
#pragma omp parallel for
  for (int64_t i = 0; i < n; i++) {
    const float distance = std::abs(p_m[i] - threshold);
    p_grad_x[i] = p_grad_spikes[i] * (distance < 1.0f ? 1.0f - distance : 0.0f);
  }
}
"""


@dataclass(frozen=True)
class Candidate:
    """`build()` returns `forward(x, m, spikes, bits)` and `backward(m, grad_spikes, grad_x)`; `missing()` says why it
    cannot be built; `packs` is whether `forward` writes the bits."""

    needs: str
    build: Callable[[], tuple[Callable[..., object], Callable[..., object]]]
    missing: Callable[[], str | None]
    packs: bool = True


def run(session: Session) -> None:
    tensors, steps = Tensors(), {}
    for name, candidate in CANDIDATES.items():
        session.show(f"building {name}")
        reason = candidate.missing()
        if reason is None:
            try:
                steps[name] = tensors.bind(*candidate.build())
                steps[name]()
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                if name == "numba":
                    raise
                reason = str(error).splitlines()[0]  # there is a compiler, but it fails
        session.note(f"{name} needs {candidate.needs}" if reason is None else f"{name} skipped: {reason}")
        if reason is not None:
            steps.pop(name, None)
    check(tensors, steps)
    speed(session, tensors, steps)
    for name in steps:
        if CANDIDATES[name].packs:
            session.show(f"start-up of {name} in a new process")
            cold, again = start_up(name)
            session.record(f"{name}, first call, empty caches", "s", cold)
            session.record(f"{name}, first call, again", "s", again)


def check(tensors: Tensors, steps: dict[str, Callable[[], None]]) -> None:
    """All must compute the same, bit for bit."""
    expected = None
    for name, step in steps.items():
        found = tensors.results_of(step)
        expected = expected or found
        for what, tensor in found.items():
            if not torch.equal(tensor, expected[what]) and (what != "bits" or CANDIDATES[name].packs):
                raise RuntimeError(f"{name} does not compute the {what} that the others do, and is not timed.")


def speed(session: Session, tensors: Tensors, steps: dict[str, Callable[[], None]]) -> None:
    """Forward and backward, compared with copy_ of as many bytes and with numba."""
    moved = NEURONS * 28 + tensors.bits.numel()
    source, target = torch.ones(moved // 8), torch.zeros(moved // 8)
    cases = {name: Case(step) for name, step in steps.items()}
    times = session.time("forward and backward", {"copy_": Case(lambda: target.copy_(source)), **cases})
    for name in steps:
        session.record(name, "M neurons/s", [NEURONS / t / 1e6 for t in times[name]])
        session.record(name, "of copy_", ratios(times["copy_"], times[name]))
        if name != "numba":
            session.record(name, "x numba's time", ratios(times[name], times["numba"]))


class Tensors:
    """The operands, shared by all candidates."""

    def __init__(self, neurons: int = NEURONS) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x, self.first, self.grad_spikes = (torch.randn(neurons, generator=generator) for _ in range(3))
        self.m, self.spikes, self.grad_x = (torch.zeros(neurons) for _ in range(3))
        self.bits = torch.zeros((neurons + 7) // 8, dtype=torch.uint8)

    def bind(self, forward: Callable[..., object], backward: Callable[..., object]) -> Callable[[], None]:
        """One step, forward and backward."""

        def step() -> None:
            forward(self.x, self.m, self.spikes, self.bits)
            backward(self.m, self.grad_spikes, self.grad_x)

        return step

    def results_of(self, step: Callable[[], None]) -> dict[str, Tensor]:
        """What one step from the same state leaves behind."""
        self.m.copy_(self.first)
        step()
        return {key: getattr(self, key).clone() for key in ("m", "spikes", "bits", "grad_x")}


def build_numba() -> tuple[Callable[..., object], Callable[..., object]]:
    from stdl_engine.kernels.lif import cpu
    from stdl_engine.kernels.lif.ops import Options
    from stdl_engine.kernels.operands import Backward, Forward

    options = Options.checked(DECAY, THRESHOLD, "soft", 0.0, 1.0, True, "triangle", "cpu")

    def forward(x, m, spikes, bits):
        cpu.forward(Forward(1, x, m, m, spikes, bits), options)

    def backward(m, grad_spikes, grad_x):
        cpu.backward(Backward(1, m, grad_x, grad_spikes, online=True), options)

    return forward, backward


def build_cpp() -> tuple[Callable[..., object], Callable[..., object]]:
    from torch.utils.cpp_extension import load_inline

    # No fused multiply-add, so that results equal the others' bit for bit; memory is the limit anyway.
    flags = ["-O3", "-march=native", "-fopenmp", "-ffp-contract=off"]
    module = load_inline(
        "stdl_engine_bench_lif",
        CPP_SOURCE,
        functions=["forward", "backward"],
        extra_cflags=flags,
        extra_ldflags=["-fopenmp"],
    )
    return (
        lambda x, m, spikes, bits: module.forward(x, m, spikes, bits, DECAY, THRESHOLD),
        lambda m, grad_spikes, grad_x: module.backward(m, grad_spikes, grad_x, THRESHOLD),
    )


def build_compile() -> tuple[Callable[..., object], Callable[..., object]]:
    return torch.compile(_plain_forward), torch.compile(_plain_backward)


def build_compile_without_bits() -> tuple[Callable[..., object], Callable[..., object]]:
    return torch.compile(_plain_forward_without_bits), torch.compile(_plain_backward)


def _plain_forward(x: Tensor, m: Tensor, spikes: Tensor, bits: Tensor) -> None:
    fired = _advance(x, m, spikes)
    places = torch.arange(8, dtype=torch.uint8)
    bits.copy_((fired.view(-1, 8).to(torch.uint8) << places).sum(1, dtype=torch.uint8))


def _plain_forward_without_bits(x: Tensor, m: Tensor, spikes: Tensor, bits: Tensor) -> None:
    _advance(x, m, spikes)


def _advance(x: Tensor, m: Tensor, spikes: Tensor) -> Tensor:
    u = torch.where(m >= THRESHOLD, m - THRESHOLD, m)
    v = DECAY * u + x
    fired = v >= THRESHOLD
    m.copy_(v)
    spikes.copy_(fired)
    return fired


def _plain_backward(m: Tensor, grad_spikes: Tensor, grad_x: Tensor) -> None:
    distance = (m - THRESHOLD).abs()
    grad_x.copy_(grad_spikes * torch.where(distance < 1, 1 - distance, 0.0))


def no_compiler() -> str | None:
    compiler = os.environ.get("CXX", "g++")
    return None if shutil.which(compiler) else f"no C++ compiler ({compiler}) on this machine"


def no_ninja() -> str | None:
    from torch.utils.cpp_extension import is_ninja_available

    return no_compiler() or (None if is_ninja_available() else "ninja is not installed: pip install ninja")


CANDIDATES = {
    "numba": Candidate("the numba and llvmlite wheels", build_numba, lambda: None),
    "C++": Candidate("a C++ compiler with OpenMP, Python's headers and ninja", build_cpp, no_ninja),
    "torch.compile": Candidate("a C++ compiler with OpenMP and Python's headers", build_compile, no_compiler),
    "torch.compile, no bits": Candidate("the same", build_compile_without_bits, no_compiler, packs=False),
}


def start_up(name: str) -> tuple[float, float]:
    """Seconds to the end of the first step in a new process, with empty caches and then with what that run left."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            key: f"{folder}/{key}"
            for key in ("STDL_KERNEL_CACHE", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        }
        environment = {**os.environ, **caches}
        return _new_process(name, environment), _new_process(name, environment)


def _new_process(name: str, environment: dict[str, str]) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "bench.cpu_candidates", name]
    result = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"the first call of {name} in a new process failed:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])["seconds"]


def first_call(name: str) -> None:
    """Print the seconds to the end of the first step, as JSON."""
    tensors = Tensors(4096)
    start = time.perf_counter()
    tensors.bind(*CANDIDATES[name].build())()
    print(json.dumps({"seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    first_call(sys.argv[1])

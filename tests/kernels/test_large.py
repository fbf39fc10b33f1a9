"""Offsets beyond 2^31 elements, without the memory for them."""

import json
import mmap
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from stdl_engine.kernels import cpu_loop, cpu_threads
from stdl_engine.kernels.lif import cpu

LARGE = 2**31 + 5 * cpu_threads.CHUNK + 13

COMPILE = """
import json
from stdl_engine.kernels.inspect import KERNELS, TARGETS, compile_kernel
compiled = {name: compile_kernel(kernel, "float32", TARGETS["sm_90"]) for name, kernel in KERNELS.items()}
print(json.dumps({name: kernel.asm["ttir"] for name, kernel in compiled.items()}))
"""


@pytest.fixture(scope="module")
def intermediate_code() -> dict[str, str]:
    """Triton's, from a process that compiles and does not interpret."""
    pytest.importorskip("triton", reason="Triton is for Linux only")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_triton_offsets_are_64_bit(intermediate_code):
    for name, code in intermediate_code.items():
        # tt.addptr %pointers, %offsets : tensor<...x!tt.ptr<f32>...>, tensor<...xi64>
        offsets = re.findall(r"tt\.addptr .* : .*, (?:tensor<[\dx]*)?(i\d+)>?", code)
        assert len(offsets) == code.count("tt.addptr") > 2, name
        assert set(offsets) == {"i64"}, name
        # Products of the program's number, where 32 bits would overflow first.
        assert set(re.findall(r"arith\.muli .* : (?:tensor<[\dx]*)?(i\d+)>?", code)) == {"i64"}, name


def sparse(elements: int, dtype: type) -> np.ndarray:
    """Zeros that take memory only where they are touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return np.frombuffer(mmap.mmap(-1, elements * np.dtype(dtype).itemsize, flags=flags), dtype)


@pytest.mark.skipif(sys.platform != "linux", reason="needs memory that is only promised")
def test_cpu_reaches_the_last_neuron():
    """The last chunks of a state of 2^31 neurons and more: workers are handed the tickets of those only."""
    try:
        x, m, spikes = sparse(LARGE, np.uint16), sparse(LARGE, np.float32), sparse(LARGE, np.uint16)
        packed = sparse((LARGE + 7) // 8, np.uint8)
    except OSError:
        pytest.skip("this system promises no memory it does not have")
    first = LARGE // cpu_threads.CHUNK * cpu_threads.CHUNK - cpu_threads.CHUNK
    tail = torch.randn(LARGE - first)
    m[first:] = tail.numpy()
    kernel, record = cpu_loop._forward_kernel(torch.bfloat16, cpu.integrate_for("none"), True, False, False, False)
    addresses = [*(a.ctypes.data for a in (x, m, m, spikes, packed)), 0, 0, 0, 0]
    numbers = cpu_loop.Numbers(decay=0.5, threshold=0.25, scale=1.0)
    arguments = record(first // cpu_threads.CHUNK, LARGE, 1, *addresses, *numbers)
    cpu_threads.run(kernel, arguments, LARGE)
    assert arguments.ticket * cpu_threads.CHUNK >= LARGE
    np.testing.assert_array_equal(m[first:], (tail * 0.5).numpy())
    fired = tail * 0.5 >= 0.25
    np.testing.assert_array_equal(spikes[first:], fired.bfloat16().view(torch.uint16).numpy())
    np.testing.assert_array_equal(packed[first // 8 :], np.packbits(fired.numpy(), bitorder="little"))
    assert not m[first - cpu_threads.CHUNK : first].any()

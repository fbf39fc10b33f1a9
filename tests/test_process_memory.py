"""The memory of the process itself: followed, and kept close to that of its tensors."""

import mmap
import os
import subprocess
import sys

import pytest

from stdl_engine.process_memory import ProcessPeak, set_malloc

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
MB = 10**6


def test_the_peak_is_followed_after_it_has_gone():
    process = ProcessPeak.start()
    with mmap.mmap(-1, 100 * MB) as block:  # of its own: an array may lie where freed ones were
        block.write(bytes(100 * MB - 1) + b"1")
    assert process.growth >= 95 * MB
    assert process.peak >= process.held + 95 * MB


def test_each_start_counts_anew():
    before = ProcessPeak.start()
    with mmap.mmap(-1, 100 * MB) as block:  # of its own: an array may lie where freed ones were
        block.write(bytes(100 * MB - 1) + b"1")
    after = ProcessPeak.start()
    assert after.peak <= before.held + 60 * MB


def test_without_the_systems_files(monkeypatch):
    from pathlib import Path

    def missing(self, *args, **options):
        raise FileNotFoundError(str(self))

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(Path, "write_text", missing)
    process = ProcessPeak.start()
    assert process.peak > 10 * MB


HOLES = """
import ctypes, sys
from pathlib import Path
from stdl_engine.process_memory import set_malloc, _status
assert set_malloc(sys.argv[1])
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free(libc.malloc(31 << 20))  # by which glibc learns to serve such blocks from its heap
def take():
    block = libc.malloc(4 << 20)
    libc.memset(block, 1, 4 << 20)
    # The small one stays, and keeps the heap from shrinking. It is too large for the holes that Python has left.
    return block, libc.malloc(100_000)
before = _status("VmRSS")
blocks = [take() for _ in range(20)]
for large, small in blocks:
    libc.free(large)
print(_status("VmRSS") - before)
"""


@pytest.mark.skipif("glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="of glibc's malloc")
def test_blocks_are_given_back():
    """80 MiB in blocks that are freed with something small left between them: a heap keeps them, mappings go."""

    def kept(how):
        out = subprocess.run([sys.executable, "-c", HOLES, how], capture_output=True, text=True, check=True)
        return int(out.stdout)

    assert kept("system") > 70 << 20
    assert kept("tight") < 10 << 20


FAULTS = """
import ctypes, resource, sys
from stdl_engine.process_memory import set_malloc
assert set_malloc(sys.argv[1])
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def step():
    blocks = [libc.malloc(40 << 20) for _ in range(3)]
    for block in blocks:
        libc.memset(block, 1, 40 << 20)
    for block in blocks:
        libc.free(block)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif("glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="of glibc's malloc")
def test_freed_memory_is_there_for_the_next_step():
    """Without a page that the system has to provide again."""

    def faults(how):
        out = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        return int(out.stdout)

    assert faults("fast") < 100
    assert faults("system") > 100


def test_unknown():
    with pytest.raises(ValueError, match="unknown malloc 'slow': pass one of fast, system, tight"):
        set_malloc("slow")


def test_where_there_is_no_glibc(monkeypatch):
    import ctypes

    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert set_malloc("fast") is False
    monkeypatch.setattr(sys, "platform", "darwin")
    assert set_malloc("fast") is False

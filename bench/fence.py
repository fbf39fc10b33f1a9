"""Child processes in which every allocation lies between inaccessible pages (fence.c), to find out-of-bounds accesses.

A child runs numbered pieces of work and reports when it begins each. One that dies, or takes too long, is replaced by
another that continues after the piece it was at.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("fence.c")
WROTE_OUTSIDE = 97
"""The exit code of a child whose canaries were overwritten."""
MARK, SAYS = b"#", b"!"


def compiled(folder: str | Path) -> Path:
    """The allocator as a library for LD_PRELOAD."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise OSError("the fence is compiled from C: no cc, gcc or clang was found on the PATH.")
    library = Path(folder) / "fence.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def run_fenced(command: list[str], environment: dict[str, str]) -> None:
    """Run a program under the allocator, with these additional environment variables."""
    with tempfile.TemporaryDirectory() as folder:
        preload = {"LD_PRELOAD": str(compiled(folder))}
        subprocess.run(command, env=os.environ | environment | preload, check=True)


def failures(count: int, work: Callable[[int], str], seconds: float = 30) -> Iterator[tuple[int, str]]:
    """Pieces of work that failed, with what happened: death, a hang, or what `work(piece)` returned.

    Children are forked, which only a process without threads may do.
    """
    first = 0
    while first < count:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            _work(range(first, count), work, write)
        os.close(write)
        piece = first
        with os.fdopen(read, "rb", buffering=0) as pipe:
            for line in _lines(pipe.fileno(), seconds):
                if line.startswith(MARK):
                    piece = int(line[1:])
                elif line.startswith(SAYS):
                    yield piece, line[1:].decode()
                else:
                    os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        yield piece, _what_happened(status)
        first = piece + 1


def _work(pieces: range, work: Callable[[int], str], pipe: int) -> None:
    """A child's life."""
    for piece in pieces:
        os.write(pipe, MARK + b"%d\n" % piece)
        if said := work(piece):
            os.write(pipe, SAYS + said.encode() + b"\n")
    os._exit(0)


def _lines(pipe: int, seconds: float) -> Iterator[bytes]:
    """Lines from a pipe until its end, and an empty one whenever nothing came for this long."""
    rest = b""
    while True:
        began = time.monotonic()
        ready, _, _ = select.select([pipe], [], [], seconds)
        if not ready and time.monotonic() - began >= seconds:
            yield b""
            continue
        if not (found := os.read(pipe, 1 << 16)):
            return
        *lines, rest = (rest + found).split(b"\n")
        yield from lines


def _what_happened(status: int) -> str:
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        return "writes outside" if code == WROTE_OUTSIDE else f"ends with code {code}"
    number = os.WTERMSIG(status)
    return {signal.SIGKILL: "hangs", signal.SIGSEGV: "reads or writes outside"}.get(
        number, f"dies of {signal.Signals(number).name}"
    )

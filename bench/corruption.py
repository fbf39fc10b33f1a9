"""Which PyTorch convolutions corrupt memory on this CPU: `python -m bench.corruption`.

Every shape is trained in its own child process, with one thread. If a child failed, how it ended is printed: the signal
that it died of, or that it hung. Corruption that hits none of glibc's own data goes unnoticed. docs/cpus.md has the
findings.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

ROUNDS = 60
SECONDS = 20
"""Seconds after which a child is taken to hang."""
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


class Shape(NamedTuple):
    """A convolution and its input."""

    layout: str
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    padding: int
    grouped: bool

    def __str__(self) -> str:
        groups = ", a group for each channel" if self.grouped else ""
        padding = f", padding {self.padding}" if self.padding else ""
        kernel = f"{self.kernel}×{self.kernel}, stride {self.stride}{padding}{groups}"
        return f"{self.in_channels}→{self.out_channels}, {kernel}, {self.layout}"


def shapes() -> Iterator[Shape]:
    for layout, channels, out, (kernel, padding), stride, grouped in itertools.product(
        LAYOUTS, (1, 2, 3, 4, 5, 7, 8, 16), (8, 16), ((1, 0), (1, 1), (3, 0), (3, 1), (5, 2)), (1, 2, 3), (False, True)
    ):
        if not grouped or out % channels == 0:
            yield Shape(layout, channels, out, kernel, stride, padding, grouped)


def train(shape: Shape) -> None:
    """Some rounds of forward and backward; then much is allocated and freed, so that glibc notices what is broken."""
    layout = LAYOUTS[shape.layout]
    conv = nn.Conv2d(
        shape.in_channels, shape.out_channels, shape.kernel, shape.stride, shape.padding, bias=False,
        groups=shape.in_channels if shape.grouped else 1,
    ).to(memory_format=layout)  # fmt: skip
    for _ in range(ROUNDS):
        x = torch.randn(4, shape.in_channels, 8, 8).contiguous(memory_format=layout).requires_grad_()
        y = conv(x)
        y.backward(torch.randn_like(y))
        del x, y
    held = [torch.empty(size) for size in range(1, 4000, 7)]
    del held


def outcome(shape: Shape) -> str:
    """How a child that trained the shape ended: "done", "hung", or the name of the signal that killed it."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # glibc's last message
        train(shape)
        os._exit(0)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "done"
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def main() -> int:
    torch.set_num_threads(1)
    everything = list(shapes())
    broken = 0
    for shape in everything:
        if (found := outcome(shape)) != "done":
            broken += 1
            print(f"{shape}: {found}", flush=True)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{broken} of {len(everything)} shapes (torch {torch.__version__}, {capability}, one thread)")
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())

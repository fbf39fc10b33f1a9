"""Which PyTorch convolutions access memory that is not theirs, hang, or compute wrong numbers on this CPU.

    python -m bench.conv_corruption                                # every setting: hours
    python -m bench.conv_corruption --threads 1 --isa AVX2         # one setting
    python -m bench.conv_corruption --threads 1 --isa AVX2 --quick # a few shapes of it, in seconds

Every allocation of PyTorch and oneDNN lies between inaccessible pages (fence.c). A kernel that reads or writes outside
dies at once, instead of corrupting the heap for something else to find later, so one call is enough. Half a minute
without an answer counts as a hang. Numbers are compared with those in float64, which oneDNN does not compute.
docs/cpus.md has the findings.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .fence import failures, run_fenced
from .machine import cpu_model

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
DIRECTIONS = ("forward", "input's gradient", "weight's gradient", "transposed")
"""stdl_engine/memory/layers.py computes an input's gradient by a transposed convolution."""
ISAS = ("", "AVX2", "AVX", "SSE41")
"""Values of ONEDNN_MAX_CPU_ISA; an empty one lets oneDNN use whatever the CPU has."""
TOLERANCE = 1e-4


class Shape(NamedTuple):
    kernel: int
    stride: int
    dilation: int
    groups: str
    layout: str
    in_channels: int
    out_channels: int
    batch: int
    size: int

    @property
    def group_count(self) -> int:
        return {"one group": 1, "two groups": 2, "depthwise": self.in_channels}[self.groups]

    @property
    def padding(self) -> int:
        return self.dilation * (self.kernel - 1) // 2

    @property
    def out_size(self) -> int:
        return (self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def exists(self) -> bool:
        if (self.kernel == 1 and self.dilation > 1) or (self.groups == "depthwise" and self.in_channels == 1):
            return False  # written twice
        return self.in_channels % self.group_count == 0 == self.out_channels % self.group_count


def shapes(quick: bool) -> list[Shape]:
    """All combinations that are convolutions."""
    if quick:
        grid = ((1, 3), (1, 2), (1,), ("one group",), tuple(LAYOUTS), (3, 4, 8, 16), (8, 16), (3,), (16,))
    else:
        channels = (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 32)
        groups = ("one group", "two groups", "depthwise")
        grid = ((1, 2, 3, 5), (1, 2, 3), (1, 2), groups, tuple(LAYOUTS), channels, (1, 3, 8, 9, 16), (1, 3), (5, 8, 16))
    return [shape for shape in itertools.starmap(Shape, itertools.product(*grid)) if shape.exists]


def attempt(shape: Shape, direction: str) -> str:
    """Run a convolution in one direction; returns what is wrong with its numbers, or nothing."""
    generator = torch.Generator().manual_seed(0)
    sizes = (
        (shape.batch, shape.in_channels, shape.size, shape.size),
        (shape.out_channels, shape.in_channels // shape.group_count, shape.kernel, shape.kernel),
        (shape.batch, shape.out_channels, shape.out_size, shape.out_size),
    )
    operands = [torch.randn(size, generator=generator) for size in sizes]
    expected = convolve(shape, direction, *(operand.double() for operand in operands))
    layout = LAYOUTS[shape.layout]
    found = convolve(shape, direction, *(operand.contiguous(memory_format=layout) for operand in operands))
    right = (found - expected).abs().max() <= TOLERANCE * expected.abs().max()
    return "" if right else "computes something else"


def convolve(shape: Shape, direction: str, x: Tensor, weight: Tensor, grad: Tensor) -> Tensor:
    """The convolution of x, or the gradient that it gives for `grad`."""
    around = [[number] * 2 for number in (shape.stride, shape.padding, shape.dilation)]
    if direction == "forward":
        return torch.ops.aten.convolution(x, weight, None, *around, False, [0, 0], shape.group_count)
    if direction == "transposed":
        reached = shape.stride * (shape.out_size - 1) + shape.dilation * (shape.kernel - 1) + 1 - 2 * shape.padding
        return torch.ops.aten.convolution(
            grad, weight, None, *around, True, [shape.size - reached] * 2, shape.group_count
        )
    wanted = [direction == "input's gradient", direction == "weight's gradient", False]
    found = torch.ops.aten.convolution_backward(
        grad, x, weight, None, *around, False, [0, 0], shape.group_count, wanted
    )
    return found[wanted.index(True)]


def look(threads: int, quick: bool) -> None:
    """Try all shapes in this process's children and print what happened."""
    work = list(itertools.product(shapes(quick), DIRECTIONS))

    def piece(number: int) -> str:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return attempt(*work[number])

    seen = defaultdict(list)
    for number, happened in failures(len(work), piece):
        shape, direction = work[number]
        family = (direction, f"{shape.kernel}×{shape.kernel}", shape.stride, shape.dilation, shape.groups, shape.layout)
        seen[*family, happened].append(shape)
    count = sum(map(len, seen.values()))
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA") or "as the CPU has"
    print(f"\n{threads} threads, ONEDNN_MAX_CPU_ISA {isa}: {len(work)} tried, {count} failed", flush=True)
    for (direction, kernel, stride, dilation, groups, layout, happened), found in seen.items():
        dilated = f", dilation {dilation}" if dilation > 1 else ""
        print(
            f"  {direction}, {kernel}, stride {stride}{dilated}, {groups}, {layout}: {len(found)} of them, {happened}"
        )
        for field in ("in_channels", "out_channels", "batch", "size"):
            print(f"    {field:<13}{sorted({getattr(shape, field) for shape in found})}")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.conv_corruption", description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", nargs="+", default=ISAS, help="values of ONEDNN_MAX_CPU_ISA, '' for the CPU's own")
    parser.add_argument("--quick", action="store_true", help="a few shapes only")
    parser.add_argument("--fenced", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.fenced:
        look(options.threads[0], options.quick)
        return 0
    print(f"torch {torch.__version__}, oneDNN as it has it, {cpu_model()}, {torch.backends.cpu.get_cpu_capability()}")
    for isa, threads in itertools.product(options.isa, options.threads):
        command = [sys.executable, "-m", "bench.conv_corruption", "--fenced", "--threads", str(threads)]
        # Threads that wait without spinning: these convolutions are small, and other processes want the cores too.
        environment = {"OMP_WAIT_POLICY": "passive"} | ({"ONEDNN_MAX_CPU_ISA": isa} if isa else {})
        try:
            run_fenced([*command, *(["--quick"] if options.quick else [])], environment)
        except OSError as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

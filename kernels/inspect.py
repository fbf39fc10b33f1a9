"""Memory traffic, vector width, registers and spills of each compiled kernel. No GPU is needed.

    python -m stdl_engine.kernels.inspect [--json] [--target sm_90 ...] [--kernel lif_online_fwd ...]

Kernels are compiled as their launcher would for tensors of under 2 GB, aligned to 16 bytes, whose size is a multiple of
16 (for other sizes Triton cannot tell that a mask is uniform over a vector, and accesses one element at a time), with
soft reset and the triangle surrogate. The figures:

bytes_read, bytes_written: global memory per neuron, counted from the loads and stores of the PTX or AMD assembly: the
    bytes of each × threads / neurons of a program. If several threads write the same, each of them counts. For a kernel
    that loops over time steps, per neuron and step: what is in the loop. Numbers that all neurons of a program share, a
    trainable decay or the sum of its gradient, are 4 bytes per 1024 neurons and are left out. Kernels of batch norm are
    compiled for 64 channels and one time step. Their assembly does not tell a map from numbers that belong to a
    channel, so the bytes of maps are counted in Triton's own intermediate code, where a map has two dimensions.
vector_bits: the narrowest access to a full map, an operand with one element per neuron. Spike bits are not a map:
    byte-wide accesses that add up to an eighth of a byte per neuron are theirs, others are narrow accesses to a map.
registers: per thread, from the cubin (NVIDIA) or the assembly's metadata (AMD, vector registers).
spills: bytes of stack per thread, from the same places; 0 when every value stays in a register.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel, make_backend

from ..extras import extra
from ..unread_output import ending_quietly
from . import dispatch
from .alif import triton as alif
from .lif import triton as lif
from .norm_lif import triton_fire, triton_norm
from .triton_tile import BLOCK, THREADS, surrogate

with extra("train", __name__):
    import rich
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Kernel:
    """A Triton source of a neuron's `triton.py` with its compile-time choices."""

    source: triton.JITFunction
    io: tuple[str, ...]
    """Pointers to the caller's dtype. Of the others `p_bits` points to bytes, the rest to float32 state."""
    constants: dict[str, Any]
    """The source's constexprs, except BLOCK."""
    shared: tuple[str, ...] = ()
    """Pointers to numbers that all neurons of a program share: the decay, a sum over its neurons."""
    in_loop: bool = False
    """Whether it loops over time steps."""
    of_channels: Literal["", "all", "in loop"] = ""
    """For kernels of batch norm: which accesses to maps happen once per neuron."""


def _forward(source: triton.JITFunction, pack: bool, many: bool, shared: tuple[str, ...] = (), **own: Any) -> Kernel:
    choices = {"PACK": pack, "MANY": many, "KEEP": many} | own
    return Kernel(source, ("p_x", "p_spikes"), choices, shared, in_loop=many)


def _backward(source: triton.JITFunction, online: bool, many: bool, shared: tuple[str, ...] = (), **own: Any) -> Kernel:
    # One online step has no past, one exact step has all of it; a sequence begins at a constant.
    past = dict.fromkeys(("HAS_GRAD_M", "HAS_PAST", *own.pop("more_past", ())), not (online or many))
    choices = {"SURROGATE": surrogate("triangle"), "DETACH_RESET": online, "HAS_GRAD_SPIKES": True}
    choices |= {"MANY": many, "ONLINE": online}
    return Kernel(source, ("p_grad_spikes", "p_grad_x"), choices | past | own, shared, in_loop=many and not online)


def _norm(source: triton.JITFunction, counted: Literal["all", "in loop"] = "all", **choices: Any) -> Kernel:
    io = "p_x", "p_spikes", "p_added", "p_grad", "p_grad_spikes", "p_grad_x"
    return Kernel(source, io, choices, of_channels=counted)


_LIF: dict[str, Any] = {"RESET": "soft", "LEARNED": False, "SCALE_BY_DECAY": False}
_LIF_BACK = _LIF | {"HAS_GRAD_W": False}
_PLIF = _LIF | {"LEARNED": True, "shared": ("p_decay",)}
_PLIF_BACK = _PLIF | {"HAS_GRAD_W": True, "shared": ("p_decay", "p_partial")}
_PLIF_ONLINE_BACK = _PLIF_BACK | {"shared": ("p_partial",)}
_ALIF: dict[str, Any] = {"ADVANCE": True}
_ALIF_BACK = _ALIF | {"more_past": ("HAS_GRAD_ADAPT",)}
_INNERMOST: dict[str, Any] = {"CHANNELS": 64, "WIDTH": 64, "RUN": 1}
_PADDED: dict[str, Any] = {"CHANNELS": 48, "WIDTH": 64, "RUN": 1}
_RUNS: dict[str, Any] = {"CHANNELS": 64, "WIDTH": 1, "RUN": 256}
_NORM_FWD: dict[str, Any] = {"RESET": "soft", "LEARNED": False, "SCALE_BY_DECAY": False, "KEEP": False, "ADDS": ""}
_NORM_BWD: dict[str, Any] = {
    "SURROGATE": surrogate("triangle"), "RESET": "soft", "LEARNED": False, "SCALE_BY_DECAY": False,
    "HAS_GRAD_SPIKES": True, "HAS_GRAD_W": False,
}  # fmt: skip
_ONLINE = {"DETACH_RESET": True, "HAS_GRAD_M": False, "HAS_PAST": False}
_EXACT = {"DETACH_RESET": False, "HAS_GRAD_M": True, "HAS_PAST": True}
KERNELS = {
    "lif_online_fwd": _forward(lif.lif_fwd, pack=True, many=False, **_LIF),
    "lif_online_bwd": _backward(lif.lif_bwd, online=True, many=False, **_LIF_BACK),
    "lif_fwd": _forward(lif.lif_fwd, pack=False, many=False, **_LIF),
    "lif_bwd": _backward(lif.lif_bwd, online=False, many=False, **_LIF_BACK),
    "lif_sequence_fwd": _forward(lif.lif_fwd, pack=True, many=True, **_LIF),
    "lif_sequence_bwd": _backward(lif.lif_bwd, online=False, many=True, **_LIF_BACK),
    "lif_online_sequence_bwd": _backward(lif.lif_bwd, online=True, many=True, **_LIF_BACK),
    "plif_online_fwd": _forward(lif.lif_fwd, pack=True, many=False, **_PLIF),
    "plif_online_bwd": _backward(lif.lif_bwd, online=True, many=False, **_PLIF_ONLINE_BACK),
    "plif_bwd": _backward(lif.lif_bwd, online=False, many=False, **_PLIF_BACK),
    "plif_sequence_fwd": _forward(lif.lif_fwd, pack=True, many=True, **_PLIF),
    "plif_sequence_bwd": _backward(lif.lif_bwd, online=False, many=True, **_PLIF_BACK),
    "plif_online_sequence_bwd": _backward(lif.lif_bwd, online=True, many=True, **_PLIF_ONLINE_BACK),
    "alif_online_fwd": _forward(alif.alif_fwd, pack=True, many=False, **_ALIF),
    "alif_online_bwd": _backward(alif.alif_bwd, online=True, many=False, **_ALIF_BACK),
    "alif_bwd": _backward(alif.alif_bwd, online=False, many=False, **_ALIF_BACK),
    "alif_sequence_fwd": _forward(alif.alif_fwd, pack=True, many=True, **_ALIF),
    "alif_sequence_bwd": _backward(alif.alif_bwd, online=False, many=True, **_ALIF_BACK),
    "alif_online_sequence_bwd": _backward(alif.alif_bwd, online=True, many=True, **_ALIF_BACK),
    "norm_moments": Kernel(triton_norm.norm_moments, ("p_x",), _INNERMOST, of_channels="in loop"),
    "norm_moments_runs": Kernel(triton_norm.norm_moments, ("p_x",), _RUNS, of_channels="in loop"),
    "norm_lif_fwd": _norm(triton_fire.norm_lif_fwd, **_NORM_FWD, **_INNERMOST, DENSE=False),
    "norm_lif_padded_fwd": _norm(triton_fire.norm_lif_fwd, **_NORM_FWD, **_PADDED, DENSE=False),
    "norm_lif_runs_fwd": _norm(triton_fire.norm_lif_fwd, **_NORM_FWD, **_RUNS, DENSE=False),
    "norm_lif_dense_fwd": _norm(triton_fire.norm_lif_fwd, **_NORM_FWD, **_INNERMOST, DENSE=True),
    "norm_lif_added_fwd": _norm(triton_fire.norm_lif_fwd, **_NORM_FWD | {"ADDS": "map"}, **_INNERMOST, DENSE=False),
    "norm_lif_online_bwd": _norm(triton_fire.norm_lif_bwd, "in loop", **_NORM_BWD, **_ONLINE, **_INNERMOST),
    "norm_lif_runs_online_bwd": _norm(triton_fire.norm_lif_bwd, "in loop", **_NORM_BWD, **_ONLINE, **_RUNS),
    "norm_lif_bwd": _norm(triton_fire.norm_lif_bwd, "in loop", **_NORM_BWD, **_EXACT, **_INNERMOST),
    "norm_lif_steps_bwd": _norm(triton_fire.norm_lif_steps_bwd, "in loop", **_NORM_BWD, **_EXACT, **_INNERMOST),
    "norm_map": Kernel(triton_norm.norm_map, ("p_x", "p_y"), _INNERMOST, of_channels="all"),
    "norm_sums": Kernel(triton_norm.norm_sums, ("p_x", "p_grad"), _INNERMOST, of_channels="in loop"),
    "norm_grad_x": _norm(triton_norm.norm_grad_x, CONSTANT=False, **_INNERMOST),
    "norm_grad_x_runs": _norm(triton_norm.norm_grad_x, CONSTANT=False, **_RUNS),
}
"""The forward kernel of a sequence is the same online or not."""


class Access(NamedTuple):
    """One load or store of global memory by a thread."""

    is_load: bool
    bits: int


def compile_kernel(kernel: Kernel, dtype: str, target: GPUTarget) -> CompiledKernel:
    """Compile ahead of time, with the types, alignments and options of a launch."""
    source = kernel.source
    constants = kernel.constants | {"BLOCK": BLOCK}
    backend = make_backend(target)
    signature, attributes = {}, {}
    for i, name in enumerate(source.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name.startswith("p_"):
            own = {"p_bits": "u8", "p_added_bits": "u8", "p_sums": "fp64"}
            element = DTYPES[dtype] if name in kernel.io else own.get(name, "fp32")
            signature[name] = f"*{element}"
            attributes[i,] = backend.parse_attr("DS")  # divisible by 16; under 2 GB, where the backend cares
        elif name == "n":
            signature[name] = "i32"
            attributes[i,] = backend.parse_attr("D")
        elif name in ("steps", "programs", "groups", "steps_each", "tiles_each", "pixels_each"):
            signature[name] = "i32"
        else:
            signature[name] = "fp32"
    options = {"num_warps": THREADS // target.warp_size, "enable_fp_fusion": False}
    return triton.compile(ASTSource(source, signature, constants, attributes), target=target, options=options)


def accesses(assembly: str, in_loop: bool = False, anywhere: bool = False) -> list[Access]:
    """The loads and stores of global memory in PTX or AMD assembly, or those in its one loop; raises if one may run
    more often than that, unless they may be `anywhere`."""
    found: list[Access] = []
    labels: dict[str, int] = {}
    loop: list[Access] | None = None
    for line in assembly.splitlines():
        if label := re.match(r"([$.]\w+):", line):
            labels[label[1]] = len(found)
        elif (jump := re.search(r"\b(?:bra|s_c?branch)\S*\s+([$.]\w+)", line)) and jump[1] in labels:
            if anywhere:
                continue
            if not in_loop or loop is not None:
                raise ValueError(f"cannot count the bytes of a loop: {line.strip()}")
            loop = found[labels[jump[1]] :]
        elif ptx := re.search(r"\b(ld|st)(?:\.\w+)*?\.global\S*?(?:\.v(\d))?\.[bsuf](\d+)\s", line):
            found.append(Access(ptx[1] == "ld", int(ptx[2] or 1) * int(ptx[3])))
        elif amd := re.search(
            r"\b(?:global|buffer)_(load|store)_[us]?(byte|short|dword)(?:x(\d))?(?:_d16)?(?:_hi)?\s", line
        ):
            bits = {"byte": 8, "short": 16, "dword": 32}[amd[2]]
            found.append(Access(amd[1] == "load", int(amd[3] or 1) * bits))
        elif re.match(
            r"\s+(?:@\S+\s+)?(?!cvta)(?:[a-z]\S*\.global\b|(?:global|buffer|flat)_(?:load|store|atomic))", line
        ):
            raise ValueError(f"cannot count the bytes of this instruction: {line.strip()}")
    if not in_loop:
        return found
    if loop is None:
        raise ValueError("cannot count the bytes of the loop: there is none in this assembly")
    return loop


def map_accesses(code: str, in_loop: bool) -> list[tuple[bool, float]]:
    """The accesses to tensors of two dimensions in Triton's intermediate code, or those in its one loop: whether each
    is a load, and its bytes per neuron."""
    if in_loop:
        (loop,) = re.finditer(r"^( *)\S[^\n]*= scf\.for .*?^\1\}", code, re.MULTILINE | re.DOTALL)
        code = loop[0]
    access = r"tt\.(load|store) .*: tensor<(\d+)x(\d+)x!tt\.ptr<[a-z]+(\d+)>>"
    return [
        (kind == "load", int(rows) * int(columns) * int(bits) / 8 / BLOCK)
        for kind, rows, columns, bits in re.findall(access, code)
    ]


def resources(compiled: CompiledKernel) -> tuple[int, int]:
    """Registers and bytes of stack per thread."""
    if "amdgcn" in compiled.asm:
        found = re.findall(r"^ +\.(\w+): +(\d+)$", compiled.asm["amdgcn"], re.MULTILINE)
        metadata = {key: int(value) for key, value in found}
        spilled = 4 * (metadata["vgpr_spill_count"] + metadata["sgpr_spill_count"])
        return metadata["vgpr_count"], max(spilled, metadata["private_segment_fixed_size"])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", usage)
    if line is None:
        raise ValueError(f"cannot find the registers in what cuobjdump printed: {usage.strip()}")
    registers, stack, local = map(int, line.groups())
    return registers, stack + local


def figures(name: str, dtype: str, target: str) -> dict[str, Any]:
    """One row of the report."""
    kernel = KERNELS[name]
    compiled = compile_kernel(kernel, dtype, TARGETS[target])
    found = _of_channels(kernel, compiled) if kernel.of_channels else _of_neurons(kernel, compiled)
    registers, spills = resources(compiled)
    return {"kernel": name, "dtype": dtype, "target": target, **found, "registers": registers, "spills": spills}


def _assembly(compiled: CompiledKernel) -> str:
    return compiled.asm["amdgcn" if "amdgcn" in compiled.asm else "ptx"]


def _bytes(some: Iterable[Access]) -> float:
    """Per neuron."""
    return sum(access.bits for access in some) / 8 * THREADS / BLOCK


def _of_neurons(kernel: Kernel, compiled: CompiledKernel) -> dict[str, Any]:
    """Traffic of a kernel whose maps have no channels."""
    found = accesses(_assembly(compiled), kernel.in_loop)
    if sum(a.bits == 32 for a in found) <= len(kernel.shared):  # more would be narrow accesses to a map
        found = [a for a in found if a.bits != 32]
    has_bits = _bytes(a for a in found if a.bits == 8) == 1 / 8
    return {
        "bytes_read": _bytes(a for a in found if a.is_load),
        "bytes_written": _bytes(a for a in found if not a.is_load),
        "vector_bits": min(a.bits for a in found if not (has_bits and a.bits == 8)),
    }


def _of_channels(kernel: Kernel, compiled: CompiledKernel) -> dict[str, Any]:
    """Traffic of a kernel of batch norm. The narrowest access to a map is one that all bytes of maps need: wider ones
    do not add up to them."""
    maps = map_accesses(compiled.asm["ttir"], kernel.of_channels == "in loop")
    found = accesses(_assembly(compiled), anywhere=True)
    widths = sorted({a.bits for a in found}, reverse=True)
    needed = sum(size for _, size in maps if size >= 1)  # without bits
    return {
        "bytes_read": sum(size for is_load, size in maps if is_load),
        "bytes_written": sum(size for is_load, size in maps if not is_load),
        "vector_bits": next(width for width in widths if _bytes(a for a in found if a.bits >= width) >= needed),
    }


def inspect_kernels(kernels: Iterable[str] = KERNELS, targets: Iterable[str] = TARGETS) -> list[dict[str, Any]]:
    """Figures for every kernel, dtype and target, in that order."""
    todo = [(kernel, dtype, target) for kernel in kernels for dtype in DTYPES for target in targets]
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        return [figures(*one) for one in progress.track(todo, description="Compiling")]


def print_table(rows: list[dict[str, Any]]) -> None:
    """Rows as text, for people."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("kernel", "dtype", "target"):
        table.add_column(heading, no_wrap=True)
    for heading in ("read\nB/neuron", "written\nB/neuron", "vector\nbits", "registers", "spills\nB/thread"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    rich.print(table)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    with ending_quietly():
        command(arguments)


def command(arguments: list[str] | None) -> None:
    parser = argparse.ArgumentParser(prog="python -m stdl_engine.kernels.inspect", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    parser.add_argument("--target", nargs="+", default=TARGETS, metavar="NAME", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--kernel", nargs="+", default=KERNELS, metavar="NAME", help=f"of {', '.join(KERNELS)}")
    options = parser.parse_args(arguments)
    for what, names, known in (("target", options.target, TARGETS), ("kernel", options.kernel, KERNELS)):
        for name in names:
            if name not in known:
                parser.exit(2, f"unknown {what} {name!r}: pass one of {', '.join(known)}.\n")
    if dispatch.interpreting():
        parser.exit(2, "TRITON_INTERPRET is set, under which Triton compiles nothing: unset it and run this again.\n")
    rows = inspect_kernels(options.kernel, options.target)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()

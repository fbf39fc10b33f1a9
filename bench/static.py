"""Bytes per neuron and kernels launched per time step on a GPU, counted without one.

Our Triton kernels and SpikingJelly's are compiled ahead of time for sm_90 by the same code, with the types, alignments
and options of their launches, and the loads and stores of the generated PTX are counted. Beside each figure is the
minimum: every operand read once, every result written once, states in float32. Launches are counted in Triton's
interpreter, and for plain PyTorch as operators.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .libraries import missing
from .markdown import figure, number, pivot, under

if TYPE_CHECKING:
    from .results import Row
    from .session import Session

TARGET = "sm_90"
STEPS = 4


@dataclass(frozen=True)
class Moves:
    """What a kernel must read and write: float32 states, maps in the caller's dtype, and maybe the spikes' bits."""

    states: int
    maps: int = 2
    bits: bool = False

    def bytes(self, itemsize: int) -> float:
        """A neuron and step."""
        return 4 * self.states + itemsize * self.maps + self.bits / 8


MINIMUM = {
    "lif_online_fwd": Moves(2, bits=True),  # x, m in; m, spikes out
    "lif_online_bwd": Moves(1),  # m, the spikes' gradient in; x's gradient out
    "lif_fwd": Moves(2),
    "lif_bwd": Moves(4),  # m, the previous m and m's gradient in; the gradient of the previous m out
    "lif_sequence_fwd": Moves(1, bits=True),  # m is written for backward, never read
    "lif_sequence_bwd": Moves(1),
    "lif_online_sequence_bwd": Moves(1),
    "plif_online_fwd": Moves(2, bits=True),
    "plif_online_bwd": Moves(2),  # the previous m, for the decay's gradient
    "plif_bwd": Moves(4),
    "plif_sequence_fwd": Moves(1, bits=True),
    "plif_sequence_bwd": Moves(1),
    "plif_online_sequence_bwd": Moves(2),
    "alif_online_fwd": Moves(4, bits=True),  # two states
    "alif_online_bwd": Moves(2),
    "alif_bwd": Moves(8),
    "alif_sequence_fwd": Moves(2, bits=True),
    "alif_sequence_bwd": Moves(2),
    "alif_online_sequence_bwd": Moves(2),
    "norm_moments": Moves(0, maps=1),  # x in
    "norm_moments_runs": Moves(0, maps=1),
    "norm_lif_fwd": Moves(2, maps=1, bits=True),  # x, m in; m, bits out
    "norm_lif_padded_fwd": Moves(2, maps=1, bits=True),
    "norm_lif_runs_fwd": Moves(2, maps=1, bits=True),
    "norm_lif_dense_fwd": Moves(2, bits=True),
    "norm_lif_added_fwd": Moves(2, bits=True),  # what is added in
    "norm_lif_online_bwd": Moves(1, maps=3),  # m, x, the spikes' gradient in; the gradient of batch norm's output out
    "norm_lif_runs_online_bwd": Moves(1, maps=3),
    "norm_lif_bwd": Moves(4, maps=3),
    "norm_lif_steps_bwd": Moves(1, maps=3),  # m of each step, x, the spikes' gradient in
    "norm_map": Moves(0, maps=2),
    "norm_sums": Moves(0, maps=2),  # that gradient, x in
    "norm_grad_x": Moves(0, maps=3),  # that gradient, x in; x's gradient out
    "norm_grad_x_runs": Moves(0, maps=3),
}
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
COLUMNS = {
    "bytes a neuron and step": "bytes per neuron and step, compiled for sm_90",
    "bytes against the minimum": "times the minimum",
}
LAUNCHES = 1.0
"""The fewest kernels per step and direction; fewer only if one kernel runs several steps."""


def run(session: Session) -> None:
    if importlib.util.find_spec("triton") is None:
        session.refuse("bytes a neuron", "bytes", "triton is not installed: pip install triton (Linux)", who="Triton")
        return
    from stdl_engine.kernels import dispatch

    if dispatch.interpreting():
        raise ValueError("TRITON_INTERPRET is set, under which Triton compiles nothing: unset it and run this again.")
    kernels(session)
    against_spikingjelly(session)
    session.show("counting launches in Triton's interpreter")
    launches(session)


def kernels(session: Session) -> None:
    """Bytes, vector width, registers and spills of our kernels."""
    from stdl_engine.kernels.inspect import KERNELS, figures

    for name in KERNELS:
        for dtype in ("float32",) if session.quick else ITEMSIZE:
            session.show(f"compiling {name}, {dtype}")
            found = figures(name, dtype, TARGET)
            moved = found["bytes_read"] + found["bytes_written"]
            fields = {"who": name, "shape": TARGET, "dtype": dtype}
            note = f"{found['vector_bits']}-bit accesses, {found['registers']} registers, {found['spills']} B spilled"
            session.record("bytes a neuron and step", "bytes", moved, note=note, **fields)
            if name in MINIMUM:  # a new kernel has no entry yet
                least = MINIMUM[name].bytes(ITEMSIZE[dtype])
                session.record("bytes against the minimum", "x", moved / least, at_most=1.0, **fields)


def against_spikingjelly(session: Session) -> None:
    """The same job by our exact kernels and by SpikingJelly's: one step, and four in one kernel."""
    if reason := missing("spikingjelly"):
        session.refuse("bytes a neuron and step", "bytes", reason, who="SpikingJelly")
        return
    for T, ours in ((1, "lif_{}"), (STEPS, "lif_sequence_{}")):
        for direction in ("fwd", "bwd"):
            session.show(f"compiling SpikingJelly's LIF, T={T}, {direction}")
            theirs = jelly_figures(direction, T)
            mine = our_figures(ours.format(direction), T)
            what = f"exact LIF, T={T}, {'forward' if direction == 'fwd' else 'backward'}"
            for who, found in (("FusedLIF", mine), ("SpikingJelly", theirs)):
                fields = {"who": who, "shape": TARGET, "dtype": "float32", "note": found["note"]}
                session.record(what, "bytes", found["bytes"], **fields)
            ratio = theirs["bytes"] / mine["bytes"]
            fields = {"who": "FusedLIF", "against": "SpikingJelly", "shape": TARGET, "dtype": "float32"}
            session.record(what, "x", ratio, **fields)


def our_figures(name: str, T: int) -> dict[str, Any]:
    """Bytes per neuron and step of one of our kernels over T steps, including what is outside its loop."""
    from stdl_engine.kernels.inspect import KERNELS, TARGETS, compile_kernel
    from stdl_engine.kernels.triton_tile import BLOCK, THREADS

    kernel = KERNELS[name]
    compiled = compile_kernel(kernel, "float32", TARGETS[TARGET])
    per_thread = thread_bytes(compiled.asm["ptx"], T - 1)  # the last step comes after the loop
    return _figures(per_thread * THREADS / BLOCK / T, compiled)


def jelly_figures(direction: str, T: int) -> dict[str, Any]:
    """The same for SpikingJelly's kernel, with the block size and the options of its own launch."""
    import triton
    from spikingjelly._ops.lif import triton as jelly
    from triton.compiler import ASTSource, make_backend

    from stdl_engine.kernels.inspect import TARGETS

    block, warps = 256, 4  # Triton's default number of warps, which SpikingJelly leaves as it is
    constants = {"T": T, "DECAY_INPUT": False, "SOFT_RESET": True, "STORE_V_SEQ": False, "BLOCK": block, "LAYOUT": None}
    source = jelly._forward_kernel if direction == "fwd" else jelly._backward_kernel
    if direction == "bwd":
        constants |= {"DETACH_RESET": False, "SURROGATE": 2, "UNROLL": T}
    backend = make_backend(TARGETS[TARGET])
    signature, attributes = {}, {}
    for place, name in enumerate(source.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name], attributes[place,] = "*fp32", backend.parse_attr("DS")
        elif name == "N":
            signature[name], attributes[place,] = "i32", backend.parse_attr("D")
        else:
            signature[name] = "fp32"
    options = {"num_warps": warps, "enable_fp_fusion": False}
    built = ASTSource(source, signature, constants, attributes)
    compiled = triton.compile(built, target=TARGETS[TARGET], options=options)
    per_thread = thread_bytes(compiled.asm["ptx"], T)
    return _figures(per_thread * warps * TARGETS[TARGET].warp_size / block / T, compiled)


def thread_bytes(ptx: str, runs: int) -> float:
    """Bytes that a thread moves; those of a loop, if there is one, count as often as it runs."""
    from stdl_engine.kernels.inspect import accesses

    try:
        return sum(access.bits for access in accesses(ptx)) / 8
    except ValueError:  # there is a loop
        inside = sum(access.bits for access in accesses(ptx, in_loop=True)) / 8
        everything = sum(access.bits for access in accesses(re.sub(r"^.*\bbra\b.*$", "", ptx, flags=re.M))) / 8
        return everything + (runs - 1) * inside


def _figures(moved: float, compiled: Any) -> dict[str, Any]:
    from stdl_engine.kernels.inspect import accesses, resources

    flat = accesses(re.sub(r"^.*\bbra\b.*$", "", compiled.asm["ptx"], flags=re.M))
    narrowest = min(access.bits for access in flat if access.bits > 8)
    registers, spills = resources(compiled)
    return {"bytes": moved, "note": f"{narrowest}-bit accesses, {registers} registers, {spills} B spilled"}


def launches(session: Session) -> None:
    """Kernels per step, for everyone."""
    from .launches import in_interpreter

    for row in in_interpreter():
        for direction in ("forward", "backward"):
            ours = row["who"].startswith("Fused")
            what = f"launches a step, {direction}, {row['what']}"
            fields = {"who": row["who"], "note": row["note"]}
            session.record(what, "launches", row[direction], at_most=LAUNCHES if ours else None, **fields)


def tables(rows: Sequence[Row]) -> list[str]:
    """Bytes beside the minimum, the same job by SpikingJelly, and launches."""
    moved = [row for row in rows if row.what in COLUMNS]
    same = [row for row in rows if row.what.startswith("exact LIF") and row.unit == "bytes"]
    launched = [row for row in rows if row.unit == "launches"]
    return [
        pivot(moved, lambda row: f"{row.who}, {row.dtype}", lambda row: COLUMNS[row.what], _figure_and_note, "kernel"),
        *under(
            "The same job by SpikingJelly's Triton kernel, bytes per neuron and step:",
            pivot(same, lambda row: row.what, lambda row: row.who, _figure_and_note),
        ),
        *under(
            "Kernels launched per time step:",
            pivot(launched, lambda row: row.who, lambda row: row.what.partition(", ")[2], figure),
        ),
    ]


def _figure_and_note(row: Row) -> str:
    return f"{number(row.spread.p50)} ({row.note})" if row.note else number(row.spread.p50)

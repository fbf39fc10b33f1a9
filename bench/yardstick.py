"""Images per second and peak GiB of SEW-ResNet-18 on images of ImageNet's size, in bfloat16.

SpikingJelly's own `sew_resnet18` with the settings of its benchmark of one GPU (LIF neurons, tau 2, hard reset, ADD;
T=4 different frames of 224×224; SGD with momentum), at batch 112 and under autocast to bfloat16. It is trained by
SpikingJelly with each of its implementations of the neuron (`SJ_LIF_CUDA_IMPLEMENTATION`), in the same loop with our
neurons in place of its own (`convert_neurons`), and by our rules (`units_from`). Every contender runs in its own
process, in the memory layout that is faster for it; the processes take turns for some rounds, and the peak is that of
CUDA's allocator in the whole process. If one does not fit the GPU, all of them also run with a smaller batch. Our rules
take batch norm's statistics per time step, SpikingJelly's network over all time steps.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from stdl_engine.convert import convert_neurons, units_from
from stdl_engine.memory.tracker import CudaTracker
from stdl_engine.rules import RULES

from . import jelly
from .layouts import LAYOUTS
from .libraries import missing
from .markdown import figure, pivot
from .places import BENCH
from .results import Row
from .session import OUT_OF_MEMORY, Session, failure
from .timing import Case, interleave, ratios, spread
from .training import T, peak_bytes
from .workload import SGD

WHAT = "sew_resnet18, training step"
COLUMNS = {"images/s": "images per second", "GiB": "peak GiB"}
GIB = 2**30
IMPLEMENTATION = "SJ_LIF_CUDA_IMPLEMENTATION"
LIMIT = 1200
"""Seconds that one process may take."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A batch of square images, and how often a process repeats the step."""

    batch: int
    side: int = 224
    steps: int = 10
    rounds: int = 3

    def __str__(self) -> str:
        return f"{self.side}×{self.side}, batch {self.batch}, T={T}"


SIZES = (Size(batch=112), Size(batch=32))
"""The size that counts, and a smaller one for GPUs in which it does not fit."""
QUICK_SIZES = tuple(Size(batch=size.batch, rounds=1) for size in SIZES)
DRY_SIZES = (Size(batch=2, side=32, steps=1, rounds=1),)


class Loop(jelly.Trainer):
    """SpikingJelly's usual way to train: all time steps together, autocast around the network."""

    def step(self, x: Tensor, y: Tensor, T: int) -> Tensor:
        from spikingjelly.activation_based import functional

        self.model.train()
        with torch.autocast(x.device.type, torch.bfloat16):
            steps = self.model(x[:T])
        jelly.loss_of(steps.float(), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        functional.reset_net(self.model)
        return steps.detach().mean(0)


def network() -> nn.Module:
    """SpikingJelly's network, always with the same weights."""
    from spikingjelly.activation_based import functional, neuron
    from spikingjelly.activation_based.model import sew_resnet

    torch.manual_seed(1)
    model = sew_resnet.sew_resnet18(cnf="ADD", spiking_neuron=neuron.LIFNode, tau=2.0, detach_reset=True)
    functional.set_step_mode(model, "m")
    return model


def theirs(model: nn.Module, x: Tensor) -> Loop:
    return Loop(model, SGD, "m")


def theirs_with_our_neurons(model: nn.Module, x: Tensor) -> Loop:
    convert_neurons(model)
    return Loop(model, SGD, "m")


def ours(rule: str, **options) -> Callable:
    def build(model: nn.Module, x: Tensor):
        from spikingjelly.activation_based import functional

        functional.set_step_mode(model, "s")
        return RULES[rule](units_from(model), SGD, x[0], precision="bf16", steps=T, sequence=True, **options)

    return build


PEERS = {f"SpikingJelly, {name}": name for name in ("torch", "triton", "cuda")}
"""SpikingJelly's contenders, and its names for the implementations; "cuda" has to be compiled at installation."""
CONTENDERS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    **dict.fromkeys(PEERS, theirs),
    "SpikingJelly with our neurons": theirs_with_our_neurons,
    "BPTT, lean": ours("bptt", recompute="none"),
    "BPTT, recomputing": ours("bptt", recompute="all"),
    "SLTT, lean": ours("sltt", recompute="none"),
    "STDL, lean": ours("stdl", recompute="none", budget=0.5),
}


def run(session: Session) -> None:
    if session.device != "cuda" and not session.dry:
        raise ValueError("yardstick takes hours on a CPU: run it on a GPU, or go through it with --dry-run.")
    if absent := missing("spikingjelly"):
        session.refuse(WHAT, "images/s", absent, dtype="bfloat16")
        return
    for size in session.sizes(SIZES, QUICK_SIZES, DRY_SIZES):
        if all(reason != OUT_OF_MEMORY for reason in compare(session, size).values()):
            break


def compare(session: Session, size: Size, names: Sequence[str] = tuple(CONTENDERS)) -> dict[str, str]:
    """Run everyone at one size, in interleaved rounds of processes; returns why some have no figure."""
    fields = {"shape": str(size), "dtype": "bfloat16"}
    found: dict[str, list[dict]] = {name: [] for name in names}
    refused: dict[str, str] = {}
    order, shuffle = list(names), random.Random(0).shuffle
    for number in range(size.rounds):
        shuffle(order)
        for name in (name for name in order if name not in refused):
            session.show(f"{name}, {size}, round {number + 1} of {size.rounds}")
            result = in_a_process(name, size, session.device)
            if "refused" in result:
                refused[name] = result["refused"]
            else:
                found[name].append(result)
    for name, reason in refused.items():
        session.refuse(WHAT, "images/s", reason, who=name, **fields)
    seconds = {name: [one["seconds"] for one in found[name]] for name in names if name not in refused}
    for name, times in seconds.items():
        layout = found[name][0]["layout"]
        session.record(WHAT, "images/s", [size.batch / t for t in times], who=name, note=layout, **fields)
        session.record(WHAT, "GiB", max(one["peak"] for one in found[name]) / GIB, who=name, **fields)
    for name in (name for name in seconds if name not in PEERS):
        for peer in (peer for peer in PEERS if peer in seconds):
            session.record(WHAT, "x", ratios(seconds[peer], seconds[name]), who=name, against=peer, **fields)
    return refused


def in_a_process(name: str, size: Size, device: str) -> dict:
    """What `measured` returns, or under "refused" why there is no figure."""
    command = [sys.executable, "-m", "bench.yardstick", name, json.dumps(asdict(size)), device]
    environment = os.environ | ({IMPLEMENTATION: PEERS[name]} if name in PEERS else {})
    options = {"env": environment, "cwd": BENCH.parent, "capture_output": True, "text": True, "timeout": LIMIT}
    try:
        result = subprocess.run(command, check=False, **options)
    except subprocess.TimeoutExpired:
        return {"refused": f"fails: it took more than {LIMIT} seconds"}
    lines = result.stdout.splitlines()
    if result.returncode == 0 and lines:
        return json.loads(lines[-1])
    said = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    return {"refused": f"fails: the process ended with {result.returncode}{': ' + said[-1] if said else ''}"}


def measured(name: str, size: Size, device: str) -> dict:
    """The median seconds of a step in the faster layout, the name of that layout, and the peak bytes."""
    times = {layout: timed(name, size, device, layout, 1 + size.steps // 4) for layout in LAYOUTS}
    best = min(times, key=lambda layout: times[layout])
    stepper, x, y = made(name, size, device, best)
    case = Case(functools.partial(stepper.step, x, y, T))
    seconds = spread(interleave({name: case}, size.steps, device=device)[name]).p50
    if device == "cuda":
        with CudaTracker() as tracker:
            stepper.step(x, y, T)
        peak = tracker.peak
    else:
        peak = peak_bytes(stepper, x, y)
    return {"seconds": seconds, "layout": best, "peak": peak}


def timed(name: str, size: Size, device: str, layout: str, steps: int) -> float:
    """The median seconds of a few steps; nothing of them is kept."""
    stepper, x, y = made(name, size, device, layout)
    case = Case(functools.partial(stepper.step, x, y, T))
    seconds = spread(interleave({name: case}, steps, warmup=1, device=device)[name]).p50
    del stepper, case
    gc.collect()
    return seconds


def made(name: str, size: Size, device: str, layout: str) -> tuple[object, Tensor, Tensor]:
    """A contender, with frames [T, B, ...] and labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(T * size.batch, 3, size.side, size.side, generator=generator)
    y = torch.randint(1000, (size.batch,), generator=generator).to(device)
    x = x.to(device, memory_format=LAYOUTS[layout]).unflatten(0, (T, size.batch))
    return CONTENDERS[name](network().to(device, memory_format=LAYOUTS[layout]), x), x, y


def tables(rows: Sequence[Row]) -> list[str]:
    """Images per second and peaks, then ratios."""
    parts = []
    for shape in dict.fromkeys(row.shape for row in rows):
        mine = [row for row in rows if row.shape == shape]
        totals, versus = ([row for row in mine if row.unit in units] for units in (COLUMNS, ("x",)))
        parts.append(f"### {shape}")
        parts.append(pivot(totals, lambda row: row.who, lambda row: COLUMNS[row.unit], _figure_and_layout))
        parts.append(pivot(versus, lambda row: row.who, lambda row: f"/ {row.against}", figure, "ratio of speeds"))
    return parts


def _figure_and_layout(row: Row) -> str:
    return f"{figure(row)}, {row.note}" if row.note else figure(row)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.yardstick", description="One process of `bench yardstick`.")
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("size", help="as JSON")
    parser.add_argument("device", choices=("cpu", "cuda"))
    options = parser.parse_args()
    try:
        result = measured(options.name, Size(**json.loads(options.size)), options.device)
    except Exception as error:  # whatever it is, the row says so and the others continue
        result = {"refused": failure(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""The growth of a process relative to the peak of its live tensors, with glibc's malloc as it is and kept tight.

python -m bench.process_memory           prints the table of docs/memory.md

Every figure comes from its own process, in which the kernels have first run on a small network; the settings take
turns. Growth is the peak of the process (VmHWM) minus what it held before the network was built, divided by the
planner's peak of a training step. Time is the CPU time, user and system, of a step in the middle of several.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys

import torch

from stdl_engine.models import build_model
from stdl_engine.planning.planner import predict
from stdl_engine.process_memory import ProcessPeak, keep_malloc_tight
from stdl_engine.rules import BPTT, STDL

from .workload import SGD, batch_of

RULES = {"BPTT": (BPTT, {}), "STDL": (STDL, {"budget": 0.5})}
SIZES = ((0.25, 32), (0.5, 64))
"""Width and batch size of ResNet-18."""
T, TIMED = 4, 3


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.process_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="processes for each setting (default 5)")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        rule, width, batch, how = options.child
        print(json.dumps(measured(rule, float(width), int(batch), how == "tight")))
        return
    print(f"ResNet-18, T={T}, channels_last, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("| rule | width | batch | planned MB | growth / planned | tight | CPU time per step, tight / default |")
    print("|---|---|---|---|---|---|---|")
    for rule in RULES:
        for width, batch in SIZES:
            print(line(rule, width, batch, options.rounds), flush=True)


def line(rule: str, width: float, batch: int, rounds: int) -> str:
    """One row of the table: medians over the rounds, and the per-round ratio of times with its smallest and largest."""
    plain, tight = [], []
    for _ in range(rounds):
        plain.append(in_a_process(rule, width, batch, "plain"))
        tight.append(in_a_process(rule, width, batch, "tight"))
    growth, tight_growth = (statistics.median(p["growth"] / p["planned"] for p in part) for part in (plain, tight))
    ratios = [t["seconds"] / p["seconds"] for p, t in zip(plain, tight, strict=True)]
    times = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    planned = plain[0]["planned"] / 1e6
    return f"| {rule} | {width:g} | {batch} | {planned:.0f} | {growth:.2f} | {tight_growth:.2f} | {times} |"


def in_a_process(rule: str, width: float, batch: int, how: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.process_memory", "--child", rule, str(width), str(batch), how]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measured(name: str, width: float, batch: int, tight: bool) -> dict[str, float]:
    """Growth of this process over some training steps, and the CPU time of one of them."""
    if tight and not keep_malloc_tight():
        raise SystemExit("glibc's malloc is not here")
    rule, options = RULES[name]
    prepare(name)
    process = ProcessPeak.start()
    x, y = batch_of(batch)
    x = x.contiguous(memory_format=torch.channels_last)
    model = build_model("resnet18", width=width).to(memory_format=torch.channels_last)
    trained = rule(model, SGD, x, **options)
    trained.step(x, y, T)
    times = []
    for _ in range(TIMED):
        before = cpu_seconds()
        trained.step(x, y, T)
        times.append(cpu_seconds() - before)
    growth = process.growth
    planned = predict(rule, model, SGD, x, T, **options).peak_bytes
    return {"growth": growth, "planned": planned, "seconds": statistics.median(times)}


def prepare(name: str) -> None:
    """Compile every kernel and load every library."""
    rule, options = RULES[name]
    x, y = batch_of(4)
    x = x.contiguous(memory_format=torch.channels_last)
    model = build_model("resnet18", width=0.0625).to(memory_format=torch.channels_last)
    rule(model, SGD, x, **options).step(x, y, 2)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()

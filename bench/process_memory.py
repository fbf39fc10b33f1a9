"""The growth of a process relative to the peak of its live tensors, by the ways to allocate memory.

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
from stdl_engine.process_memory import MALLOC, ProcessPeak, set_malloc
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
        print(json.dumps(measured(rule, float(width), int(batch), how)))
        return
    print(f"ResNet-18, T={T}, channels_last, torch {torch.__version__}, {torch.get_num_threads()} threads")
    growths, times = " | ".join(MALLOC), " | ".join(f"time, {how}" for how in MALLOC if how != "system")
    print(f"| rule | width | batch | planned MB | growth / planned, {growths} | {times} |")
    print("|---|---|---|---|" + "---|" * (2 * len(MALLOC) - 1))
    for rule in RULES:
        for width, batch in SIZES:
            print(line(rule, width, batch, options.rounds), flush=True)


def line(rule: str, width: float, batch: int, rounds: int) -> str:
    """One row of the table: medians over the rounds. Times are relative to "system" in the same round, with the
    smallest and the largest."""
    found: dict[str, list[dict[str, float]]] = {how: [] for how in MALLOC}
    for _ in range(rounds):
        for how, results in found.items():
            results.append(in_a_process(rule, width, batch, how))
    growths = [f"{statistics.median(p['growth'] / p['planned'] for p in part):.2f}" for part in found.values()]
    times = []
    for how in (how for how in MALLOC if how != "system"):
        ratios = [p["seconds"] / q["seconds"] for p, q in zip(found[how], found["system"], strict=True)]
        times.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    planned = found["system"][0]["planned"] / 1e6
    return f"| {rule} | {width:g} | {batch} | {planned:.0f} | {' | '.join([*growths, *times])} |"


def in_a_process(rule: str, width: float, batch: int, how: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.process_memory", "--child", rule, str(width), str(batch), how]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measured(name: str, width: float, batch: int, how: str) -> dict[str, float]:
    """Growth of this process over some training steps, and the CPU time of one of them."""
    if not set_malloc(how):
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

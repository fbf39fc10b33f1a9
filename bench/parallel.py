"""Two processes on two cores against one: subnetworks as stages, and shared batches.

ResNet-18 at a quarter of its width, 32×32 images, T=4, SGD with momentum, STDL with the paper's three subnetworks. Two
stages, and two ranks that share each batch, run with one thread each and are compared with one process with one thread
and with two. In every round each of them, one after the other, trains on the same number of batches. The clock of a
pipeline starts when its last stage has finished the first batch of the round, so that filling it does not count. "slow
link" is the same two stages over a link that sleeps for every byte.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from stdl_engine.models import build_model
from stdl_engine.parallel import ParallelRule, Ranks
from stdl_engine.rules import STDL

from .session import Session
from .timing import ratios
from .workload import SGD, batch_of

DEVICE = "cpu"
BATCH, BATCHES, QUICK_BATCHES, T = 32, 8, 4, 4
SLOW = 4e6
"""Bytes per second of the slow link."""


@dataclass(frozen=True)
class Setup:
    """This many processes, with this many threads each."""

    processes: int = 1
    stages: int = 1
    threads: int = 1
    bandwidth: float | None = None


SETUPS = {
    "1 process, 1 thread": Setup(),
    "1 process, 2 threads": Setup(threads=2),
    "2 stages": Setup(processes=2, stages=2),
    "2 stages, slow link": Setup(processes=2, stages=2, bandwidth=SLOW),
    "2 data ranks": Setup(processes=2),
}


def run(session: Session) -> None:
    batches = QUICK_BATCHES if session.quick else BATCHES
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SETUPS}
    with contextlib.ExitStack() as stack:
        started = {name: stack.enter_context(processes(setup)) for name, setup in SETUPS.items()}
        for number in range(session.rounds):
            session.show(f"round {number + 1} of {session.rounds}")
            for name, ends in started.items():
                found[name].append(one_round(ends, batches))
    fields = {"shape": f"width 0.25, batch {BATCH}, T={T}", "dtype": "float32"}
    speeds = {name: [one["samples_per_second"] for one in rounds] for name, rounds in found.items()}
    for name, speed in speeds.items():
        session.record("training", "samples/s", speed, who=name, **fields)
    for name in ("2 stages", "2 stages, slow link", "2 data ranks"):
        for against in ("1 process, 2 threads", "1 process, 1 thread"):
            session.record("training", "x", ratios(speeds[name], speeds[against]), who=name, against=against, **fields)
    for name in ("2 stages", "2 stages, slow link"):
        waits = [100 * one["waited_share"] for one in found[name]]
        session.record("last stage waits", "%", waits, who=name, **fields)
    sent = found["2 stages"][0]
    session.record("sent per batch", "kB", sent["sent_bytes"] / 1e3, who="2 stages", **fields)
    session.record("sent per batch", "kB", sent["dense_bytes"] / 1e3, who="the same maps in float32", **fields)


@contextlib.contextmanager
def processes(setup: Setup):
    """The connections to the processes of a setup, which wait for work; that of the last stage first."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends, running = [], []
        for rank in range(setup.processes):
            here, there = context.Pipe()
            process = context.Process(target=_rank, args=(there, setup, rank, folder), daemon=True)
            process.start()
            there.close()
            ends.append(here)
            running.append(process)
        try:
            one_round(ends, 1)  # compiles kernels
            yield ends
        finally:
            for end in ends:
                with contextlib.suppress(OSError):
                    end.send(0)
            for process in running:
                process.join(30)
                process.kill()


def one_round(ends: list[Connection], batches: int) -> dict[str, Any]:
    """What the processes of a setup report for this many batches."""
    for end in ends:
        end.send(batches)
    try:
        answers = [end.recv() for end in ends]
    except EOFError as error:
        raise RuntimeError("a process of the benchmark parallel has ended early.") from error
    return {key: value for answer in reversed(answers) for key, value in answer.items()}


def _rank(end: Connection, setup: Setup, rank: int, folder: str) -> None:
    torch.set_num_threads(setup.threads)
    if setup.processes > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=setup.processes
        )
    ranks = Ranks(setup.stages)
    if setup.bandwidth is not None and ranks.outgoing is not None:
        ranks.outgoing = Throttled(ranks.outgoing, setup.bandwidth)
    x, y = batch_of(BATCH // ranks.shards)
    torch.manual_seed(1)
    model = build_model("resnet18", width=0.25).to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    rule = ParallelRule(STDL(model, SGD, x, budget="published"), ranks)
    while batches := end.recv():
        end.send(_train(rule, x, y, batches))
    rule.close()
    ranks.close()
    os._exit(0)  # at once: there is nothing left to clean up, and threads of torch.distributed may take long to end


def _train(rule: ParallelRule, x: Tensor, y: Tensor, batches: int) -> dict[str, Any]:
    """Train on one batch, and on this many more, which are timed."""
    ranks, traffic = rule.ranks, rule.traffic
    batch = (x, y) if ranks.is_first else (None, None)
    rule.step(*batch, T)
    start, before = time.perf_counter(), {name: (t.waited_seconds, t.messages) for name, t in traffic.items()}
    for _ in range(batches):
        rule.step(*batch, T)
    seconds = time.perf_counter() - start
    found: dict[str, Any] = {}
    if ranks.is_last:
        found["samples_per_second"] = BATCH * batches / seconds
    if "received" in traffic:
        found["waited_share"] = (traffic["received"].waited_seconds - before["received"][0]) / seconds
        found["sent_bytes"] = traffic["received"].payload_bytes / traffic["received"].messages
        found["dense_bytes"] = traffic["received"].dense_bytes / traffic["received"].messages
    return found


class Throttled:
    """A link of this many bytes per second."""

    def __init__(self, transport: Any, bandwidth: float) -> None:
        self.transport, self.bandwidth = transport, bandwidth

    def send(self, payload: Tensor) -> None:
        time.sleep(payload.numel() / self.bandwidth)
        self.transport.send(payload)

    def receive(self, payload: Tensor) -> None:
        self.transport.receive(payload)

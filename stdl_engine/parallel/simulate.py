"""How a pipeline of stages would run on other machines. This is a simulation: it knows the work of the stages, the
speed of a rank and of a link, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One rank and its links: multiply-adds per second, bytes per second, and the latency of an exchange in seconds."""

    multiply_adds: float = 5e12
    bandwidth: float = 12.5e9
    latency: float = 20e-6


def pipeline_seconds(compute: Sequence[float], wire: Sequence[float], batches: int, ahead: int = 2) -> float:
    """Seconds until the last stage has learned from the last batch.

    Args:
        compute: seconds per batch of each stage.
        wire: seconds that a batch takes from each stage to the next.
        ahead: batches that may wait to be sent before a stage waits.
    """
    stages = len(compute)
    done = [[0.0] * batches for _ in range(stages)]
    gone = [[0.0] * batches for _ in range(stages)]
    for n in range(batches):
        arrived = 0.0
        for k in range(stages):
            start = max(arrived, done[k][n - 1] if n else 0.0)
            if k < stages - 1 and n >= ahead:
                start = max(start, gone[k][n - ahead])
            done[k][n] = start + compute[k]
            if k < stages - 1:
                # A message leaves once the one before it has left and the next stage has taken the one before that.
                free = gone[k][n - 1] if n else 0.0
                taken = done[k + 1][n - 2] if n >= 2 else 0.0
                gone[k][n] = max(done[k][n], free, taken) + wire[k]
                arrived = gone[k][n]
    return done[-1][-1]


def exchange_seconds(size: float, ranks: int, machine: Machine) -> float:
    """Seconds in which a ring of this many ranks sums up this many bytes."""
    if ranks == 1:
        return 0.0
    return 2 * (ranks - 1) * (size / ranks / machine.bandwidth + machine.latency)


@dataclass(frozen=True)
class Layout:
    """How ranks are used: seconds per batch once the pipe is full, speed-up over one rank, and what limits it."""

    ranks: int
    stages: int
    shards: int
    seconds: float
    speedup: float
    limit: str


def layout(
    work: Sequence[float], sent: Sequence[float], parameters: Sequence[float], batch: int, shards: int, machine: Machine
) -> Layout:
    """This many stages, each on this many ranks that share every batch.

    Args:
        work: multiply-adds per stage for the whole batch.
        sent: bytes per stage to the next for the whole batch.
        parameters: bytes per stage of the gradients that ranks exchange.
        batch: samples of the whole batch.
    """
    stages = len(work)
    compute = [one / shards / machine.multiply_adds for one in work]
    wire = [one / shards / machine.bandwidth + machine.latency for one in sent[:-1]]
    exchange = [exchange_seconds(size, shards, machine) for size in parameters]
    each = [max(pair) for pair in zip(compute, exchange, strict=True)]
    few, many = stages + 8, stages + 40
    seconds = (pipeline_seconds(each, wire, many) - pipeline_seconds(each, wire, few)) / (many - few)
    alone = sum(work) / machine.multiply_adds
    slowest = max(range(stages), key=lambda k: each[k])
    if exchange[slowest] > compute[slowest]:
        limit = "exchange of gradients"
    elif wire and max(wire) > each[slowest]:
        limit = "link between stages"
    elif stages > 1 and compute[slowest] > 1.1 * sum(compute) / stages:
        limit = "uneven stages"
    else:
        limit = "work"
    return Layout(stages * shards, stages, shards, seconds, alone / seconds, limit)

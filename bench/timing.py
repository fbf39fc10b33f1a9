"""Timing on a machine that others use as well: interleaved rounds, and ratios within a round.

Every round runs each case once, in a new order, so whatever slows the machine down for a while slows all cases alike.
A ratio of two cases is taken within each round, and its median is reported, so that a lucky round of one case is never
compared with an unlucky round of another.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """Something to time: `run` is timed, `prepare` runs before it and is not."""

    run: Callable[[], object]
    prepare: Callable[[], object] | None = None


@dataclass(frozen=True)
class Spread:
    """Percentiles of one quantity over the rounds."""

    p20: float
    p50: float
    p80: float


def spread(samples: Sequence[float]) -> Spread:
    """The 20th, 50th and 80th percentile."""
    if len(samples) == 1:
        return Spread(samples[0], samples[0], samples[0])
    fifths = statistics.quantiles(samples, n=5, method="inclusive")
    return Spread(fifths[0], statistics.median(samples), fifths[3])


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """One ratio a round."""
    return [a / b for a, b in zip(numerator, denominator, strict=True)]


def interleave(
    cases: dict[str, Case],
    rounds: int,
    *,
    calls: int = 1,
    warmup: int = 2,
    device: str = "cpu",
    tick: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds per call of each case, one sample per round; a sample is the mean over `calls` calls."""
    sample = _cuda_sample if device == "cuda" else _sample
    times: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    shuffle = random.Random(0).shuffle
    collecting = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()  # existing objects need not be scanned after every round
    try:
        for i in range(warmup + rounds):
            shuffle(order)
            for name in order:
                seconds = sample(cases[name], calls)
                if i >= warmup:
                    times[name].append(seconds)
            gc.collect()
            if i >= warmup:
                tick()
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
    return times


def _sample(case: Case, calls: int) -> float:
    if case.prepare is not None:
        case.prepare()
    run = case.run
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def _cuda_sample(case: Case, calls: int) -> float:
    """The GPU's own clock, from an idle GPU to the end of the last kernel: calls return before their work is done."""
    if case.prepare is not None:
        case.prepare()
    run = case.run
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / calls

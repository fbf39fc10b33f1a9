"""What each rank will need, send and compute, before there are any ranks: the real training step of every stage on fake
tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory.chunks import in_chunks
from ..memory.spikes import Kept, small_tensor
from ..memory.tracker import Tracker
from ..planning.fit import held
from ..planning.planner import fake_like, faking
from ..planning.subnetworks import Subnetwork
from ..planning.work import Work
from ..rules import Rule
from .balance import balanced, work_by_subnetwork


@dataclass(frozen=True)
class StageForecast:
    """One stage, on each of the ranks that have it.

    Attributes:
        subnetworks: which ones, from 0.
        units, auxiliary: the names of their layers.
        peak_bytes: of a training step: weights, optimizer, its input, and all that it computes.
        in_flight_bytes: at most, of batches that wait to be sent or were received ahead.
        work: the share of all multiply-adds.
        parameters: trained here, and exchanged where several ranks share a batch.
        sent_bytes: to the next stage per batch, labels included.
        dense_bytes: the same maps in float32.
    """

    subnetworks: range
    units: list[str]
    auxiliary: list[str]
    peak_bytes: int
    in_flight_bytes: int
    work: float
    parameters: int
    sent_bytes: int
    dense_bytes: int

    @property
    def bptt_bytes(self) -> int:
        """What a pipeline with BPTT would send over the same boundary: maps forward and their gradients back, in
        float32."""
        return 2 * self.dense_bytes


@dataclass(frozen=True)
class Forecast:
    """All stages of a rule. `multiply_adds` are those of a training step on one rank's batch."""

    stages: list[StageForecast]
    multiply_adds: float

    @property
    def speedup(self) -> float:
        """The speed-up of this many stages over one rank, if only the work of the slowest stage counted."""
        return 1 / max(stage.work for stage in self.stages)


def forecast(rule: Rule, stages: int, T: int, *, sequence: bool = False, ahead: int = 2) -> Forecast:
    """What the stages of a rule need for a batch like its sample. The model is not touched."""
    with faking(), rule.autocast("cpu"):
        twin = rule.without_numbers()
        x = fake_like(rule.sample)
        work = work_by_subnetwork(Work.of(twin.subnetworks, twin.flow, x), rule.plan)
        runs = balanced(work, stages)
        y = torch.empty(len(x), dtype=torch.int64)
        steps = [torch.empty_like(x) for _ in range(T)] if sequence else [x] * T
        frames: Sequence[Kept] = in_chunks(steps, rule.plan.chunk)
        found, received = [], 0
        for run in runs:
            parts = twin.subnetworks[run.start : run.stop]
            peak, frames = _stage(twin, parts, frames, y, T)
            sent, dense = (0, 0) if parts[-1].is_last else _sizes(frames, y)
            planned = rule.plan.parts[run.start : run.stop]
            found.append(
                StageForecast(
                    run,
                    [name for part in planned for name in part.names],
                    [name for part in planned for name in part.auxiliary_names],
                    peak,
                    received + ahead * sent,
                    sum(work[run.start : run.stop]) / sum(work),
                    sum(p.numel() for part in parts for p in part.parameters() if p.requires_grad),
                    sent,
                    dense,
                )
            )
            received = sent
        return Forecast(found, sum(work) * len(x) * T)


def _stage(
    rule: Rule, parts: Sequence[Subnetwork], frames: Sequence[Kept], y: Tensor, T: int
) -> tuple[int, list[Kept]]:
    """The peak of a stage's training step, once the optimizers have their states, and the stage's outputs."""
    rule.train_on(parts, frames[:1], y, 1)
    outputs: list[Kept] = []

    def learn(subnetwork: Subnetwork, t: int, frame: Kept) -> Kept:
        output = rule.learn(subnetwork, t, frame)
        if subnetwork is parts[-1]:
            outputs.append(output)
        return output

    tracker = Tracker()
    tracker.follow([y, *held(parts, rule.optimizers), *(small_tensor(frame) for frame in frames)])
    with tracker:
        rule.train_on(parts, frames, y, T, learn)
    return tracker.peak, outputs


def _sizes(frames: Sequence[Kept], y: Tensor) -> tuple[int, int]:
    """Bytes of a message, and of its maps in float32. Averages of spikes are sent as one byte each, which fake tensors
    cannot show."""
    sent = dense = y.numel() * y.itemsize
    for frame in frames:
        small = small_tensor(frame)
        elements = torch.Size(frame.shape).numel() if hasattr(frame, "shape") else small.numel()
        sent += elements if small is frame else small.numel() * small.itemsize
        dense += elements * torch.float32.itemsize
    return sent, dense

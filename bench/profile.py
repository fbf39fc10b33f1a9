"""Where a training step's time goes, by operator: kept beside the results where a target is missed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from .session import Session

SHOWN = 12
WHAT = "{}, a step's time by operator"


def keep(session: Session, who: str, stepper: object, x: Tensor, y: Tensor, T: int, shape: str) -> None:
    """Profile one step after a warm-up step; the whole table goes to a file, the longest operators to rows."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if session.device == "cuda" else [])]
    stepper.step(x, y, T)
    with torch.profiler.profile(activities=activities) as found:
        stepper.step(x, y, T)
    averages = found.key_averages()
    on_gpu = session.device == "cuda"
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    total = sum(getattr(event, order) for event in averages)
    name = f"profile_{shape.replace(', ', '_').replace(' ', '').replace('=', '')}.txt"
    session.keep(name, averages.table(sort_by=order, row_limit=40) + "\n")
    session.note(f"{who} is behind at {shape}: its profile is in {session.benchmark}_{name}.")
    if not total:
        session.note(
            "It has no times of the GPU: PyTorch's profiler needs CUPTI or ROCTracer, and the right to use it."
        )
        return
    longest = sorted(averages, key=lambda event: getattr(event, order), reverse=True)
    for event in longest[:SHOWN]:
        share = 100 * getattr(event, order) / total
        fields = {"who": event.key, "shape": shape, "note": f"{event.count} calls"}
        session.record(WHAT.format(who), "%", share, **fields)

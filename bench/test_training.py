"""Whole training steps under pytest-benchmark, ours and SpikingJelly's; bench/test_kernels.py says how to run them."""

from __future__ import annotations

import pytest
import torch

from bench import training
from bench.workload import batch_of

ROUNDS, WARMUP_ROUNDS = 5, 1
SIZE, SMALL = training.Size(width=0.25, batch=32), training.Size(width=0.125, batch=2)


@pytest.mark.parametrize(("mode", "online"), [("s", False), ("m", False), ("s", True)])
def test_spikingjellys_network_is_ours(mode: str, online: bool) -> None:
    assert training.differs(mode, online) == ""


@pytest.mark.parametrize("name", training.TRAINEES)
def test_training_step(benchmark, name: str) -> None:
    size = SIZE if benchmark.enabled else SMALL
    benchmark.group = f"training step, {size}"
    x, y = batch_of(size.batch)
    trainee = training.TRAINEES[name].build(size.width, x, torch.contiguous_format)
    benchmark.pedantic(lambda: trainee.step(x, y, training.T), rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS)

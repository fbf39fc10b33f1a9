"""The loop by hand that the engine is timed against computes what the engine does."""

from __future__ import annotations

import pytest
import torch

from bench import engine_cost
from bench.workload import batch_of


@pytest.mark.parametrize("name", ["STDL", "SLTT"])
def test_the_loop_by_hand_trains_as_the_rule_does(name, monkeypatch):
    monkeypatch.setattr(engine_cost, "T", 2)
    x, y = batch_of(2)
    engine = engine_cost.build(name, x, memory="paper", order="subnetwork")
    by_hand = engine_cost.for_a_loop_by_hand(name, x)
    before = [parameter.clone() for parameter in by_hand.model.parameters()]
    for _ in range(2):  # states and momentum carry nothing over that they should not
        engine.step(x, y, 2)
        engine_cost.train(by_hand, x, y)
    for old, ours, theirs in zip(before, engine.model.parameters(), by_hand.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert not torch.equal(old, theirs)

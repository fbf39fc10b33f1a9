"""Ranks that share a batch learn what one process learns from it: with batch norm over all ranks to rounding."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from stdl_engine.neurons import lif
from stdl_engine.parallel import ParallelRule, Ranks

from ..rules.nets import batch, make, sgd, small
from .processes import run

RULES = {
    "bptt": {}, "bptt, recomputing": {"recompute": "twice"}, "sltt": {}, "ell": {}, "stdl": {},
    "stdl, recomputing": {"recompute": "all"}, "stdl, plain": {"memory": "paper"},
    "stdl, chunks": {"chunk": 2},
}  # fmt: skip
BATCHES, SIZE, T = 4, 8, 3


def build(case: str, optimizer=sgd):
    model = small("resnet18", decay=0.5).double()
    data = [(x.double(), y) for x, y in (batch(count=SIZE, seed=100 + n) for n in range(BATCHES))]
    return make(case.partition(",")[0], model, data[0][0], optimizer, **RULES[case]), data


def on_ranks(stages: int, cases: list[str], sync_norm: bool) -> dict:
    """What this rank has in the end; labels of each batch are split over the ranks that share it."""
    ranks, found = Ranks(stages), {}
    share = SIZE // ranks.shards
    mine = slice(ranks.shard * share, (ranks.shard + 1) * share)
    for case in cases:
        built, data = build(case)
        rule = ParallelRule(built, ranks, sync_norm=sync_norm)
        losses = []
        for x, y in data:
            result = rule.step(x[mine], y[mine], T) if ranks.is_first else rule.step(None, None, T)
            losses.append(None if result is None else ranks.summed(torch.stack(result.losses)) / ranks.shards)
        found[case] = {"state": rule.state_dict(), "losses": losses, "types": {type(m) for m in built.modules()}}
        rule.close()
    ranks.close()
    return found


@pytest.fixture(scope="module")
def synchronised_pair():
    return run(2, on_ranks, 1, list(RULES), True)


@pytest.mark.parametrize("case", RULES)
def test_two_ranks_equal_one_process(synchronised_pair, case):
    expected, data = build(case)
    losses = [torch.stack(expected.step(x, y, T).losses) for x, y in data]
    for rank in synchronised_pair:
        for found, wanted in zip(rank[case]["losses"], losses, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
        assert_close_numbers(rank[case]["state"], expected.state_dict())
        assert not any(kind.__name__.startswith("_Synchronised") for kind in rank[case]["types"])  # given back
    first, second = (rank[case]["state"]["model"] for rank in synchronised_pair)
    assert all(torch.equal(first[name], second[name]) for name in first)  # to the bit, on all ranks


def test_two_stages_of_two_ranks_equal_one_process():
    cases = ["ell", "stdl, recomputing"]
    by_rank = run(4, on_ranks, 2, cases, True)
    for case in cases:
        expected, data = build(case)
        losses = [torch.stack(expected.step(x, y, T).losses) for x, y in data]
        for found, wanted in zip(by_rank[0][case]["losses"], losses, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
        assert_close_numbers(by_rank[0][case]["state"], expected.state_dict())


def one_pass(case: str, ranks: int) -> tuple[dict, int]:
    """The state after one batch in float32 with channels_last, and how many maps were left to the neuron after them."""
    model = small("resnet18", decay=0.5, width=0.125).to(memory_format=torch.channels_last)
    x, y = batch(count=SIZE, seed=100)
    x = x.to(memory_format=torch.channels_last)
    rule = make(case.partition(",")[0], model, x, sgd, **RULES[case])
    with mock.patch.object(lif, "fire", side_effect=lif.fire) as fire:
        if ranks == 1:
            rule.step(x, y, T)
        else:
            group = Ranks(1)
            parallel = ParallelRule(rule, group, sync_norm=True)
            mine = slice(group.shard * SIZE // ranks, (group.shard + 1) * SIZE // ranks)
            parallel.step(x[mine], y[mine], T)
            parallel.close()
            group.close()
    return rule.state_dict(), fire.call_count


@pytest.mark.parametrize("case", ["bptt", "stdl", "stdl, chunks"])
def test_batch_norm_over_ranks_is_one_pass_with_the_neuron(case):
    expected, calls = one_pass(case, 1)
    assert calls > T
    for state, own_calls in run(2, one_pass, case, 2):
        assert own_calls == calls
        for name, value in expected["model"].items():
            torch.testing.assert_close(state["model"][name], value, rtol=1e-4, atol=1e-5)


def test_without_it_each_rank_normalises_its_own_samples():
    by_rank = run(2, on_ranks, 1, ["sltt"], False)
    one, other = (rank["sltt"]["state"]["model"] for rank in by_rank)
    weights = [name for name in one if "running" not in name]
    assert all(torch.equal(one[name], other[name]) for name in weights)
    assert any(not torch.equal(one[name], other[name]) for name in one if "running" in name)
    expected, data = build("sltt")
    for x, y in data:
        expected.step(x, y, T)
    together = expected.model.state_dict()
    assert any((one[name] - together[name]).abs().max() > 1e-6 for name in weights)


def assert_close_numbers(found: dict, wanted: dict) -> None:
    """The same states to rounding in float64."""
    for name, value in wanted["model"].items():
        torch.testing.assert_close(found["model"][name], value, rtol=1e-8, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
    for one, other in zip(found["auxiliary"], wanted["auxiliary"], strict=True):
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, rtol=1e-8, atol=1e-9)
    for one, other in zip(found["optimizers"], wanted["optimizers"], strict=True):
        for number, state in other["state"].items():
            torch.testing.assert_close(
                one["state"][number]["momentum_buffer"], state["momentum_buffer"], rtol=1e-8, atol=1e-9
            )

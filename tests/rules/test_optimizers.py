"""One optimizer for each subnetwork, one schedule for all."""

import functools

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from stdl_engine.rules import RULES

from .nets import batch, batches, make, sgd, small, train

rules = pytest.mark.parametrize("name", RULES)


@rules
def test_one_optimizer_for_each_subnetwork(name):
    x, _ = batch()
    calls = []

    def factory(parameters):
        parameters = list(parameters)
        calls.append(parameters)
        return sgd(parameters)

    rule = make(name, small(), x, factory)
    assert len(calls) == len(rule.optimizers) == len(rule.subnetworks)
    for parameters, part in zip(calls, rule.subnetworks, strict=True):
        assert {id(p) for p in parameters} == {id(p) for p in part.parameters() if p.requires_grad}
    given = [id(p) for parameters in calls for p in parameters]
    assert len(given) == len(set(given))
    assert {id(p) for p in rule.model.parameters()} <= set(given)


@rules
def test_schedule_is_applied_to_all(name):
    x, _ = batch()
    rule = make(name, small(), x, schedule=functools.partial(StepLR, step_size=2, gamma=0.1))
    assert len(rule.schedulers) == len(rule.optimizers)
    rates = []
    for x, y in batches(4):
        rule.step(x, y, 1)
        rates.append({group["lr"] for optimizer in rule.optimizers for group in optimizer.param_groups})
        rule.advance_schedule()
    assert [len(rate) for rate in rates] == [1, 1, 1, 1]
    assert [next(iter(rate)) for rate in rates] == pytest.approx([0.1, 0.1, 0.01, 0.01])


def test_a_step_does_not_advance_the_schedule():
    data = batches(2)
    rule = make("stdl", small(), data[0][0], schedule=functools.partial(CosineAnnealingLR, T_max=4))
    train(rule, data)
    assert {optimizer.param_groups[0]["lr"] for optimizer in rule.optimizers} == {0.1}


def test_no_schedule_is_no_error():
    data = batches(1)
    rule = make("stdl", small(), data[0][0])
    train(rule, data)
    rule.advance_schedule()
    assert rule.optimizers[0].param_groups[0]["lr"] == 0.1


@rules
def test_each_optimizer_steps_once_a_batch(name):
    counted = []

    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            counted.append(self)
            return super().step(closure)

    x, y = batch()
    rule = make(name, small(), x, functools.partial(Counting, lr=0.1))
    rule.step(x, y, 3)
    assert sorted(map(id, counted)) == sorted(map(id, rule.optimizers))


def test_frozen_parameters_are_left_alone():
    x, y = batch()
    model = small()
    model[0].requires_grad_(False)
    before = model[0].conv.weight.clone()
    rule = make("stdl", model, x)
    rule.step(x, y, 2)
    assert torch.equal(model[0].conv.weight, before)
    assert not any(p is model[0].conv.weight for p in rule.optimizers[0].param_groups[0]["params"])

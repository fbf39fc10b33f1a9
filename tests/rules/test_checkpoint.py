"""A resumed run equals an uninterrupted one, and a checkpoint of something else is refused in one sentence."""

import functools
import io

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from stdl_engine.planning.network import Network
from stdl_engine.planning.plan import plan_of_layers
from stdl_engine.rules import RULES

from .nets import adamw, assert_same, assert_same_results, batch, batches, make, numbers, sgd, small

cosine = functools.partial(CosineAnnealingLR, T_max=4)


def train(rule, data):
    results = []
    for x, y in data:
        results.append(rule.step(x, y, 2))
        rule.advance_schedule()
    return results


def through_a_file(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    ("name", "optimizer"), [*((name, sgd) for name in RULES), ("stdl", adamw)], ids=[*RULES, "stdl with adamw"]
)
def test_resumed_is_uninterrupted(name, optimizer):
    data = batches(4)
    x = data[0][0]
    whole = make(name, small(), x, optimizer, schedule=cosine)
    results = train(whole, data)
    first = make(name, small(), x, optimizer, schedule=cosine)
    train(first, data[:2])
    second = make(name, small(seed=50), x, optimizer, schedule=cosine, seed=51)
    second.load_state_dict(through_a_file(first.state_dict()))
    assert_same(numbers(first), numbers(second))
    assert_same_results(train(second, data[2:]), results[2:])
    assert_same(numbers(second), numbers(whole))
    rates = [[group["lr"] for o in rule.optimizers for group in o.param_groups] for rule in (second, whole)]
    assert rates[0] == rates[1]


def test_checkpoint_is_a_copy_through_a_file():
    data = batches(2)
    rule = make("stdl", small(), data[0][0])
    saved = through_a_file(rule.state_dict())
    before = numbers(rule)
    train(rule, data)
    rule.load_state_dict(saved)
    assert_same(numbers(rule), before)


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize(("saved_in", "loaded_in"), [("lean", "paper"), ("paper", "lean")])
def test_memory_may_change_between(saved_in, loaded_in):
    data = batches(3)
    whole = make("stdl", small(), data[0][0])
    train(whole, data)
    first = make("stdl", small(), data[0][0], memory=saved_in)
    train(first, data[:2])
    second = make("stdl", small(seed=50), data[0][0], memory=loaded_in)
    second.load_state_dict(through_a_file(first.state_dict()))
    train(second, data[2:])
    assert_same(numbers(whole), numbers(second))


def test_checkpoint_of_another_rule():
    x, _ = batch()
    state = make("sltt", small(), x).state_dict()
    with pytest.raises(ValueError, match=r"^the checkpoint was made by SLTT, this is BPTT: build the same rule\.$"):
        make("bptt", small(), x).load_state_dict(state)


def test_checkpoint_of_another_number_of_subnetworks():
    x, _ = batch()
    state = make("stdl", small(), x).state_dict()
    with pytest.raises(
        ValueError,
        match=r"^the checkpoint has 2 auxiliary networks, 3 optimizers and 0 schedules, here there are 0, 1 and 0",
    ):
        make("stdl", small(), x, budget=1.0).load_state_dict(state)


def test_checkpoint_without_the_schedule():
    x, _ = batch()
    state = make("stdl", small(), x).state_dict()
    with pytest.raises(ValueError, match=r"3 optimizers and 0 schedules, here there are 2, 3 and 3: build"):
        make("stdl", small(), x, schedule=cosine).load_state_dict(state)


OTHERS = {
    "width": (
        lambda x: make("stdl", small(width=0.125), x),
        r"^the checkpoint's model is another: 0\.conv\.weight is \(8, 3, 3, 3\) there and \(4, 3, 3, 3\) here; build",
    ),
    "model": (
        lambda x: make("stdl", small("resnet19"), x),
        r"^the checkpoint's model is another: 0\.conv\.weight is \(8, 3, 3, 3\) there",
    ),
    "classes": (
        lambda x: make("stdl", small(num_classes=7), x),
        r"^the checkpoint's model is another: 9\.linear\.weight is \(7, 32\) there and \(10, 32\) here",
    ),
    "auxiliary networks": (
        lambda x: make("stdl", small(), x, plan=other_plan(x, (5, 7), (8,))),
        r"^the checkpoint's auxiliary network 1 is another: .* is .* there and .* here; build",
    ),
    "cut": (
        lambda x: make("stdl", small(), x, plan=other_plan(x, (5, 7, 8), (5, 7), cut=5)),
        r"^the checkpoint's subnetworks are cut elsewhere: build the rule with the same budget\. Its plan was:\n",
    ),
}


def other_plan(x, *auxiliary, cut=4):
    rows = [(range(0, 2), auxiliary[0]), (range(2, cut), auxiliary[1]), (range(cut, 9), None)]
    return plan_of_layers(Network(small(), tuple(x.shape[1:]), "lean"), rows)


@pytest.mark.parametrize("what", OTHERS)
def test_checkpoint_of_another_network_changes_nothing(what):
    data = batches(1)
    rule = make("stdl", small(), data[0][0])
    train(rule, data)
    before, momentum = numbers(rule), through_a_file(rule.optimizers[0].state_dict())
    other, message = OTHERS[what]
    with pytest.raises(ValueError, match=message):
        rule.load_state_dict(other(data[0][0]).state_dict())
    assert_same(before, numbers(rule))
    after = rule.optimizers[0].state_dict()
    assert all(
        torch.equal(v["momentum_buffer"], after["state"][k]["momentum_buffer"]) for k, v in momentum["state"].items()
    )


def test_something_else_than_a_checkpoint():
    x, _ = batch()
    with pytest.raises(
        ValueError,
        match=r"^this is no checkpoint of a rule: it lacks rule, plan, model, .*optimizers, schedulers, scalers\.$",
    ):
        make("stdl", small(), x).load_state_dict(small().state_dict())

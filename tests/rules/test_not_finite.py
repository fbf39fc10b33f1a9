"""A gradient that is not a number stops the step before the optimizer applies it."""

import math

import pytest
import torch

from stdl_engine.rules import RULES
from stdl_engine.rules.finite import GuardedSteps, NotFinite

from .nets import assert_same, batch, make, numbers, small

T = 2


@pytest.mark.parametrize("frames", [0, T])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_pixel_is_named_before_anything_changes(value, frames):
    x, y = batch(frames=frames)
    rule = make("stdl", small(), x[0] if frames else x)
    before = numbers(rule)
    x[..., 1, 3, 3] = value
    with pytest.raises(ValueError, match=r"^the input has values that are not finite numbers \(NaN or infinite\)"):
        rule.step(x, y, T)
    assert_same(before, numbers(rule))


@pytest.mark.parametrize("memory", ["lean", "paper"])
@pytest.mark.parametrize("name", RULES)
def test_a_gradient_that_overflows(name, memory):
    """Spikes hide it: every loss is finite. Weights, statistics and the optimizer's state are as they were."""
    x, y = batch()
    rule = make(name, small(), x, memory=memory)
    rule.step(x, y, T)
    before = numbers(rule)
    states = [[t.clone() for t in state.values()] for o in rule.optimizers for state in o.state.values()]
    first = rule.subnetworks[0].units[0].norm
    handle = first.register_full_backward_hook(lambda *args: (args[1][0] * math.nan,))
    with pytest.raises(NotFinite, match=r"^the gradient of 0\.\S+ .*in subnetwork 1 is not a finite number; the we"):
        rule.step(x, y, T)
    handle.remove()
    assert_same(before, numbers(rule))
    after = [[t.clone() for t in state.values()] for o in rule.optimizers for state in o.state.values()]
    assert all(torch.equal(a, b) for one, two in zip(states, after, strict=True) for a, b in zip(one, two, strict=True))
    rule.step(x, y, T)  # and training goes on
    assert all(value.isfinite().all() for value in numbers(rule).values())


def test_a_later_subnetwork_is_named():
    x, y = batch()
    rule = make("stdl", small(), x)
    before = numbers(rule)
    norm = rule.subnetworks[1].classifier[0].norm1
    handle = norm.register_full_backward_hook(lambda *args: (args[1][0] * math.inf,))
    with pytest.raises(NotFinite, match=r"in subnetwork 2 is not a finite number"):
        rule.step(x, y, T)
    handle.remove()
    after = numbers(rule)
    spoiled = [key for key, value in after.items() if not value.isfinite().all()]
    assert spoiled == []
    later = [key for key in before if key.startswith(("model.4.", "model.8.", "model.9.", "auxiliary.1."))]
    assert later
    assert_same({key: before[key] for key in later}, {key: after[key] for key in later})


def test_large_gradients_are_numbers():
    """Their squares are not finite, and they are."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([1e30, -1e30, 0.0])
    GuardedSteps().step(torch.optim.SGD([parameter], lr=1e-30), "subnetwork 1", {"w": parameter})
    assert parameter.tolist() == [-1.0, 1.0, 0.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_number_among_many(value):
    good, bad = torch.nn.Parameter(torch.zeros(5)), torch.nn.Parameter(torch.zeros(1000))
    good.grad, bad.grad = torch.full((5,), 1e30), torch.ones(1000)
    bad.grad[617] = value
    with pytest.raises(NotFinite, match="the gradient of b in subnetwork 2 is not a finite number; the weights are as"):
        GuardedSteps().step(torch.optim.SGD([good, bad], lr=1.0), "subnetwork 2", {"a": good, "b": bad})
    assert not good.any()
    assert not bad.any()

"""What a step returns, and what it leaves behind."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from stdl_engine import FusedLIF, reset_states
from stdl_engine.rules import RULES

from .nets import batch, make, small

rules = pytest.mark.parametrize("name", RULES)
T = 3


@rules
def test_losses_and_logits(name):
    x, y = batch(frames=T)
    result = make(name, small(), x[0]).step(x, y, T)
    rule = make(name, small(), x[0], memory="paper")  # a second one, run by hand
    reset_states(rule.model)
    frames, losses = list(x), []
    with torch.no_grad():
        for part in rule.subnetworks:
            outputs, logits = [], []
            for frame in frames:
                outputs.append(part.units(frame))
                logits.append(part.classifier(outputs[-1]))
            losses.append(sum(cross_entropy(step, y) for step in logits) / T)
            frames = outputs
    torch.testing.assert_close(result.logits, sum(logits) / T)
    torch.testing.assert_close(torch.stack(result.losses), torch.stack(losses))
    assert len(result.losses) == len(rule.subnetworks)
    assert result.loss is result.losses[-1]


@rules
def test_results_are_cut_from_the_graph(name):
    x, y = batch()
    result = make(name, small(), x).step(x, y, T)
    assert result.logits.shape == (4, 10)
    for tensor in (result.loss, result.logits, *result.losses):
        assert not tensor.requires_grad
        assert tensor.is_leaf


@rules
@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_nothing_is_left_behind(name, memory):
    """States and gradients are freed, and the batch is as it was."""
    x, y = batch()
    kept = x.clone()
    rule = make(name, small(), x, memory=memory)
    rule.step(x, y, T)
    assert all(module.membrane is None for module in rule.modules() if isinstance(module, FusedLIF))
    assert all(p.grad is None for part in rule.subnetworks for p in part.parameters())
    assert torch.equal(x, kept)
    assert not hasattr(rule, "_lesson")


def test_every_step_starts_afresh():
    """A state or gradient left from elsewhere does not leak into a step."""
    x, y = batch()
    clean, used = make("stdl", small(), x), make("stdl", small(), x)
    with torch.no_grad():
        used.model.eval()(torch.randn(7, *x.shape[1:]))
    for p in used.model.parameters():
        p.grad = torch.ones_like(p)
    assert torch.equal(clean.step(x, y, T).logits, used.step(x, y, T).logits)
    assert all(torch.equal(a, b) for a, b in zip(clean.model.parameters(), used.model.parameters(), strict=True))


def test_a_model_that_has_run_before_makes_a_rule():
    x, y = batch()
    model = small()
    model(x)
    assert make("stdl", model, x).step(x, y, T).logits.shape == (4, 10)


@pytest.mark.parametrize(("online", "name"), [(False, "bptt"), (True, "sltt"), (True, "stdl"), (True, "ell")])
def test_neurons_are_online_as_the_rule_says(online, name):
    """While a step lasts; before and after it they are as they were."""
    x, y = batch()
    rule = make(name, small(), x, memory="paper")
    neurons = [module for module in rule.modules() if isinstance(module, FusedLIF)]
    assert neurons
    seen = []
    neurons[0].register_forward_pre_hook(lambda *_: seen.extend((n.online, n.memory_form) for n in neurons))
    rule.step(x, y, T)
    assert set(seen) == {(online, "paper")}
    assert {(n.online, n.memory_form) for n in neurons} == {(False, None)}

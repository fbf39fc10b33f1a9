"""No gradient crosses from one subnetwork to another."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from stdl_engine.neurons import borrowed

from .nets import Recorder, assert_same, batch, gradients, make, small

local_rules = pytest.mark.parametrize("rule", ["stdl", "ell", "decolle", "even"])
T = 2


def of_part(rule, index: int, found: dict) -> dict:
    """The gradients that belong to one subnetwork."""
    part = rule.subnetworks[index]
    names = {p: f"model.{name}" for name, p in rule.model.named_parameters()}
    mine = {names[p] for p in part.parameters() if p in names}
    return {key: grad for key, grad in found.items() if key in mine or key.startswith(f"auxiliary.{index}.")}


@local_rules
@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_later_subnetworks_do_not_matter_to_earlier_ones(rule, memory):
    x, y = batch()
    plain, changed = (make(rule, small(), x, Recorder, memory=memory) for _ in range(2))
    with torch.no_grad():
        for part in changed.subnetworks[1:]:
            for p in part.parameters():
                p.mul_(3).add_(0.5)
    before, after = gradients(plain, x, y, T), gradients(changed, x, y, T)
    first = of_part(plain, 0, before)
    assert first
    assert all(grad.any() for grad in first.values())
    assert_same(first, of_part(changed, 0, after))
    assert not torch.equal(before["model.9.linear.weight"], after["model.9.linear.weight"])


@pytest.mark.usefixtures("norms_by_pytorch")
@local_rules
@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_gradients_are_of_the_subnetworks_own_loss(rule, memory):
    """Each subnetwork run alone by hand on the spikes below it, as constants."""
    x, y = batch()
    made = make(rule, small(), x, Recorder, memory=memory)
    found = gradients(made, x, y, T)
    by_hand = make(rule, small(), x, Recorder, memory="paper")
    frames = [x] * T
    for index, part in enumerate(by_hand.subnetworks):
        outputs = []
        with borrowed(part.modules(), training=True, online=True, memory="paper"):
            for frame in frames:
                spikes = part.units(frame)
                (cross_entropy(part.classifier(spikes), y) / T).backward()
                outputs.append(spikes.detach())
        frames = outputs
        mine = of_part(made, index, found)
        names = {f"model.{name}": p for name, p in by_hand.model.named_parameters()}
        names |= {f"auxiliary.{index}.{name}": p for name, p in part.classifier.named_parameters()}
        assert mine
        assert_same(mine, {name: names[name].grad for name in mine})


def test_the_network_as_a_whole_does_not_learn_from_the_last_loss_alone():
    """The stem has a gradient although the last classifier's is cut off: it comes from the auxiliary network."""
    x, y = batch()
    made = make("stdl", small(), x, Recorder)
    with torch.no_grad():
        for p in made.subnetworks[0].classifier[-1].parameters():
            p.zero_()
    found = gradients(made, x, y, T)
    assert not found["model.0.conv.weight"].any()
    assert found["model.8.conv2.weight"].any()

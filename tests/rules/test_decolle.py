"""DECOLLE: random classifiers that never change and still teach."""

import torch

from .nets import Recorder, batch, batches, gradients, make, numbers, small, train, unchanged


def test_heads_never_change_and_all_units_do():
    data = batches(3)
    rule = make("decolle", small(), data[0][0])
    before = numbers(rule)
    train(rule, data)
    same = unchanged(before, numbers(rule))
    assert same == [name for name in before if name.startswith("auxiliary.")]
    assert len(same) == 2 * 8


def test_heads_are_in_no_optimizer():
    x, _ = batch()
    rule = make("decolle", small(), x)
    heads = {p for part in rule.subnetworks[:-1] for p in part.classifier.parameters()}
    taught = {p for optimizer in rule.optimizers for group in optimizer.param_groups for p in group["params"]}
    assert not heads & taught
    assert set(rule.model.parameters()) == taught
    assert not any(p.requires_grad for p in heads)


def test_units_learn_from_their_head():
    """With a head of nothing there is no gradient; with another head there is another."""
    x, y = batch()
    found = []
    for factor in (1.0, -1.0, 0.0):
        rule = make("decolle", small(), x, Recorder)
        with torch.no_grad():
            rule.subnetworks[2].classifier[0].linear.weight.mul_(factor)
        found.append(gradients(rule, x, y, 2))
    plain, other, none = (grads["model.2.conv2.weight"] for grads in found)
    assert plain.any()
    assert not torch.equal(plain, other)
    assert not none.any()
    for name in ("model.1.conv2.weight", "model.3.conv2.weight"):  # the neighbours have heads of their own
        assert torch.equal(found[0][name], found[2][name])


def test_the_networks_own_classifier_learns():
    data = batches(1)
    rule = make("decolle", small(), data[0][0])
    before = rule.model[-1].linear.weight.clone()
    train(rule, data)
    assert not torch.equal(before, rule.model[-1].linear.weight)


def test_units_learn_as_with_ell_in_the_first_step():
    """Before any head has changed, a frozen one gives the gradient that a trainable one gives."""
    x, y = batch()
    frozen, trainable = (gradients(make(rule, small(), x, Recorder), x, y, 2) for rule in ("decolle", "ell"))
    assert [name for name in frozen if not torch.equal(frozen[name], trainable[name])] == []
    assert {name.split(".")[0] for name in trainable.keys() - frozen.keys()} == {"auxiliary"}

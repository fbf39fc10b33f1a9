"""A rule borrows a model: rules and loops of one's own take turns on it and never see each other."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from stdl_engine import FusedALIF, FusedLIF, FusedPLIF, reset_states
from stdl_engine.neurons import Neuron
from stdl_engine.rules import RULES

from .nets import assert_same, batch, make, numbers, sgd, small

T = 3


def own_loop(model, x, y):
    """Backpropagation through time as anyone writes it; the gradients."""
    reset_states(model)
    model.zero_grad()
    loss = cross_entropy(sum(model(x) for _ in range(T)) / T, y)
    loss.backward()
    reset_states(model)
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("first", RULES)
@pytest.mark.parametrize("second", RULES)
def test_two_rules_take_turns_on_one_model(first, second):
    """Each trains as it would alone on a model that is as the other has left it; half of the pairs in either memory."""
    x, y = batch()
    memory = "paper" if (list(RULES).index(first) + list(RULES).index(second)) % 2 else "lean"
    shared, alone = small(), small()
    one, two = (make(name, shared, x, memory=memory) for name in (first, second))
    one.step(x, y, T)
    alone.load_state_dict(shared.state_dict())
    fresh = make(second, alone, x, memory=memory)
    assert_same(numbers(two), numbers(fresh))
    two.step(x, y, T)
    fresh.step(x, y, T)
    assert_same(numbers(two), numbers(fresh))
    one.step(x, y, T)
    assert torch.equal(one.predict(x, T), two.predict(x, T))


@pytest.mark.parametrize("neuron", [FusedLIF, FusedPLIF, FusedALIF])
@pytest.mark.parametrize("rule", RULES)
def test_a_loop_of_ones_own_beside_a_rule(rule, neuron):
    """The exact gradient of a plain loop is what it was before a rule was built and used."""
    x, y = batch()
    model = small(neuron=neuron)
    untouched = copy.deepcopy(model)
    made = make(rule, model, x)
    assert_same(own_loop(model, x, y), own_loop(untouched, x, y))
    made.step(x, y, T)
    untouched.load_state_dict(model.state_dict())
    assert_same(own_loop(model, x, y), own_loop(untouched, x, y))


def test_a_loop_in_multi_step_mode_beside_a_rule():
    x, _ = batch()
    neuron = FusedLIF(decay=0.5, step_mode="m")
    model = small()
    model[0].neuron = neuron
    rule = make("sltt", model, x)
    rule.step(x, torch.tensor([1, 2, 3, 4]), T)
    assert (neuron.step_mode, neuron.online) == ("m", False)
    current = torch.randn(T, 4, 4, 8, 8, requires_grad=True)
    other = FusedLIF(decay=0.5, step_mode="m")
    upstream = torch.randn_like(current)
    (mine,) = torch.autograd.grad(neuron(current), current, upstream)
    (theirs,) = torch.autograd.grad(other(current), current, upstream)
    assert torch.equal(mine, theirs)


def everything(model):
    """The mode, state and gradient of every layer."""
    names = ("training", "online", "memory_form", "step_mode", "membrane")
    modes = [{name: getattr(m, name) for name in names if hasattr(m, name)} for m in model.modules()]
    return modes, [p.grad for p in model.parameters()]


def mixed(x):
    """A model in a state that no rule would choose: some layers in evaluation mode, states and gradients held."""
    model = small()
    model[1].eval()
    model[2].norm1.eval()
    model(x).sum().backward()
    model[3].neuron1.online = True
    return model


@pytest.mark.parametrize("rule", RULES)
def test_everything_is_given_back(rule):
    x, y = batch()
    model = mixed(x)
    before = everything(model)
    made = make(rule, model, x)
    made.predict(x, T)
    made.step(x, y, T)
    after = everything(model)
    assert all(a.keys() == b.keys() and all(a[k] is b[k] for k in a) for a, b in zip(before[0], after[0], strict=True))
    assert all(a is b for a, b in zip(before[1], after[1], strict=True))
    assert any(grad is not None for grad in before[1])


def test_after_an_exception_too():
    x, y = batch()
    model = mixed(x)
    made = make("stdl", model, x)
    before, values = everything(model), numbers(made)

    def fail(*_):
        raise KeyboardInterrupt

    handle = made.subnetworks[0].units[-1].register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        made.step(x, y, T)
    handle.remove()
    after = everything(model)
    assert all(all(a[k] is b[k] for k in a) for a, b in zip(before[0], after[0], strict=True))
    assert_same(values, numbers(made))  # the first subnetwork's statistics are put back as well
    made.step(x, y, T)


@pytest.mark.parametrize("name", ["resnet18", "sew_resnet34", "vgg11"])
@pytest.mark.parametrize("rule", ["bptt", "sltt", "stdl"])
def test_hooks_see_what_a_layer_gives(rule, name):
    """Lean memory writes spikes over batch norm's output and sums over spikes, but not where a hook has kept them."""
    x, y = batch(name)
    model = small(name)
    given = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | Neuron | nn.Conv2d):
            module.register_forward_hook(lambda module, args, output: given.append((module, output, output.clone())))
            module.register_forward_pre_hook(lambda module, args: given.append((None, args[0], args[0].clone())))
    make(rule, model, x).step(x, y, T)
    assert given
    for module, kept, then in given:
        assert torch.equal(kept, then)
        assert not isinstance(module, nn.BatchNorm2d) or not set(kept.unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("name", ["resnet18", "sew_resnet34"])
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_full_backward_hook"])
def test_hooks_change_nothing(kind, name):
    x, y = batch(name)
    plain, watched = small(name), small(name)
    for module in watched.modules():
        if isinstance(module, nn.BatchNorm2d | Neuron):
            getattr(module, kind)(lambda *_: None)
    a, b = make("stdl", plain, x), make("stdl", watched, x)
    for _ in range(2):
        a.step(x, y, T)
        b.step(x, y, T)
    assert_same(numbers(a), numbers(b))


class TestSharing:
    """What two subnetworks would both change, and what nobody would."""

    def test_a_parameter_in_two_subnetworks(self):
        x, _ = batch()
        model = small()
        model[2].conv1.weight = model[1].conv1.weight
        with pytest.raises(ValueError, match=r"^the parameter units.0.conv1.weight of subnetwork 3 is in subnetwork 2"):
            make("ell", model, x)

    def test_a_parameter_twice_in_one_subnetwork_learns_from_both_places(self):
        x, y = batch()
        model = small()
        model[2].conv1.weight = model[1].conv1.weight
        apart = small()
        apart[2].conv1.weight.data.copy_(apart[1].conv1.weight.data)
        for net in (model, apart):
            make("bptt", net, x, sgd_without_momentum).step(x, y, T)
        start = small()[1].conv1.weight
        moved = [apart[i].conv1.weight - start for i in (1, 2)]
        assert torch.allclose(model[1].conv1.weight - start, sum(moved), atol=1e-6)

    def test_a_unit_used_twice(self):
        x, _ = batch()
        model = small()
        model = nn.Sequential(*model[:2], model[1], *model[2:])
        with pytest.raises(ValueError, match=r"^a neuron layer is used twice, as units.1.neuron1 and units.2.neuron1"):
            make("sltt", model, x)

    @pytest.mark.parametrize("rule", ["bptt", "sltt", "ell", "stdl"])
    def test_frozen_units_stay_and_the_others_learn(self, rule):
        x, y = batch()
        model = small()
        model[:3].requires_grad_(False)
        made = make(rule, model, x)
        before = numbers(made)
        made.step(x, y, T)
        after = numbers(made)
        weights = [key for key, _ in model.named_parameters()]
        frozen = [key for key in weights if int(key.split(".")[0]) < 3]
        assert all(torch.equal(before[f"model.{key}"], after[f"model.{key}"]) for key in frozen)
        assert not any(torch.equal(before[f"model.{key}"], after[f"model.{key}"]) for key in weights if "linear" in key)

    def test_nothing_to_train(self):
        x, _ = batch()
        model = small()
        model[:3].requires_grad_(False)
        with pytest.raises(ValueError, match=r"^subnetwork 1 has no parameter to train, as all of them are frozen"):
            make("decolle", model, x)

    def test_two_dtypes(self):
        x, _ = batch()
        model = small()
        model[3].double()
        with pytest.raises(ValueError, match=r"^the model's parameters are of more than one dtype, torch.float32 \("):
            make("sltt", model, x)

    def test_two_devices(self):
        x, _ = batch()
        model = small()
        model[3].to("meta")
        with pytest.raises(ValueError, match=r"^the model's parameters are of more than one device, cpu \("):
            make("sltt", model, x)


def sgd_without_momentum(parameters):
    return sgd(parameters, momentum=0.0)

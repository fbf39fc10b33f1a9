"""Models of others as sequences of units: they compute the same, are cut and trained, and the model learns in place."""

import copy
import functools
import itertools

import pytest
import torch
from spikingjelly.activation_based import functional, layer, neuron
from spikingjelly.activation_based.model import ms_resnet18
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stdl_engine import FusedLIF, FusedPLIF
from stdl_engine.convert import convert_neurons, fuse_norms, optimize, restore, units_from
from stdl_engine.kernels.small_form import is_spikes
from stdl_engine.neurons import Neuron, borrowed
from stdl_engine.neurons.lif import LeakyNeuron
from stdl_engine.planning.network import Network
from stdl_engine.planning.plan import plan_of_layers
from stdl_engine.planning.planner import predict
from stdl_engine.rules import BPTT, SLTT, STDL
from stdl_engine.units import ConvUnit, Head, ResidualBlock, SEWBlock

from .nets import MODELS, sew_bottlenecks, sew_resnet18, spiking_bottlenecks, spiking_resnet18, spiking_vgg11_bn

STEPS = 2
sgd = functools.partial(torch.optim.SGD, lr=0.1)


def plain() -> nn.Sequential:
    """Conv - norm - neuron - pool, and linear layers with neurons of their own, the last one too."""
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), neuron.LIFNode(), nn.MaxPool2d(2)),
        nn.Sequential(layer.Conv2d(6, 8, 5, padding=2, groups=2), neuron.IFNode(), layer.AvgPool2d(2)),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(8 * 4 * 4, 20),
        nn.BatchNorm1d(20),
        FusedLIF(0.4, reset="hard", surrogate="sigmoid", backend="reference"),
        layer.Dropout(0.3),
        nn.Linear(20, 10),
        neuron.LIFNode(tau=1.5),
    )
    nn.init.normal_(model[-2].weight)  # so that the output fires
    return model


def other_order() -> nn.Sequential:
    """Pooling before the neuron, two convolutions before one, voting, no norm."""
    return nn.Sequential(
        nn.AvgPool2d(2),
        nn.Conv2d(3, 6, 3),
        nn.MaxPool2d(2),
        neuron.ParametricLIFNode(decay_input=False),
        nn.Conv2d(6, 8, 1, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        neuron.LIFNode(decay_input=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        layer.Dropout(0.3),  # in the head, which has no neuron
        nn.Linear(8, 30),
        layer.VotingLayer(3),
    )


NETS = {"plain": (plain, 16), "other_order": (other_order, 32)} | {name: (make, 32) for name, make in MODELS.items()}


def batch(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 3, size, size), torch.randint(10, (3,))


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    make, size = NETS[name]
    torch.manual_seed(1)
    return make(), *batch(size)


def learn_by_hand(model: nn.Module, x: Tensor, y: Tensor, online: bool) -> Tensor:
    """One step of the optimizer on a model run by its own forward; returns the mean logits."""
    optimizer = sgd(model.parameters())
    total, loss = 0, 0
    for _ in range(STEPS):
        logits = model(x)
        step_loss = cross_entropy(logits, y) / STEPS
        if online:
            step_loss.backward()
        loss, total = loss + step_loss, total + logits.detach()
    if not online:
        loss.backward()
    optimizer.step()
    functional.reset_net(model)
    return total / STEPS


def assert_same_numbers(model: nn.Module, other: nn.Module) -> None:
    expected = model.state_dict()
    assert expected.keys() == other.state_dict().keys()
    for key, value in other.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-9, atol=1e-9, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", NETS)
def test_units_are_the_model_under_bptt(name):
    """Against the model as it came, neurons and all: logits, weights after a step, running statistics."""
    model, x, y = made(name)
    other, before = copy.deepcopy(model).double(), copy.deepcopy(model).double()
    rule = BPTT(units_from(model, backend="reference"), sgd, x)  # the same function, with no kernel to compile
    model, x = model.double(), x.double()
    torch.manual_seed(4)
    result = rule.step(x, y, STEPS)
    torch.manual_seed(4)
    logits = learn_by_hand(other, x, y, online=False)
    assert logits.std() > 1e-3
    torch.testing.assert_close(result.logits, logits, rtol=1e-9, atol=1e-9)
    assert_same_numbers(other, model)
    moved = [not torch.equal(p, q) for p, q in zip(model.parameters(), before.parameters(), strict=True)]
    assert sum(moved) >= 0.8 * len(moved)


@pytest.mark.parametrize(
    "name", [name for name in NETS if name != "spiking_resnet18"]
)  # of whose blocks BPTT's test tells as much
def test_units_are_the_model_under_sltt(name):
    """Against the model with its neurons online, run by its own forward."""
    model, x, y = made(name)
    other = copy.deepcopy(model).double()
    convert_neurons(other, backend="reference")
    for module in other.modules():
        if isinstance(module, Neuron):
            module.online = True
    rule = SLTT(units_from(model, backend="reference"), sgd, x)
    model, x = model.double(), x.double()
    torch.manual_seed(4)
    result = rule.step(x, y, STEPS)
    torch.manual_seed(4)
    torch.testing.assert_close(result.logits, learn_by_hand(other, x, y, online=True), rtol=1e-9, atol=1e-9)
    assert_same_numbers(other, model)


@pytest.mark.parametrize("rule", [BPTT, SLTT])
def test_time_steps_together_change_nothing(rule):
    """The model's neurons keep their state from one chunk to the next, of which the last may be shorter."""
    found = []
    for chunk in (1, 2, 3, STEPS + 1):
        model, x, y = made("spiking_resnet18")
        torch.manual_seed(4)
        result = rule(units_from(model.double(), backend="reference"), sgd, x.double(), chunk=chunk).step(
            x.double(), y, STEPS + 1
        )
        found.append((result.logits, model))
    assert found[0][0].std() > 1e-3
    for logits, model in found[1:]:
        torch.testing.assert_close(logits, found[0][0], rtol=1e-9, atol=1e-9)
        assert_same_numbers(found[0][1], model)


ROWS = {
    "plain": [(range(0, 1), (1, 2)), (range(1, 2), (2,)), (range(2, 3), None)],
    "other_order": [(range(0, 1), (1,)), (range(1, 2), None)],
    "sew_resnet18": [(range(0, 2), (6, 8)), (range(2, 9), None)],
    "spiking_resnet18": [(range(0, 3), (4, 7)), (range(3, 9), None)],
    "spiking_vgg11_bn": [(range(0, 1), (2, 5, 8, 9)), (range(1, 4), (9,)), (range(4, 10), None)],
}
"""Unit numbers of each subnetwork and of its auxiliary network."""


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize("name", NETS)
def test_trained_in_parts_and_in_place(name):
    """With auxiliary networks of its own kind; lean memory gives what paper memory does, to the last bit."""
    trained = []
    for memory in ("lean", "paper"):
        model, x, y = made(name)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        units = units_from(model)
        plan = plan_of_layers(Network(units, tuple(x.shape[1:]), memory), ROWS[name])
        torch.manual_seed(2)
        rule = STDL(units, sgd, x, plan=plan, memory=memory, order="time")  # in which dropout is drawn
        mine = {id(p) for p in model.parameters()}
        assert not any(id(p) in mine for part in rule.subnetworks[:-1] for p in part.classifier.parameters())
        torch.manual_seed(4)
        result = rule.step(x, y, STEPS)
        assert all(torch.isfinite(loss) for loss in result.losses)
        after = model.state_dict()
        assert sum(not torch.equal(before[key], after[key]) for key in before) >= 0.8 * len(before)
        trained.append(after)
    lean, paper = trained
    assert [key for key in lean if not torch.equal(lean[key], paper[key])] == []


AFTER_NORM = {
    sew_resnet18: 20, spiking_resnet18: 17, spiking_vgg11_bn: 8, sew_bottlenecks: 17, spiking_bottlenecks: 13
}  # fmt: skip
"""How many neurons of a model follow a batch norm, perhaps after a sum."""


@pytest.mark.parametrize("make", AFTER_NORM)
def test_batch_norm_is_in_one_pass_with_the_neuron_after_it(make, monkeypatch):
    """With what the same two kernels give one after the other, to the last bit."""
    fired, found = [], []
    one_pass = LeakyNeuron.fire
    monkeypatch.setattr(LeakyNeuron, "fire", lambda *given, **how: fired.append(0) or one_pass(*given, **how))
    layout = {"memory_format": torch.channels_last}
    x, y = torch.randn(4, 3, 64, 64).to(**layout), torch.arange(4)
    for together in (True, False):
        if not together:
            monkeypatch.setattr(LeakyNeuron, "takes", lambda *_: False)
        torch.manual_seed(1)
        model = make().to(**layout)
        before = copy.deepcopy(model.state_dict())
        SLTT(units_from(model), sgd, x).step(x, y, STEPS)
        assert len(fired) == AFTER_NORM[make] * STEPS
        found.append(model.state_dict())
    assert [key for key in before if not torch.equal(found[0][key], found[1][key])] == []
    learned = [key for key in before if not torch.equal(found[0][key], before[key])]
    assert {key for key in before if key.endswith("weight")} <= set(learned)  # a bias before batch norm need not


@pytest.mark.parametrize("make", [sew_bottlenecks, spiking_resnet18])
def test_hooks_of_neurons_see_spikes_that_nothing_writes_over(make):
    seen = []
    model, (x, y) = make(), batch(64)
    for module in model.modules():
        if isinstance(module, neuron.LIFNode):
            module.register_forward_hook(lambda _layer, _inputs, spikes: seen.append(spikes))
    SLTT(units_from(model), sgd, x).step(x, y, 1)
    assert len(seen) == AFTER_NORM[make]
    assert all(set(spikes.unique().tolist()) <= {0.0, 1.0} for spikes in seen)


def test_cut_by_a_budget():
    model, x, _ = made("sew_resnet18")
    rule = STDL(units_from(model), sgd, x, budget=0.75)
    assert [part.units for part in rule.plan.parts] == [range(0, 3), range(3, 9)]
    assert "64C7(s2)-MP(k3s2p1)-64SEWR-64SEWR" in str(rule.plan)
    assert "AP(k4s4)-512SEWR(s2)-512SEWR-10FC" in str(rule.plan)


def test_the_engine_s_own_blocks_hold_the_model_s_layers():
    model = sew_resnet18()
    units = units_from(model)
    assert [type(unit).__bases__[-1] for unit in units[1:-1]] == [SEWBlock] * 8
    assert units[1].conv1 is model.layer1[0].conv1
    assert {id(p) for p in units.parameters()} == {id(p) for p in model.parameters()}
    assert [unit.label for unit in units] == [
        "64C7(s2)-MP(k3s2p1)", "64SEWR", "64SEWR", "128SEWR(s2)", "128SEWR", "256SEWR(s2)", "256SEWR", "512SEWR(s2)",
        "512SEWR", "10FC",
    ]  # fmt: skip
    assert type(units_from(spiking_resnet18())[3].rebuild(5, 2)) is ResidualBlock


def test_pooled_spikes_are_kept_small():
    """Between subnetworks a max-pooled map of spikes is one byte an element."""
    model, x, _ = made("plain")
    stem = SLTT(units_from(model), sgd, x).model[0]
    with torch.no_grad(), borrowed(stem.modules(), training=True, online=True, memory="lean"):
        assert is_spikes(stem(x))


@pytest.mark.parametrize("name", ["plain", "other_order"])
def test_rebuilt_for_another_input(name):
    """A fresh unit of the same kind: own parameters, the same output channels, same neurons."""
    model, *_ = made(name)
    for unit in units_from(model)[:-1]:
        again = unit.rebuild(5, 1)
        images = torch.randn(2, 5, 8, 8)
        output = again(images)
        assert output.shape[1] == unit.out_channels == again.out_channels
        assert output.shape[2:] in ((8, 8), ())
        assert not {id(p) for p in again.parameters()} & {id(p) for p in unit.parameters()}
        assert [repr(m) for m in again.modules() if isinstance(m, Neuron)] == [
            repr(m) for m in unit.modules() if isinstance(m, Neuron)
        ]
        if again.in_channels == 5 and unit.input_dims == 1:
            again.rebuild(7, 1)(torch.randn(2, 7))


def test_plans_before_running_and_after():
    """Dropout masks are forgotten with the neurons' states: a plan copies no state."""
    model, x, y = made("plain")
    units = units_from(model)
    first = predict(STDL, units, sgd, x, STEPS, budget=0.8).peak_bytes
    STDL(units, sgd, x, budget=0.8).step(x, y, STEPS)
    assert predict(STDL, units, sgd, x, STEPS, budget=0.8).peak_bytes == first


@pytest.mark.parametrize("plif", [neuron.ParametricLIFNode, FusedPLIF])
def test_plans_with_learned_decays(plif):
    """On fake tensors, where a budget cuts the network: no decay is known there, not even to print or copy it."""
    torch.manual_seed(0)
    layers = [(nn.Conv2d(width, 4, 3, padding=1), nn.BatchNorm2d(4), plif()) for width in (3, 4, 4)]
    units = units_from(nn.Sequential(*itertools.chain(*layers), nn.Flatten(), nn.Linear(256, 10)))
    x = torch.randn(2, 3, 8, 8)
    prediction = predict(STDL, units, sgd, x, STEPS, budget=0.8)
    assert len(prediction.subnetworks) == len(STDL(units, sgd, x, budget=0.8).plan.parts) > 1


def test_plans_in_the_middle_of_a_sequence():
    """Also after somebody has read the state, which is then held in another form; a plan and a step leave it alone."""
    model, x, y = made("plain")
    units = units_from(model)
    first = predict(STDL, units, sgd, x, STEPS, budget=0.8).peak_bytes
    model(x)
    v = model[0][2].v
    assert predict(STDL, units, sgd, x, STEPS, budget=0.8).peak_bytes == first
    STDL(units, sgd, x, budget=0.8).step(x, y, STEPS)
    assert model[0][2].v is v


def test_a_mask_lasts_a_sequence():
    model = nn.Sequential(nn.Linear(4, 50), neuron.IFNode(), layer.Dropout(0.5), nn.Linear(50, 2))
    unit = units_from(model)[0]
    dropout = unit.layers[2]
    first = dropout(torch.ones(2, 50))
    assert torch.equal(dropout(torch.ones(2, 50)), first)
    dropout.reset()
    assert not torch.equal(dropout(torch.ones(2, 50)), first)
    assert torch.equal(dropout.eval()(torch.ones(2, 50)), torch.ones(2, 50))


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_a_mask_is_one_time_step_s(chunk):
    """However many time steps run together."""
    model = nn.Sequential(nn.Linear(4, 50), neuron.IFNode(v_threshold=0.1), layer.Dropout(0.5), nn.Linear(50, 2))
    units, seen = units_from(model), []
    units[0].layers[2].register_forward_hook(lambda mask, given, out: seen.append((mask.membrane, given[0], out)))
    x, y = torch.rand(3, 4), torch.arange(3) % 2
    SLTT(units, sgd, x, chunk=chunk).step(torch.stack([x] * 5), y, 5)
    first = seen[0][0]
    assert first.shape == (3, 50)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    for mask, spikes, kept in seen:
        assert torch.equal(mask, first)
        assert torch.equal(kept, torch.cat([spikes_t * first for spikes_t in spikes.split(3)]))


def test_a_rule_whose_neurons_were_restored_says_so():
    model, x, y = made("spiking_resnet18")
    optimize(model)
    rule = SLTT(units_from(model), sgd, x)
    restore(model)
    for call in (lambda: rule.step(x, y, STEPS), lambda: rule.predict(x, STEPS)):
        with pytest.raises(ValueError, match=r"a neuron of this rule is a LIFNode now, as restore\(\) was called"):
            call()
    SLTT(units_from(model), sgd, x).step(x, y, STEPS)


@pytest.mark.parametrize("function", [units_from, convert_neurons, optimize, fuse_norms, restore])
def test_what_is_no_model_is_named(function):
    with pytest.raises(TypeError, match=rf"^{function.__name__} takes an nn\.Module, and got int\.$"):
        function(3)


def test_blocks_of_one_s_own_join():
    conv = nn.Conv2d(4, 6, 3, padding=1)
    model = nn.Sequential(ConvUnit(3, 4), conv, neuron.LIFNode(), nn.Flatten(), nn.Linear(96, 10))
    units = units_from(model)
    assert units[0] is model[0]
    assert [unit.label for unit in units] == ["4C3", "6C3", "10FC"]
    assert SLTT(units, sgd, torch.randn(2, 3, 4, 4)).predict(torch.randn(2, 3, 4, 4), 2).shape == (2, 10)


def test_a_head_of_the_engine_s_is_kept():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), neuron.LIFNode(), nn.MaxPool2d(2), Head(4, 10))
    units = units_from(model)
    assert units[-1] is model[-1]
    assert [unit.label for unit in units] == ["4C3-MP(k2s2)", "10FC"]
    assert units_from(nn.Sequential(ConvUnit(3, 4), nn.ReLU(), Head(4, 10)))[-1].num_classes == 10


@pytest.mark.parametrize("rule", [BPTT, SLTT, functools.partial(STDL, budget=0.9, variant="linear")])
def test_a_network_of_linear_layers_takes_images(rule):
    """The layer that flattens them takes any number of channels."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(48, 40), neuron.LIFNode(), nn.Linear(40, 32), neuron.LIFNode(), nn.Linear(32, 10)
    )
    nn.init.normal_(model[3].weight)  # so that the second layer fires
    before = copy.deepcopy(model.state_dict())
    x, y = torch.randn(4, 3, 4, 4), torch.randint(10, (4,))
    result = rule(units_from(model), sgd, x).step(3 * x, y, STEPS)
    assert result.logits.shape == (4, 10)
    assert result.losses[-1].isfinite()
    assert not any(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


def shared() -> nn.Sequential:
    lif = neuron.LIFNode()
    return nn.Sequential(nn.Conv2d(3, 3, 1), lif, nn.Conv2d(3, 3, 1), lif, nn.Flatten(), nn.Linear(3, 2))


def multi_step() -> nn.Module:
    model = plain()
    functional.set_step_mode(model, "m")
    return model


STEM = (nn.Conv2d(3, 4, 3), neuron.LIFNode())
REFUSED = {
    r"1 \(Residual\) .* forward of its own": lambda: nn.Sequential(*copy.deepcopy(STEM[:1]), Residual()),
    r"the model \(Residual\) .* nn\.Sequential of them": Residual,
    r"0 \(Conv3d\) .* 2d convolutions": lambda: nn.Sequential(nn.Conv3d(3, 4, 3), nn.Linear(3, 3)),
    r"3 \(LIFNode\) .* it is 1 again": shared,
    r"set_step_mode\(model, \"s\"\)": multi_step,
    r"1 \(QIFNode\) has no fused equal": lambda: nn.Sequential(nn.Linear(2, 2), neuron.QIFNode(), nn.Linear(2, 2)),
    r"2 \(Conv2d\) .* end in a linear classifier": lambda: nn.Sequential(*copy.deepcopy(STEM), nn.Conv2d(4, 2, 1)),
    r"the model \(Sequential\) .* no layer with a neuron": nn.Sequential,
    r"no layer with a neuron before": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3, 2), neuron.LIFNode()),
    r"the model \(MSResNet\) .* forward of its own": lambda: ms_resnet18(num_classes=2),
    r"the model \(DataParallel\) .* pass model\.module": lambda: nn.DataParallel(plain()),
    r"the model \(OptimizedModule\) .* pass model\._orig_mod": lambda: torch.compile(plain()),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_cut_is_named(message):
    with pytest.raises(ValueError, match=message):
        units_from(REFUSED[message]())

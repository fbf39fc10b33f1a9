"""What refuses leaves the model as it was: every module, attribute, parameter, state and mode."""

import copy
import functools
import random
import sys
import types
from collections.abc import Callable

import pytest
import snntorch
import torch
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import Tensor, nn

from stdl_engine import FusedALIF, FusedLIF
from stdl_engine.convert import convert_neurons, units_from
from stdl_engine.units import ConvUnit, Head

Snapshot = list[tuple]


def snapshot(model: nn.Module) -> Snapshot:
    """Every module with its place, its class and what it holds: objects by identity, tensors by value as well."""
    seen = []
    for name, module in model.named_modules(remove_duplicate=False):
        held = {}
        for key, value in vars(module).items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            held[key] = (id(value), [(part, id(item), value_of(item)) for part, item in parts])
        seen.append((name, id(module), type(module), held))
    return seen


def value_of(item: object) -> object:
    """For what may be changed in place."""
    if isinstance(item, Tensor):
        return item._version, item.detach().clone().flatten().tolist()
    return copy.copy(item) if isinstance(item, list | dict) else None


class Skip(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for one in self.layers:
            x = x + one(x)
        return x


class Cell(nn.Module):
    """Stands in for a neuron of another library."""

    __module__ = "norse.torch.module.snn"
    __qualname__ = "SNNCell"

    def forward(self, x: Tensor) -> Tensor:
        return x


Cell.__name__ = "SNNCell"


def running(node: nn.Module) -> nn.Module:
    """A neuron in the middle of a sequence, with a history."""
    node(torch.randn(2, 4, 6, 6, requires_grad=True))
    return node


def hooked(node: nn.Module) -> nn.Module:
    node.register_forward_hook(lambda *_: None)
    return node


PARTS = {
    "conv": lambda: nn.Conv2d(4, 4, 3, padding=1),
    "its conv": lambda: layer.Conv2d(4, 4, 1),
    "norm": lambda: nn.BatchNorm2d(4),
    "linear": lambda: nn.Linear(4, 4),
    "flatten": nn.Flatten,
    "pool": lambda: nn.MaxPool2d(2),
    "dropout": lambda: layer.Dropout(0.3),
    "lif": neuron.LIFNode,
    "running lif": lambda: running(neuron.LIFNode(v_reset=None)),
    "hooked lif": lambda: hooked(neuron.LIFNode()),
    "plif": lambda: neuron.ParametricLIFNode(store_v_seq=True),
    "if, several steps": lambda: neuron.IFNode(step_mode="m"),
    "shared lif": neuron.LIFNode,
    "fused": lambda: FusedLIF(),
    "running fused": lambda: running(FusedLIF()),
    "alif": lambda: FusedALIF(),
    "unit": lambda: ConvUnit(4, 4),
    "head": lambda: Head(4, 10),
    "voting": lambda: layer.VotingLayer(2),
    "nested": lambda: nn.Sequential(nn.Conv2d(4, 4, 1), neuron.LIFNode(), nn.Sequential(neuron.IFNode())),
    "skip": lambda: Skip(nn.Conv2d(4, 4, 1), neuron.LIFNode()),
    "qif": neuron.QIFNode,
    "lif, other surrogate": lambda: neuron.LIFNode(surrogate_function=surrogate.LeakyKReLU()),
    "leaky": lambda: snntorch.Leaky(0.9, init_hidden=True),
    "synaptic": lambda: snntorch.Synaptic(0.9, 0.8),
    "cell": Cell,
    "conv3d": lambda: nn.Conv3d(1, 1, 1),
    "lstm": lambda: nn.LSTM(4, 4),
}


COMMON = ["conv", "norm", "lif", "plif", "running lif", "pool", "flatten", "linear", "fused", "nested", "unit",
          "shared lif"]  # fmt: skip


def made_up(seed: int) -> nn.Module:
    """A model of two to nine parts in any order, in mixed modes, sometimes wrapped."""
    chance = random.Random(seed)
    names = [chance.choice(COMMON if chance.random() < 0.85 else list(PARTS)) for _ in range(chance.randint(2, 9))]
    shared = neuron.LIFNode()
    model = nn.Sequential(*(shared if name == "shared lif" else PARTS[name]() for name in names))
    for module in model:
        module.train(chance.random() < 0.7)
    if chance.random() < 0.15:
        return Skip(*model)
    return nn.DataParallel(model) if chance.random() < 0.1 else model


@pytest.fixture(autouse=True)
def _norse(monkeypatch):
    monkeypatch.setitem(sys.modules, "norse", types.ModuleType("norse"))


def refusal(refuse: Callable[[nn.Module], object], model: nn.Module) -> str | None:
    """What is said about a model that cannot be converted, if it is refused."""
    try:
        refuse(model)
    except ValueError as error:
        return str(error)
    return None


def test_whatever_the_model():
    """Of many made-up ones most are refused, in many ways, and all of these are as they were."""
    reasons = set()
    for seed in range(300):
        model = made_up(seed)
        before, random_state = snapshot(model), torch.get_rng_state()
        if said := refusal(units_from, model):
            reasons.add(said.partition("(")[2][:60])
            assert snapshot(model) == before, f"seed {seed}: {said}"
            assert torch.equal(torch.get_rng_state(), random_state)
    assert len(reasons) >= 20


def test_a_part_of_every_kind_behind_a_good_beginning():
    """All that comes before the part that is refused could be cut, and is left alone all the same."""
    taken = []
    for name, make in PARTS.items():
        model = nn.Sequential(nn.Conv2d(3, 4, 1), neuron.LIFNode(), nn.Conv2d(4, 4, 1), running(FusedLIF()), make())
        before = snapshot(model)
        if refusal(units_from, model):
            assert snapshot(model) == before, name
        else:
            taken.append(name)
    assert taken == ["linear", "head"]


def test_strict_conversion():
    refused = 0
    for seed in range(300):
        model = made_up(seed)
        before = snapshot(model)
        if said := refusal(functools.partial(convert_neurons, strict=True), model):
            refused += 1
            assert snapshot(model) == before, f"seed {seed}: {said}"
    assert refused >= 20


def test_the_reset_cache_is_right_after_a_refusal():
    model = nn.Sequential(nn.Linear(3, 4), neuron.LIFNode(), nn.Linear(4, 2), neuron.QIFNode(), nn.Linear(2, 2))
    functional.reset_net(model)
    with pytest.raises(ValueError, match="QIFNode"):
        units_from(model)
    model(torch.randn(2, 3))
    assert isinstance(model[1].v, Tensor)
    functional.reset_net(model)
    assert model[1].v == 0.0


def test_whatever_goes_wrong(monkeypatch):
    """Not only what is refused with a sentence."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), neuron.LIFNode(), nn.Flatten(), nn.Linear(64, 2))
    before = snapshot(model)

    def interrupted(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stdl_engine.convert.units._head", interrupted)
    with pytest.raises(KeyboardInterrupt):
        units_from(model)
    assert snapshot(model) == before

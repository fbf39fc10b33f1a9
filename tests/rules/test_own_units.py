"""A user's own blocks join a model: they are cut, rebuilt in auxiliary networks and trained like the engine's."""

import pytest
import torch
from torch import Tensor, nn

from stdl_engine import FusedLIF
from stdl_engine.models import build_model
from stdl_engine.planning.auxiliary import VARIANTS, Search
from stdl_engine.planning.network import Network
from stdl_engine.planning.plan import plan_of_layers
from stdl_engine.rules import RULES, STDL
from stdl_engine.units import ConvUnit, Head, Unit

from .nets import assert_same, batches, make, numbers, sgd, train, unchanged


class Separable(Unit):
    """Depthwise 3×3, pointwise 1×1: plain PyTorch layers, a stride of its own."""

    max_stride = 2

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, hidden: int = 1) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.stride, self.hidden = in_channels, out_channels, stride, hidden
        inside = in_channels * hidden
        self.depthwise = nn.Conv2d(in_channels, inside, 3, stride, 1, groups=in_channels, bias=False)
        self.norm1 = nn.BatchNorm2d(inside)
        self.neuron1 = FusedLIF(0.4)
        self.pointwise = nn.Conv2d(inside, out_channels, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.neuron2 = FusedLIF(0.4)

    def forward(self, x: Tensor) -> Tensor:
        return self.neuron2(self.norm2(self.pointwise(self.neuron1(self.norm1(self.depthwise(x))))))

    def rebuild(self, in_channels: int, stride: int) -> "Separable":
        return Separable(in_channels, self.out_channels, stride, self.hidden)


class Stranger(nn.Module):
    """No subclass of `Unit`, and without a label: only what the engine asks for."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.stride, self.max_stride = in_channels, out_channels, 1, 1
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(out_channels)
        self.neuron = FusedLIF(0.4)

    def forward(self, x: Tensor) -> Tensor:
        return self.neuron(self.norm(self.conv(x)))

    def rebuild(self, in_channels: int, stride: int) -> "Stranger":
        return Stranger(in_channels, self.out_channels)


class Leaky(Unit):
    """Uses the neuron's input a second time, after the neuron has fired."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)
        self.neuron = FusedLIF(0.4)

    def forward(self, x: Tensor) -> Tensor:
        current = self.norm(self.conv(x))
        spikes = self.neuron(current)
        return spikes + 0.1 * current * current

    def rebuild(self, in_channels: int, stride: int) -> "Leaky":
        return Leaky(in_channels, self.out_channels)


def separable_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        ConvUnit(3, 4), Separable(4, 6), Separable(6, 8, stride=2), Separable(8, 8), Separable(8, 8, 2), Head(8, 10)
    )


def stranger_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(Stranger(3, 4), Stranger(4, 6), Stranger(6, 6), Head(6, 10))


def leaky_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(ConvUnit(3, 4), Leaky(4, 6), Leaky(6, 6), Head(6, 10))


NETS = {"separable": separable_net, "stranger": stranger_net, "leaky": leaky_net}
ROWS = {
    "separable": [(range(0, 2), (2, 4)), (range(2, 3), (3, 4)), (range(3, 5), None)],
    "stranger": [(range(0, 1), (1, 2)), (range(1, 3), None)],
    "leaky": [(range(0, 1), (1, 2)), (range(1, 2), (2,)), (range(2, 3), None)],
}


def made(name: str, rule: str, memory: str, optimizer=sgd):
    (x, _), *_ = batches(1)
    model, options = NETS[name](), {}
    if rule == "stdl":
        options["plan"] = plan_of_layers(Network(model, (3, 8, 8), memory), ROWS[name])
    return make(rule, model, x, optimizer, memory=memory, **options)


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("rule", RULES)
def test_trains_the_same_in_lean_and_paper_memory(rule, name):
    data = batches(3)
    lean, paper = made(name, rule, "lean"), made(name, rule, "paper")
    before = numbers(lean)
    train(lean, data), train(paper, data)
    assert_same(numbers(lean), numbers(paper))
    same = unchanged(before, numbers(lean))
    assert [key for key in same if not key.endswith("conv.bias")] == [
        key for key in before if rule == "decolle" and key.startswith("auxiliary.")
    ]


def test_is_cut_by_the_budget_and_rebuilt():
    (x, y), *_ = batches(1)
    rule = STDL(separable_net(), sgd, x, budget=0.7, memory="paper")
    assert len(rule.subnetworks) > 1
    first = rule.subnetworks[0]
    rebuilt = [layer for layer in first.classifier if isinstance(layer, Separable)]
    assert rebuilt
    mine = {id(p) for p in rule.model.parameters()}
    assert not any(id(p) in mine for layer in rebuilt for p in layer.parameters())
    assert "6Separable" in str(rule.plan)
    rule.step(x, y, 2)


def test_is_counted_by_what_it_is_made_of():
    """Depthwise and pointwise conv with a neuron layer each: three maps twice, of different sizes."""
    net = Network(nn.Sequential(Separable(4, 8, 2, hidden=3), Head(8, 10)), (4, 8, 8))
    assert net.costs == [3 * 12 * 4 * 4 + 3 * 8 * 4 * 4]


def test_blocks_that_only_look_alike_are_counted_apart():
    """Same class, channels and label, and more inside."""
    model = nn.Sequential(ConvUnit(3, 4), Separable(4, 4, hidden=1), Separable(4, 4, hidden=5), Head(4, 10))
    net = Network(model, (3, 8, 8))
    search = Search(net.units, net.shapes, "paper", VARIANTS["stdl"])
    assert model[1].label == model[2].label == "4Separable"
    assert search.cost(1, net.shapes[0]) == net.costs[1]
    assert search.cost(2, net.shapes[0]) == net.costs[2] > net.costs[1]


def test_a_stranger_is_named_by_its_class():
    rule = made("stranger", "stdl", "lean")
    assert rule.plan.parts[0].names == ("Stranger",)
    assert rule.plan.parts[0].auxiliary_names == ("Stranger", "Stranger", "10FC")


def test_input_that_is_used_again_is_not_overwritten():
    rule = made("leaky", "sltt", "lean")
    stem, *own = rule.model[:-1]
    assert stem.neuron.overwrite  # the engine's own units know that nothing else needs it
    assert not any(unit.neuron.overwrite for unit in own)
    current = torch.randn(2, 6, 8, 8)
    kept = current.clone()
    with torch.no_grad():
        own[0].neuron(current)
    assert torch.equal(current, kept)


def test_a_unit_whose_stride_it_cannot_rebuild_is_pooled_for():
    class Fixed(Separable):
        max_stride = 1

    model = nn.Sequential(ConvUnit(3, 4), Fixed(4, 8, stride=2), Fixed(8, 8, stride=2), Head(8, 10))
    plan = plan_of_layers(Network(model, (3, 8, 8)), [(range(0, 1), (1, 2)), (range(1, 3), None)])
    assert [(layer.pool, layer.stride) for layer in plan.parts[0].auxiliary] == [(2, 1), (2, 1)]


class Graded(nn.Module):
    """A neuron of someone else's, whose output is no spike."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0, 3)


def small_graded(name: str) -> nn.Sequential:
    torch.manual_seed(1)
    return build_model(name, width=0.0625, neuron=Graded)


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize("name", ["resnet18", "sew_resnet34", "vgg11"])
def test_neurons_that_do_not_spike(name):
    """Nothing may be kept as bits or whole numbers that is none."""
    data, found = batches(2, name), []
    for memory in ("lean", "paper"):
        rule = make("stdl", small_graded(name), data[0][0], memory=memory)
        train(rule, data)
        found.append(numbers(rule))
    assert_same(*found)

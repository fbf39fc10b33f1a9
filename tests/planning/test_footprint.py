"""Footprints as the paper counts them, of every unit of every model."""

import pytest
from torch import nn

from stdl_engine import FusedALIF, FusedLIF, FusedPLIF
from stdl_engine.models import MODELS, build_model
from stdl_engine.planning.footprint import footprint
from stdl_engine.planning.network import Network
from stdl_engine.units import ConvUnit, Head, ResidualBlock, SEWBlock, shapes_only

from ..paper import network, unit_cost

every_model = pytest.mark.parametrize("name", MODELS)


@every_model
def test_every_unit_as_the_paper_counts(name):
    net = network(name)
    shapes = [net.in_shape, *net.shapes]
    assert net.costs == [unit_cost(*row) for row in zip(net.units, shapes, net.shapes, strict=False)]


@every_model
def test_whole_network_includes_its_input(name):
    net = network(name)
    channels, height, width = net.in_shape
    assert net.total == sum(net.costs) + channels * height * width == net.cost(range(len(net.units)))


def test_a_run_includes_the_map_it_takes_in():
    net = network("resnet18")
    assert net.cost(range(0, 2)) == 3 * 32**2 + net.costs[0] + net.costs[1]
    assert net.cost(range(3, 4)) == 64 * 32**2 + net.costs[3]


@pytest.mark.parametrize(
    ("unit", "maps"),
    [
        (lambda: ConvUnit(3, 4), 3),
        (lambda: ResidualBlock(4, 4), 6),
        (lambda: ResidualBlock(3, 4), 7),
        (lambda: SEWBlock(4, 4), 6),
        (lambda: SEWBlock(3, 4), 9),
    ],
)
def test_maps_a_unit(unit, maps):
    with shapes_only():
        unit = unit()
    assert footprint(unit, (unit.in_channels, 8, 8)) == (maps * 4 * 8 * 8, (4, 8, 8))


def test_lean_keeps_less_of_every_unit():
    for name in MODELS:
        lean, paper = network(name, "lean"), network(name)
        assert all(a < b for a, b in zip(lean.costs, paper.costs, strict=True))
        assert lean.shapes == paper.shapes


def test_counting_leaves_nothing_behind():
    with shapes_only():
        unit = ResidualBlock(3, 4)
    first = footprint(unit, (3, 8, 8))
    assert footprint(unit, (3, 8, 8)) == first
    assert not any(module._forward_hooks for module in unit.modules())
    assert all(module.membrane is None for module in unit.modules() if isinstance(module, FusedLIF))
    assert footprint(unit, (3, 6, 6))[1] == (4, 6, 6)


def test_model_is_neither_run_nor_changed():
    model = build_model("resnet18", width=0.0625)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    net = Network(model, (3, 16, 16))
    assert net.model is model
    assert model.training
    assert all((tensor == before[name]).all() for name, tensor in model.state_dict().items())


def test_float64_model_is_counted_like_any():
    model = nn.Sequential(ConvUnit(3, 4), Head(4, 10))
    assert Network(model.double(), (3, 8, 8)).costs == [3 * 4 * 8 * 8]


@pytest.mark.parametrize("neuron", [FusedPLIF, FusedALIF])
@pytest.mark.parametrize("memory", ["paper", "lean"])
def test_a_neuron_that_keeps_one_map_more(neuron, memory):
    with shapes_only():
        units = [ConvUnit(3, 4, make_neuron=kind) for kind in (FusedLIF, neuron)]
    (plain, _), (more, _) = (footprint(unit, (3, 8, 8), memory) for unit in units)
    assert more - plain == 4 * 8 * 8

"""The search for auxiliary networks: against every choice of later layers there is, and in few evaluations."""

import itertools
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stdl_engine.models import MODELS, build_model
from stdl_engine.neurons import reset_states
from stdl_engine.planning import auxiliary
from stdl_engine.planning.auxiliary import VARIANTS, Layer, Search, Variant
from stdl_engine.planning.network import Network
from stdl_engine.planning.plan import plan_within
from stdl_engine.rules import STDL
from stdl_engine.units import ConvUnit, Head, PooledHead, label_of

from ..paper import layer_cost, network, pool_and_stride


def search(name: str, variant: str = "stdl") -> Search:
    net = network(name)
    return Search(net.units, net.shapes, "paper", VARIANTS[variant])


def every_choice(count: int, last: int):
    """All ordered subsets of the layers behind `last`."""
    for depth in range(count - last):
        yield from itertools.combinations(range(last + 1, count), depth)


@pytest.mark.parametrize(("name", "lasts"), [("resnet18", (0, 1, 3)), ("vgg11", (0, 2)), ("sew_resnet34", (7, 9))])
def test_deepest_then_largest_of_all_choices(name, lasts):
    """The whole space, with costs from the paper's rules written a second time."""
    net, found = network(name), search(name)
    for last in lasts:
        totals = {}
        for path in every_choice(len(net.units), last):
            steps = itertools.pairwise((last, *path))
            totals[path] = sum(layer_cost(net.units[b], net.shapes[a], net.shapes[b]) for a, b in steps)
        for budget in sorted(totals.values())[:: max(1, len(totals) // 23)]:
            fitting = [(len(path), total) for path, total in totals.items() if total <= budget]
            layers, total = found.best(last, budget)
            path = tuple(layer.index for layer in layers)
            assert (len(path), total) == max(fitting)
            assert totals[path] == total


@settings(deadline=None)
@given(st.data(), st.integers(1, 7), st.sampled_from(["footprint", "depth"]), st.sampled_from([None, 0, 1, 3]))
def test_any_costs(data, count, prefer, max_depth):
    """Costs that depend on the layer and the one before it, as no real network has them."""
    cost = {(a, b): data.draw(st.integers(0, 9)) for a in range(count) for b in range(a + 1, count)}
    budget = data.draw(st.integers(0, 25))

    class Given(Search):
        def cost(self, index, in_shape):
            return cost[in_shape[0], index]

    units = [SimpleNamespace(max_stride=1)] * count
    layers, total = Given(
        units, [(i,) for i in range(count)], "paper", Variant(max_depth=max_depth, prefer=prefer)
    ).best(0, budget)
    totals = {path: sum(cost[step] for step in itertools.pairwise((0, *path))) for path in every_choice(count, 0)}
    fitting = {p: t for p, t in totals.items() if t <= budget and (max_depth is None or len(p) <= max_depth)}
    deepest = max(map(len, fitting))
    path = tuple(layer.index for layer in layers)
    assert path in fitting
    assert fitting[path] == total
    assert len(path) == deepest
    pick = max if prefer == "footprint" else min
    assert total == pick(t for p, t in fitting.items() if len(p) == deepest)


@pytest.mark.parametrize("name", MODELS)
def test_strides_and_pools_of_every_pair_of_layers(name):
    net, found = network(name), search(name)
    for last, index in itertools.combinations(range(len(net.units)), 2):
        pool, stride = pool_and_stride(net.units[index], net.shapes[last], net.shapes[index])
        expected = Layer(index, pool, stride)
        assert auxiliary.fitted(net.units[index], index, net.shapes[index], net.shapes[last]) == expected
        cost = layer_cost(net.units[index], net.shapes[last], net.shapes[index])
        assert found.cost(index, net.shapes[last]) == cost


@pytest.mark.parametrize("name", MODELS)
def test_smallest_is_the_cheapest_single_layer(name):
    net, found = network(name), search(name)
    count = len(net.units)
    for last in range(count - 1):
        costs = [layer_cost(net.units[i], net.shapes[last], net.shapes[i]) for i in range(last + 1, count)]
        assert found.smallest(last) == min(costs)
        layers, total = found.best(last, min(costs))
        assert (len(layers), total) == (1, min(costs))
    assert found.smallest(count - 1) == 0


def test_nothing_fits():
    layers, total = search("resnet18").best(0, 10)
    assert (layers, total) == ([], 0)
    assert isinstance(search("resnet18").build(0, [], 10)[0], PooledHead)


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "sew_resnet34"])
def test_built_network_keeps_channels_and_resolution(name):
    """Run for real at a small width: each layer's output has the shape it has in the network."""
    model = build_model(name, width=0.0625, decay=0.3)
    net = Network(model, (3, 32, 32))
    units = list(model)[:-1]
    found = Search(units, net.shapes, "paper", VARIANTS["stdl"])
    last = 1
    layers, _ = Search(net.units, net.shapes, "paper", VARIANTS["stdl"]).best(last, net.total)
    assert len(layers) > 2
    x = torch.randn(2, *net.shapes[last])
    modules = list(found.build(last, layers, 7))
    assert isinstance(modules[-1], Head)
    for layer in layers:
        if layer.pool > 1:
            x = modules.pop(0)(x)
        unit = modules.pop(0)
        x = unit(x)
        assert x.shape[1:] == net.shapes[layer.index]
        assert type(unit) is type(units[layer.index])
        assert unit is not units[layer.index]
    assert modules[0](x).shape == (2, 7)
    reset_states(model)


def test_built_layers_share_nothing_with_the_model():
    model = build_model("resnet18", width=0.0625, decay=0.3, threshold=0.8)
    net = Network(model, (3, 16, 16))
    built = Search(list(model)[:-1], net.shapes, "paper", VARIANTS["stdl"]).build(
        1, [Layer(5, 2, 2), Layer(7, 1, 2)], 10
    )
    mine = {p.data_ptr() for p in model.parameters()}
    assert not any(p.data_ptr() in mine for p in built.parameters())
    assert [label_of(module) for module in built] == ["AP(k2s2)", "16R(s2)", "32R(s2)", "10FC"]
    assert {(n.decay, n.threshold) for n in built.modules() if hasattr(n, "decay")} == {(0.3, 0.8)}


def test_deep_networks_take_few_evaluations(monkeypatch):
    """SEWResNet-34 has 2**16 choices behind its stem; a layer is measured and looked up far less often."""
    measured, looked_up = [], []
    footprint, cost = auxiliary.footprint, Search.cost

    def counted_footprint(*args):
        measured.append(args)
        return footprint(*args)

    def counted_cost(*args):
        looked_up.append(args)
        return cost(*args)

    monkeypatch.setattr(auxiliary, "footprint", counted_footprint)
    monkeypatch.setattr(Search, "cost", counted_cost)
    net = network("sew_resnet34")
    for budget in (0.3, 0.4, 0.608, 0.9):
        plan_within(net, budget * net.total)
        assert len(measured) <= 20
        assert len(looked_up) <= 600
        measured.clear()
        looked_up.clear()


def test_a_map_that_is_narrower_than_high():
    """Strided convolutions round sizes up, so one side may be as small as another unit leaves it, and the other not."""
    units = ConvUnit(3, 8), ConvUnit(8, 8, conv_stride=2), *(ConvUnit(8, 8, pool=nn.AvgPool2d(2)) for _ in range(2))
    for sides in ((7, 8), (8, 7)):
        x, y = torch.randn(2, 3, *sides), torch.arange(2)
        rule = STDL(nn.Sequential(*units, Head(8, 10)), partial(torch.optim.SGD, lr=0.1), x, layerwise=True)
        assert rule.step(x, y, T=2).loss.isfinite()

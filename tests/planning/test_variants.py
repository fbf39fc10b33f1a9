"""The ablations: each changes what it says and nothing else."""

import pytest

from stdl_engine.planning.auxiliary import VARIANTS, Search
from stdl_engine.planning.partition import partition_by
from stdl_engine.planning.plan import plan_within
from stdl_engine.units import PooledHead

from ..paper import footprints_remembered, layer_cost, network, rows


@pytest.fixture(autouse=True, scope="module")
def _measure_each_layer_once():
    with footprints_remembered():
        yield


def plan(name: str, b: float, variant: str = "stdl", **options):
    net = network(name)
    return plan_within(net, b * net.total, VARIANTS[variant], **options)


@pytest.mark.parametrize(("variant", "kernel"), [("conv3x3", "C3"), ("conv1x1", "C1")])
def test_blocks_become_convs_of_their_channels_and_stride(variant, kernel):
    net, found = network("resnet18"), plan("resnet18", 0.502, variant)
    for part in found.parts[:-1]:
        expected = []
        for layer in part.auxiliary:
            expected += [f"AP(k{layer.pool}s{layer.pool})"] if layer.pool > 1 else []
            expected += [f"{net.shapes[layer.index][0]}{kernel}" + ("(s2)" if layer.stride == 2 else "")]
        assert part.auxiliary_names == (*expected, "10FC")


@pytest.mark.parametrize("variant", ["conv3x3", "conv1x1"])
def test_a_conv_costs_half_a_block_so_more_of_them_fit(variant):
    net = network("resnet18")
    blocks, convs = (plan("resnet18", 0.502, v, layerwise=True).parts for v in ("stdl", variant))
    for block, conv in zip(blocks[:-1], convs[:-1], strict=True):
        cost, shape = net.cost(conv.units), net.shapes[conv.units.stop - 1]
        for layer in conv.auxiliary:
            channels, side, _ = shape
            shape = net.shapes[layer.index]
            pooled = channels * (side // layer.pool) ** 2 if layer.pool > 1 else 0
            cost += pooled + 3 * shape[0] * shape[1] * shape[2]
        assert conv.footprint == cost
        assert len(conv.auxiliary) >= len(block.auxiliary)
    assert len(convs[0].auxiliary) > len(blocks[0].auxiliary)


def test_plain_conv_layers_stay_as_they_are():
    assert rows(plan("vgg16", 0.46, "conv1x1")) == rows(plan("vgg16", 0.46))


def test_two_layers_are_the_largest_single_layer_and_the_classifier():
    net, found = network("resnet18"), plan("resnet18", 0.502, "two_layer")
    assert [part.units for part in found.parts] == [part.units for part in plan("resnet18", 0.502).parts]
    for part in found.parts[:-1]:
        room, last = found.budget - net.cost(part.units), part.units.stop - 1
        costs = [layer_cost(net.units[i], net.shapes[last], net.shapes[i]) for i in range(last + 1, 9)]
        assert len(part.auxiliary) == 1
        assert part.footprint - net.cost(part.units) == max(cost for cost in costs if cost <= room)


def test_linear_is_the_classifier_alone():
    net, found = network("resnet18"), plan("resnet18", 0.502, "linear")
    unreserved = partition_by(9, lambda run: net.cost(run) <= found.budget)
    assert [part.units for part in found.parts] == unreserved
    for part in found.parts:
        assert part.footprint == net.cost(part.units) <= found.budget
    assert {(part.auxiliary, part.auxiliary_names) for part in found.parts[:-1]} == {((), ("10FC",))}


def test_linear_classifiers_are_those_of_local_learning():
    net = network("resnet18")
    (head,) = Search(net.units, net.shapes, "paper", VARIANTS["linear"]).build(0, [], 10)
    assert isinstance(head, PooledHead)
    assert head.size == (4, 4)


def test_depth_only_is_as_deep_and_as_small_as_can_be():
    for b in (0.4, 0.48, 0.502, 0.55):
        small, large = plan("resnet18", b, "depth_only"), plan("resnet18", b)
        assert [part.units for part in small.parts] == [part.units for part in large.parts]
        for a, b in zip(small.parts[:-1], large.parts[:-1], strict=True):
            assert len(a.auxiliary) == len(b.auxiliary)
            assert a.footprint <= b.footprint
    assert rows(plan("resnet18", 0.502))[1][1] == "256R(s2)-512R(s2)-10FC"
    assert rows(plan("resnet18", 0.502, "depth_only"))[1][1] == "AP(k2s2)-512R(s2)-512R-10FC"


@pytest.mark.parametrize("variant", ["stdl", "two_layer", "linear", "depth_only", "conv3x3"])
def test_layerwise_is_one_unit_a_subnetwork_with_the_same_kind_of_auxiliary_network(variant):
    net, found = network("resnet18"), plan("resnet18", 0.502, variant, layerwise=True)
    assert [list(part.units) for part in found.parts] == [[i] for i in range(9)]
    search = Search(net.units, net.shapes, "paper", VARIANTS[variant])
    for i, part in enumerate(found.parts[:-1]):
        layers, cost = search.best(i, found.budget - net.cost(part.units))
        assert part.auxiliary == tuple(layers)
        assert part.footprint == net.cost(part.units) + cost <= found.budget
    assert found.parts[-1].auxiliary is None

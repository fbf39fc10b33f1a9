"""Plans: the fewest subnetworks with room for an auxiliary network each, errors, and the table they print as."""

import re

import pytest
import torch
from torch import nn

from stdl_engine.models import MODELS, build_model
from stdl_engine.planning.auxiliary import VARIANTS, Search
from stdl_engine.planning.network import Network, check_model
from stdl_engine.planning.plan import BudgetError, plan_of_layers, plan_with_linear_heads, plan_within
from stdl_engine.planning.subnetworks import build
from stdl_engine.units import ConvUnit, Head, shapes_only

from ..paper import footprints_remembered, network


@pytest.fixture(autouse=True, scope="module")
def _measure_each_layer_once():
    with footprints_remembered():
        yield


every_model = pytest.mark.parametrize("name", MODELS)


def fewest(net: Network, budget: float) -> float:
    """How many subnetworks any partition with room for one auxiliary layer needs, by dynamic programming."""
    search, count = Search(net.units, net.shapes, net.memory, VARIANTS["stdl"]), len(net.units)
    needed = [0.0] + [float("inf")] * count
    for stop in range(1, count + 1):
        reserve = 0 if stop == count else search.smallest(stop - 1)
        fitting = [start for start in range(stop) if net.cost(range(start, stop)) + reserve <= budget]
        needed[stop] = min((needed[start] + 1 for start in fitting), default=float("inf"))
    return needed[count]


@every_model
@pytest.mark.parametrize("memory", ["paper", "lean"])
def test_fewest_subnetworks_within_any_budget(name, memory):
    net = network(name, memory)
    for percent in (10, 20, 30, 45, 60, 75, 95):
        budget = percent / 100 * net.total
        best = fewest(net, budget)
        if best == float("inf"):
            with pytest.raises(BudgetError):
                plan_within(net, budget)
            continue
        plan = plan_within(net, budget)
        assert len(plan.parts) == best
        assert [unit for part in plan.parts for unit in part.units] == list(range(len(net.units)))
        assert all(part.footprint <= budget for part in plan.parts)
        assert all(part.auxiliary for part in plan.parts[:-1])  # one layer at least
        assert plan.parts[-1].auxiliary is None


@every_model
def test_the_whole_budget_is_one_subnetwork(name):
    net = network(name)
    (part,) = plan_within(net, net.total).parts
    assert (part.units, part.footprint) == (range(len(net.units)), net.total)


@every_model
@pytest.mark.parametrize("variant", ["stdl", "linear", "conv3x3"])
def test_too_small_a_budget_names_the_unit_and_the_smallest_that_works(name, variant):
    net, variant = network(name), VARIANTS[variant]
    with pytest.raises(BudgetError) as error:
        plan_within(net, 0.01 * net.total, variant)
    least = error.value.least
    label = net.labels(range(1))[0]
    assert str(error.value).startswith(
        f"unit 0 ({label}) with the smallest auxiliary network needs more than the budget"
    )
    plan_within(net, least, variant)
    with pytest.raises(BudgetError):
        plan_within(net, least * (1 - 1e-9), variant)


@every_model
def test_the_budget_in_the_message_works_as_written(name):
    net = network(name)
    with pytest.raises(BudgetError) as error:
        plan_within(net, 0.01 * net.total)
    found = re.search(
        r"of 0\.0100 of the network's footprint: the smallest budget that works is (0\.\d{4})\.$", str(error.value)
    )
    written = float(found[1])
    assert 0 <= written - error.value.least / net.total < 1e-4
    plan_within(net, written * net.total)


def test_smallest_budget_where_the_last_two_units_only_fit_together():
    """A strided conv costs more in an auxiliary network, where it is pooled for, than in its own place."""
    with shapes_only():
        model = nn.Sequential(ConvUnit(3, 8), ConvUnit(8, 8, conv_stride=2), Head(8, 10))
    net = Network(model, (3, 8, 8))
    assert len(plan_within(net, net.total).parts) == 1
    with pytest.raises(BudgetError) as error:
        plan_within(net, net.total - 1)
    assert error.value.least == net.total


def test_a_plan_written_by_hand():
    net = network("resnet18")
    plan = plan_of_layers(net, [(range(0, 3), (5, 8)), (range(3, 9), None)])
    assert plan.parts[0].auxiliary_names == ("AP(k2s2)", "256R(s2)", "512R(s2)", "10FC")
    pooled, first, second = 64 * 16**2, 7 * 256 * 8**2, 7 * 512 * 4**2
    assert plan.parts[0].footprint == net.cost(range(0, 3)) + pooled + first + second
    assert plan.parts[1].footprint == net.cost(range(3, 9))


def test_linear_heads_for_given_runs():
    net = network("resnet18")
    plan = plan_with_linear_heads(net, [range(0, 4), range(4, 9)])
    assert [(part.auxiliary, part.footprint) for part in plan.parts] == [
        ((), net.cost(range(0, 4))), (None, net.cost(range(4, 9))),
    ]  # fmt: skip


def test_built_subnetworks_hold_the_models_own_units():
    model = build_model("resnet18", width=0.0625)
    net = Network(model, (3, 16, 16))
    parts = build(net, plan_within(net, 0.5 * net.total))
    assert len(parts) > 1
    assert [unit for part in parts for unit in part.units] == list(model)[:-1]
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].classifier is model[-1]
    assert parts[-1].classifier_layers() == [model[-1]]
    mine = {id(p) for p in model.parameters()}
    for part in parts[:-1]:
        assert not any(id(p) in mine for p in part.classifier.parameters())
        assert part.classifier[-1].num_classes == 10


def test_auxiliary_networks_have_the_models_dtype():
    model = build_model("resnet18", width=0.0625).double()
    net = Network(model, (3, 16, 16))
    for part in build(net, plan_within(net, 0.5 * net.total)):
        assert {p.dtype for p in part.parameters()} == {torch.float64}


def test_plan_prints_as_a_table():
    net = network("resnet18")
    heading, *parts, total = str(plan_within(net, 0.502 * net.total)).splitlines()
    columns = [heading.index(name) for name in ("subnetwork", "auxiliary network", "footprint", "of budget")]
    cells = [[row[a:b].strip() for a, b in zip(columns, [*columns[1:], None], strict=True)] for row in parts]
    assert [row.split()[0] for row in parts] == ["1", "2", "3"]
    assert [row[:2] for row in cells] == [
        ["64C3-64R", "AP(k2s2)-256R(s2)-512R(s2)-512R-10FC"],
        ["64R-128R(s2)", "256R(s2)-512R(s2)-10FC"],
        ["128R-256R(s2)-256R-512R(s2)-512R-10FC", "-"],
    ]
    plan = plan_within(net, 0.502 * net.total)
    for row, part in zip(cells, plan.parts, strict=True):
        assert float(row[2].replace(",", "")) == part.footprint
        assert row[3] == f"{100 * part.footprint / plan.budget:.1f}%"
    assert total == (
        f"whole network {net.total:,.0f}, budget {0.502 * net.total:,.0f} (50.2%); "
        "footprints in elements per sample, paper memory"
    )


def test_plan_without_a_budget_prints_too():
    net = network("vgg11")
    text = str(plan_with_linear_heads(net, [range(0, 4), range(4, 8)]))
    assert [line.split()[-1] for line in text.splitlines()[1:3]] == ["-", "-"]
    assert text.splitlines()[-1] == f"whole network {net.total:,.0f}; footprints in elements per sample, paper memory"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Linear(3, 3),
            r"^the model is a Linear: it must be an nn\.Sequential of units ending in a Head, which .*units_from",
        ),
        (nn.ModuleList([ConvUnit(3, 4), Head(4, 10)]), r"^the model is a ModuleList: it must be an nn\.Sequential"),
        (nn.Sequential(), r"^the model is a Sequential: it must be"),
        (nn.Sequential(Head(4, 10)), r"^the model is a Sequential: it must be"),
        (nn.Sequential(ConvUnit(3, 4), ConvUnit(4, 4)), r"^the model ends in a ConvUnit: its last part must be a Head"),
        (nn.Sequential(ConvUnit(3, 4), nn.Linear(4, 10)), r"^the model ends in a Linear: its last part must be a Head"),
        (
            nn.Sequential(ConvUnit(3, 4), nn.ReLU(), Head(4, 10)),
            r"^part 1 of the model \(ReLU\) is no Unit: it lacks in_channels, out_channels, stride, max_stride, ",
        ),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), Head(4, 10)),
            r"^part 0 of the model \(Conv2d\) is no Unit: it lacks max_stride, rebuild\.$",
        ),
    ],
)
def test_models_that_are_none(model, message):
    with pytest.raises(TypeError, match=message):
        check_model(model)
    with pytest.raises(TypeError, match=message):
        Network(model, (3, 8, 8))

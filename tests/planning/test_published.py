"""The published table: as presets, and as what the algorithm gives with the paper's footprint."""

import functools

import pytest
import torch

from stdl_engine.models import build_model
from stdl_engine.planning.plan import plan_of_layers, plan_within
from stdl_engine.planning.published import PUBLISHED, published_rows
from stdl_engine.rules import STDL
from stdl_engine.units import label_of, shapes_only

from ..paper import SIDES, TABLE, footprints_remembered, network, rows

sgd = functools.partial(torch.optim.SGD, lr=0.1)


@pytest.fixture(autouse=True, scope="module")
def _measure_each_layer_once():
    with footprints_remembered():
        yield


def planned(name: str, b: float) -> list[tuple[str, str]]:
    net = network(name)
    return rows(plan_within(net, b * net.total))


@pytest.mark.parametrize(
    ("name", "budgets"),
    [
        ("resnet18", (0.4968, 0.502, 0.5079)),
        ("resnet19", (0.4442, 0.452, 0.4596)),
        ("sew_resnet34", (0.5937, 0.608, 0.6232)),
    ],
)
def test_algorithm_gives_the_published_rows(name, budgets):
    for b in budgets:
        assert planned(name, b) == TABLE[name]


@pytest.mark.parametrize(
    ("name", "outside"),
    [("resnet18", (0.4967, 0.508)), ("resnet19", (0.4441, 0.4597)), ("sew_resnet34", (0.5936, 0.6233))],
)
def test_and_others_just_outside(name, outside):
    for b in outside:
        assert planned(name, b) != TABLE[name]


def test_algorithm_gives_vgg16s_partition():
    subnetworks = [row[0] for row in TABLE["vgg16"]]
    for b in (0.447, 0.449, 0.485):
        assert [row[0] for row in planned("vgg16", b)] == subnetworks
    for b in (0.446, 0.486):
        assert [row[0] for row in planned("vgg16", b)] != subnetworks


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_the_published_table(name):
    net = network(name)
    assert rows(plan_of_layers(net, published_rows(net.model))) == TABLE[name]


@pytest.mark.parametrize("memory", ["lean", "paper"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_budget_published_builds_the_table(name, memory):
    """What is built, not only what is planned; without numbers."""
    with shapes_only():
        model = build_model(name)
        sample = torch.empty(2, 3, SIDES[name], SIDES[name])
        rule = STDL(model, sgd, sample, budget="published", memory=memory)
    assert rows(rule.plan) == TABLE[name]
    built = []
    for part in rule.subnetworks:
        units = [label_of(unit) for unit in part.units]
        classifier = [label_of(layer) for layer in part.classifier_layers()]
        built.append(("-".join(units + classifier), "") if part.is_last else ("-".join(units), "-".join(classifier)))
    assert built == TABLE[name]
    assert [unit for part in rule.subnetworks for unit in part.units] == list(model)[:-1]
    assert rule.subnetworks[-1].classifier is model[-1]


@pytest.mark.parametrize(("variant", "kernel"), [("conv3x3", "C3"), ("conv1x1", "C1")])
def test_preset_of_an_ablation_is_planned_as_it_is_built(variant, kernel):
    rule = STDL(
        build_model("resnet18", width=0.0625), sgd, torch.empty(2, 3, 16, 16), budget="published", variant=variant
    )
    expected = ("AP(k2s2)", f"16{kernel}(s2)", f"32{kernel}(s2)", f"32{kernel}", "10FC")
    assert rule.plan.parts[0].auxiliary_names == expected
    assert tuple(label_of(layer) for layer in rule.subnetworks[0].classifier) == expected


def test_presets_hold_at_any_width_and_size():
    rule = STDL(build_model("resnet18", width=0.0625), sgd, torch.empty(2, 3, 16, 16), budget="published")
    assert rows(rule.plan)[0] == ("4C3-4R", "AP(k2s2)-16R(s2)-32R(s2)-32R-10FC")


def test_no_published_row_for_other_models():
    with pytest.raises(ValueError, match=r'^budget "published" exists for resnet18, .*, this model is vgg11: pass'):
        STDL(build_model("vgg11", width=0.0625), sgd, torch.empty(2, 3, 16, 16), budget="published")
    model = build_model("vgg11", width=0.0625)
    del model.architecture
    with pytest.raises(ValueError, match=r"this model is none of them: pass a fraction such as 0\.5"):
        STDL(model, sgd, torch.empty(2, 3, 16, 16), budget="published")

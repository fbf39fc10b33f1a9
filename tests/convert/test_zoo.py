"""SpikingJelly's residual blocks of every kind, in networks of two blocks; `zoo.py` has whole models and a table."""

import functools
import importlib

import pytest
import torch
from spikingjelly.activation_based import layer
from torch import nn

from stdl_engine.convert import units_from

from . import zoo

BLOCKS = {
    "sew_resnet BasicBlock AND": {"cnf": "AND"},
    "sew_resnet BasicBlock IAND": {"cnf": "IAND"},
    "sew_resnet Bottleneck ADD": {"cnf": "ADD"},
    "sew_resnet Bottleneck IAND": {"cnf": "IAND"},
    "spiking_resnet Bottleneck": {},
    "spiking_resnet Bottleneck in groups": {"groups": 4, "width_per_group": 16},
}


def small(name: str) -> nn.Module:
    """The first two stages of a residual network, with one block each."""
    file, block = name.split()[:2]
    module = importlib.import_module(f"{zoo.MODELS}.{file}")
    kind = module.SEWResNet if file == "sew_resnet" else module.SpikingResNet
    options = {"num_classes": 10, "spiking_neuron": zoo.neuron.LIFNode} | BLOCKS[name]
    with torch.device("meta"):
        model = kind(getattr(module, block), [1, 1, 1, 1], **options)
    model.fc = layer.Linear(model.layer3[0].conv1.in_channels, 10)
    model.layer3, model.layer4 = nn.Sequential(), nn.Sequential()
    model = model.to_empty(device="cpu")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model


def entry(name: str) -> zoo.Entry:
    return zoo.Entry(functools.partial(small, name), budget=0.8)


@pytest.mark.parametrize("name", BLOCKS)
def test_converted_blocks_compute_the_same(name):
    neurons, fused, difference = zoo.same_after_converting(entry(name))
    assert fused == neurons >= 5
    assert difference < 1e-12


@pytest.mark.parametrize("name", BLOCKS)
def test_units_of_blocks_are_the_model_under_bptt(name):
    assert zoo.same_under_bptt(entry(name)) < 1e-9


@pytest.mark.parametrize("name", ["sew_resnet BasicBlock IAND", "spiking_resnet Bottleneck in groups"])
def test_every_rule_trains_them(name):
    assert zoo.trains(entry(name)) == ["SLTT", "ELL", "DECOLLE", "STDL(0.8)", "STDL(bytes)"]


@pytest.mark.parametrize("name", BLOCKS)
def test_rebuilt_blocks_are_of_the_same_kind(name):
    block = units_from(small(name))[2]
    again = block.rebuild(5, 2)
    assert type(again) is type(block)
    assert getattr(again, "cnf", None) == getattr(block, "cnf", None)
    assert again.conv2.groups == block.conv2.groups
    assert not {id(p) for p in again.parameters()} & {id(p) for p in block.parameters()}
    assert again(torch.randn(2, 5, 8, 8)).shape == (2, block.out_channels, 4, 4)

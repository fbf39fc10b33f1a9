"""Lean memory changes no number: weights, auxiliary networks and batch-norm statistics to the last bit, except by the
rounding of convolutions that read bits and of batch norm in one pass with a neuron.
"""

import pytest
import torch
from torch import nn

from stdl_engine.memory import layers, norms
from stdl_engine.models import MODELS
from stdl_engine.rules import RULES
from stdl_engine.units import ConvUnit, Head, ResidualBlock, SEWBlock

from .nets import adamw, assert_same, assert_same_results, batches, make, numbers, sgd, small, train, unchanged


def trained(rule: str, name: str, memory: str, optimizer=sgd, steps: int = 3, **options):
    data = batches(steps, name, frames=options.pop("frames", 0))
    inputs, weights = options.pop("layouts", (torch.contiguous_format, torch.contiguous_format))
    data = [(x.contiguous(memory_format=inputs) if x.ndim == 4 else x, y) for x, y in data]
    model = small(name).to(memory_format=weights)
    sample = data[0][0] if data[0][0].ndim == 4 else data[0][0][0]
    made = make(rule, model, sample, optimizer, memory=memory, **options)
    before = numbers(made)
    results = train(made, data)
    return before, numbers(made), results


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rule", RULES)
def test_after_three_steps(rule, name):
    before, lean, results = trained(rule, name, "lean")
    again, paper, plain_results = trained(rule, name, "paper")
    assert_same(before, again)
    assert_same(lean, paper)
    assert_same_results(results, plain_results)
    frozen = [key for key in before if rule == "decolle" and key.startswith("auxiliary.")]
    assert unchanged(before, lean) == frozen  # every weight and statistic took part


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize("rule", RULES)
def test_with_sequences(rule):
    _, lean, results = trained(rule, "resnet18", "lean", frames=2)
    _, paper, plain_results = trained(rule, "resnet18", "paper", frames=2)
    assert_same(lean, paper)
    assert_same_results(results, plain_results)


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize(("rule", "name"), [("stdl", "resnet18"), ("bptt", "vgg11")])
def test_with_adamw(rule, name):
    _, lean, _ = trained(rule, name, "lean", adamw)
    _, paper, _ = trained(rule, name, "paper", adamw)
    assert_same(lean, paper)


LAYOUTS = {
    "both": (torch.channels_last, torch.channels_last),
    "input": (torch.channels_last, torch.contiguous_format),
    "model": (torch.contiguous_format, torch.channels_last),
}


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize(("rule", "name"), [("bptt", "resnet18"), ("stdl", "vgg16"), ("stdl", "sew_resnet34")])
@pytest.mark.parametrize("layouts", LAYOUTS)
def test_with_channels_last(layouts, rule, name, monkeypatch):
    """As long as PyTorch does the convolutions and the batch norms: those have changed if this fails and the one below
    does not."""
    monkeypatch.setattr(layers, "takes", lambda *_: False)
    _, lean, _ = trained(rule, name, "lean", steps=2, layouts=LAYOUTS[layouts])
    _, paper, _ = trained(rule, name, "paper", steps=2, layouts=LAYOUTS[layouts])
    assert_same(lean, paper)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize("rule", ["bptt", "sltt", "stdl"])
def test_our_kernels_round_differently_and_no_more(rule, layout, monkeypatch):
    """What a step does to the weights, against the same step with PyTorch's convolutions and batch norms. Not element
    by element: a sum that rounds to the other side of the threshold is a spike more or less."""
    calls, tables, changes = [], [], []
    statistics = norms.norm_statistics
    monkeypatch.setattr(norms, "norm_statistics", lambda *a: tables.append(a) or statistics(*a))
    counted = layers.spike_conv_weight_gradient
    monkeypatch.setattr(layers, "spike_conv_weight_gradient", lambda *a: calls.append(a) or counted(*a))
    x, y = torch.randn(8, 3, 16, 16).contiguous(memory_format=layout), torch.arange(8) % 10
    for memory in ("lean", "paper"):
        torch.manual_seed(0)
        units = ConvUnit(3, 16), ResidualBlock(16, 32, stride=2), ResidualBlock(32, 32), ConvUnit(32, 64)
        model = nn.Sequential(*units, Head(64, 10)).to(memory_format=layout)
        made = make(rule, model, x, memory=memory, **({"budget": 0.7} if rule == "stdl" else {}))
        before = numbers(made)
        train(made, [(x, y)])
        changes.append({key: value - before[key] for key, value in numbers(made).items() if key.endswith("weight")})
    assert bool(calls) == (layout == torch.channels_last)  # convolutions read bits
    assert tables
    lean, paper = changes
    for key in lean:
        assert torch.cosine_similarity(lean[key].flatten(), paper[key].flatten(), dim=0) > 0.999, key


@pytest.mark.parametrize("rule", ["bptt", "sltt"])
def test_whatever_the_default_dtype(rule):
    """Our kernels write float32, also where new tensors are something else."""
    x, y = torch.randn(8, 3, 16, 16).contiguous(memory_format=torch.channels_last), torch.arange(8) % 10
    found = []
    for default in (torch.float32, torch.float64):
        torch.manual_seed(0)
        units = ConvUnit(3, 16), ResidualBlock(16, 32, stride=2), ResidualBlock(32, 32)
        model = nn.Sequential(*units, Head(32, 10)).to(memory_format=torch.channels_last)
        torch.set_default_dtype(default)
        try:
            made = make(rule, model, x)
            train(made, [(x, y)])
        finally:
            torch.set_default_dtype(torch.float32)
        found.append(numbers(made))
    assert_same(*found)


@pytest.mark.usefixtures("norms_by_pytorch")
def test_on_two_threads():
    """Maps of a size at which the kernels share their work out."""
    x, y, found = torch.randn(16, 3, 24, 24), torch.arange(16) % 10, []
    torch.set_num_threads(2)
    for memory in ("lean", "paper"):
        torch.manual_seed(0)
        model = nn.Sequential(ConvUnit(3, 16), ResidualBlock(16, 16), SEWBlock(16, 32, stride=2), Head(32, 10))
        rule = make("sltt", model, x, memory=memory)
        train(rule, [(x, y)])
        found.append(numbers(rule))
    torch.set_num_threads(1)
    assert_same(*found)


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize("rule", ["bptt", "stdl"])
def test_other_resets_and_surrogates(rule):
    options = {"reset": "hard", "reset_value": 0.1, "surrogate": "atan", "detach_reset": True, "threshold": 0.7}
    found = []
    for memory in ("lean", "paper"):
        data = batches(3)
        made = make(rule, small("resnet18", **options), data[0][0], memory=memory)
        train(made, data)
        found.append(numbers(made))
    assert_same(*found)

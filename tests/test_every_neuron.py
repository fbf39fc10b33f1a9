"""What holds for every neuron as a layer: compiled it computes the same, and its memory is known before the run."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from stdl_engine.neurons import NEURONS
from stdl_engine.planning.planner import measure, predict
from stdl_engine.rules import BPTT, STDL
from stdl_engine.units import ConvUnit, Head, ResidualBlock

from .rules.nets import sgd
from .stepping import there_and_back

every_neuron = pytest.mark.parametrize("neuron", NEURONS.values(), ids=NEURONS)


@every_neuron
@pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
def test_compiles_in_one_graph(online, neuron):
    xs, upstream, results = torch.randn(4, 4, 5) + 0.8, torch.randn(4, 4, 5), []
    torch._dynamo.reset()
    for compiled in (False, True):
        layer = neuron(0.5, online=online)
        call, leaf = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer, xs.clone()
        steps = [x.requires_grad_() for x in leaf.unbind()]
        outputs = there_and_back(call, steps, upstream, at_once=online)
        gradients = [t.grad for t in (*steps, *layer.parameters())]
        results.append([*(o.detach() for o in outputs), *(s.detach() for s in layer.states()), *gradients])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@every_neuron
@pytest.mark.parametrize(("rule", "options"), [(BPTT, {}), (STDL, {"budget": 0.9})], ids=["bptt", "stdl"])
@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_predicted_peak_is_the_measured_one(memory, rule, options, neuron):
    units = [ConvUnit(3, 8, neuron), ResidualBlock(8, 8, neuron), ResidualBlock(8, 16, neuron, stride=2)]
    shape, model = (2, 3, 8, 8), nn.Sequential(*units, Head(16, 10))
    predicted = predict(rule, model, sgd, shape, 3, memory=memory, **options)
    trained = rule(model, sgd, torch.randn(shape), memory=memory, **options)
    measured = measure(trained, torch.randn(shape), torch.randint(10, shape[:1]), 3)
    assert len(predicted.subnetworks) == (2 if rule is STDL else 1)
    assert replace(predicted, cost=None) == measured

"""Firing rates, dead and saturated neurons, and gradients, against what they are by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stdl_engine.analysis import rates
from stdl_engine.analysis.features import mean_maps, pooled, watch
from stdl_engine.models import build_model
from stdl_engine.neurons import FusedLIF
from stdl_engine.rules import BPTT, SLTT
from stdl_engine.units import ConvUnit, Head


class _Pass(nn.Module):
    """A unit that is a neuron layer and nothing else."""

    def __init__(self):
        super().__init__()
        self.neuron = FusedLIF(decay=0.0)

    def forward(self, x):
        return self.neuron(x)


def test_dead_saturated_and_rates():
    x = torch.tensor([[0.0, 2.0, 2.0, 0.0], [0.0, 2.0, 0.0, 0.0]]).reshape(2, 1, 2, 2)  # two samples, four neurons
    model = nn.Sequential(_Pass(), Head(1, 2))
    study = SimpleNamespace(
        network=lambda run: model,
        recipe=SimpleNamespace(steps=2),
        test_batches=lambda *_: [(x[:1], None), (x[1:], None)],
        frames=lambda x: [x, x],
    )
    (found,) = rates.firing(study, None)
    assert found == rates.Firing(rates=[3 / 8, 3 / 8], neurons=4, dead=2, saturated=1)


def test_watching_leaves_the_model_as_it_was():
    model = build_model("vgg11", width=0.05, in_channels=1)
    model[0].neuron.online = True
    before = {name: value.clone() for name, value in model.state_dict().items()}
    maps = mean_maps(model, [torch.rand(3, 1, 16, 16) for _ in range(2)])
    assert [tuple(m.shape[:2]) for m in maps] == [(3, unit.out_channels) for unit in model[:-1]]
    assert model.training
    assert model[0].neuron.online
    assert not model[1].neuron.online
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_mean_maps_are_means_over_time():
    model = nn.Sequential(ConvUnit(1, 3), Head(3, 2)).eval()
    frames, seen = [4 * torch.randn(5, 1, 6, 6) for _ in range(3)], []
    watch(model, frames, lambda number, t, x: seen.append(x.clone()))
    (maps,) = mean_maps(model, frames)
    assert torch.allclose(maps, torch.stack(seen).mean(0))
    assert 0 < maps.mean() < 1


def test_pooled_features():
    assert pooled(torch.ones(2, 8, 16, 16), 512).shape == (2, 512)
    x = torch.arange(4.0).reshape(1, 1, 2, 2)
    assert torch.equal(pooled(x, 1), torch.tensor([[1.5]]))
    assert torch.equal(pooled(x.flatten(1), 3), x.flatten(1))


@pytest.mark.parametrize("chunk", [1, "auto"])
@pytest.mark.parametrize("rule", [BPTT, SLTT])
def test_gradients_that_are_noted_are_those_of_a_step(rule, chunk):
    """Also where the rule is planned on fake tensors, whose gradients have no numbers."""
    model = build_model("vgg11", width=0.05, in_channels=1)
    x, y = torch.rand(4, 1, 16, 16), torch.arange(4)
    noted = {}
    rule(model, lambda p: rates._Norms(p, noted), x, chunk=chunk, steps=2).step(x, y, 2)
    learned = rule(model, lambda p: torch.optim.SGD(p, lr=1.0), x)
    before = [p.detach().clone() for p in model.parameters()]
    learned.step(x, y, 2)
    for old, p in zip(before, model.parameters(), strict=True):
        assert noted[p].item() == pytest.approx((old - p).norm().item(), rel=1e-4, abs=1e-6)

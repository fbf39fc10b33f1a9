"""SLTT's gradient by the formula dW = Σ_t ψ[t] · s_below[t]ᵀ, worked out by hand on two layers, in float64."""

import pytest
import torch
from torch import Tensor, nn

from stdl_engine import FusedLIF
from stdl_engine.planning.network import Network
from stdl_engine.planning.plan import plan_with_linear_heads
from stdl_engine.rules import SLTT, STDL
from stdl_engine.units import Head, Unit

from .nets import Recorder, gradients

DECAY, THRESHOLD, T, B, CLASSES = 0.7, 0.5, 4, 6, 3


class LinearUnit(Unit):
    """A fully connected spiking layer on vectors."""

    input_dims = 1

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.linear = nn.Linear(in_channels, out_channels, bias=False)
        self.neuron = FusedLIF(DECAY, THRESHOLD)

    def forward(self, x: Tensor) -> Tensor:
        return self.neuron(self.linear(x))

    def rebuild(self, in_channels: int, stride: int) -> "LinearUnit":
        return LinearUnit(in_channels, self.out_channels)


def membranes_and_spikes(currents: Tensor) -> tuple[Tensor, Tensor]:
    """m[t] and s[t] of [T, B, N] input."""
    u, ms, spikes = torch.zeros_like(currents[0]), [], []
    for x in currents:
        m = DECAY * u + x
        s = (m >= THRESHOLD).to(m.dtype)
        u = m - THRESHOLD * s
        ms.append(m)
        spikes.append(s)
    return torch.stack(ms), torch.stack(spikes)


def surrogate(m: Tensor) -> Tensor:
    return (1 - (m - THRESHOLD).abs()).clamp(min=0)


def error(logits: Tensor, y: Tensor) -> Tensor:
    """Of cross-entropy, averaged over the batch and divided by T."""
    return (logits.softmax(-1) - torch.eye(CLASSES, dtype=logits.dtype)[y]) / (B * T)


@pytest.fixture
def net():
    return nn.Sequential(LinearUnit(7, 8), LinearUnit(8, 5), Head(5, CLASSES)).double()


@pytest.fixture
def data():
    return torch.randn(T, B, 7, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1, 0])


@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_two_layers(net, data, memory):
    x, y = data
    w1, w2, w3, bias = (p.detach() for p in net.parameters())
    m1, s1 = membranes_and_spikes(torch.einsum("tbi,oi->tbo", x, w1))
    m2, s2 = membranes_and_spikes(torch.einsum("tbi,oi->tbo", s1, w2))
    delta = error(torch.einsum("tbi,oi->tbo", s2, w3) + bias, y)
    psi2 = torch.einsum("tbo,oi->tbi", delta, w3) * surrogate(m2)
    psi1 = torch.einsum("tbo,oi->tbi", psi2, w2) * surrogate(m1)
    right = {
        "model.0.linear.weight": torch.einsum("tbo,tbi->oi", psi1, x),
        "model.1.linear.weight": torch.einsum("tbo,tbi->oi", psi2, s1),
        "model.2.linear.weight": torch.einsum("tbo,tbi->oi", delta, s2),
        "model.2.linear.bias": torch.einsum("tbo->o", delta),
    }
    found = gradients(SLTT(net, Recorder, x[0], memory=memory), x, y, T)
    assert found.keys() == right.keys()
    for name in right:
        assert right[name].abs().max() > 1e-3
        torch.testing.assert_close(found[name], right[name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("memory", ["lean", "paper"])
def test_two_layers_apart(net, data, memory):
    """STDL: the first layer's error is that of its own classifier."""
    x, y = data
    plan = plan_with_linear_heads(Network(net, (7,), memory), [range(0, 1), range(1, 2)])
    rule = STDL(net, Recorder, x[0], memory=memory, plan=plan)
    w1, w2, w3, bias = (p.detach() for p in net.parameters())
    head = rule.subnetworks[0].classifier[0].linear
    m1, s1 = membranes_and_spikes(torch.einsum("tbi,oi->tbo", x, w1))
    m2, s2 = membranes_and_spikes(torch.einsum("tbi,oi->tbo", s1, w2))
    local = error(torch.einsum("tbi,oi->tbo", s1, head.weight.detach()) + head.bias.detach(), y)
    psi1 = torch.einsum("tbo,oi->tbi", local, head.weight.detach()) * surrogate(m1)
    delta = error(torch.einsum("tbi,oi->tbo", s2, w3) + bias, y)
    psi2 = torch.einsum("tbo,oi->tbi", delta, w3) * surrogate(m2)
    right = {
        "model.0.linear.weight": torch.einsum("tbo,tbi->oi", psi1, x),
        "model.1.linear.weight": torch.einsum("tbo,tbi->oi", psi2, s1),
        "model.2.linear.weight": torch.einsum("tbo,tbi->oi", delta, s2),
        "model.2.linear.bias": torch.einsum("tbo->o", delta),
        "auxiliary.0.0.linear.weight": torch.einsum("tbo,tbi->oi", local, s1),
        "auxiliary.0.0.linear.bias": torch.einsum("tbo->o", local),
    }
    found = gradients(rule, x, y, T)
    assert found.keys() == right.keys()
    for name in right:
        torch.testing.assert_close(found[name], right[name], rtol=1e-10, atol=1e-13)

"""BPTT's gradient against a network unrolled by hand in plain PyTorch, in float64."""

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, cross_entropy

from stdl_engine import FusedLIF
from stdl_engine.rules import BPTT
from stdl_engine.units import ConvUnit, Head, ResidualBlock, SEWBlock

from .nets import Recorder, gradients

DECAY, THRESHOLD = 0.6, 0.8


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, distance):
        ctx.save_for_backward(distance)
        return (distance >= 0).to(distance.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 - ctx.saved_tensors[0].abs()).clamp(min=0)


def fire(current: Tensor, u: Tensor | float) -> tuple[Tensor, Tensor]:
    """Spikes and the membrane after a soft reset, which is part of the gradient."""
    m = DECAY * u + current
    spikes = Spike.apply(m - THRESHOLD)
    return spikes, m - THRESHOLD * spikes


def conv_norm(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    x = conv2d(x, conv.weight, stride=conv.stride, padding=conv.padding)
    return batch_norm(x, None, None, norm.weight, norm.bias, training=True)


def unrolled_loss(model: nn.Sequential, frames: list[Tensor], y: Tensor) -> Tensor:
    stem, residual, sew, head = model
    loss, u = 0.0, [0.0] * 6
    for x in frames:
        x, u[0] = fire(conv_norm(x, stem.conv, stem.norm), u[0])
        h, u[1] = fire(conv_norm(x, residual.conv1, residual.norm1), u[1])
        x, u[2] = fire(conv_norm(h, residual.conv2, residual.norm2) + conv_norm(x, *residual.shortcut), u[2])
        h, u[3] = fire(conv_norm(x, sew.conv1, sew.norm1), u[3])
        h, u[4] = fire(conv_norm(h, sew.conv2, sew.norm2), u[4])
        s, u[5] = fire(conv_norm(x, sew.shortcut[0], sew.shortcut[1]), u[5])
        logits = (h + s).mean((2, 3)) @ head.linear.weight.T + head.linear.bias
        loss = loss + cross_entropy(logits, y) / len(frames)
    return loss


@pytest.mark.parametrize("memory", ["lean", "paper"])
@pytest.mark.parametrize("frames", [0, 4], ids=["static", "sequence"])
def test_gradient_is_the_unrolled_networks(frames, memory):
    neuron = functools.partial(FusedLIF, DECAY, THRESHOLD)
    model = nn.Sequential(
        ConvUnit(2, 4, neuron), ResidualBlock(4, 6, neuron, stride=2), SEWBlock(6, 5, neuron), Head(5, 3)
    ).double()
    x = torch.randn(4, 5, 2, 8, 8, dtype=torch.float64) if frames else torch.randn(5, 2, 8, 8, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 1, 0])
    rule = BPTT(model, Recorder, x[0] if frames else x, memory=memory)
    found = gradients(rule, x, y, 4)
    loss = unrolled_loss(model, list(x) if frames else [x] * 4, y)
    names = [f"model.{name}" for name, _ in model.named_parameters()]
    right = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    assert found.keys() == right.keys()
    for name in right:
        assert right[name].any(), name
        torch.testing.assert_close(found[name], right[name], rtol=1e-9, atol=1e-12, msg=name)
    result = rule.step(x, y, 4)
    torch.testing.assert_close(result.loss, loss.detach(), rtol=1e-12, atol=0)

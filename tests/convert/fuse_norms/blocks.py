"""Models with batch norm and neurons, and how the results of two of them are compared.

Two things are compared with a model whose norms are fused. The plain model differs by rounding. The same model with a
hook on every neuron has batch norm's output written by the same kernels, and must be equal: to the last bit, but for
the gradients where time steps have statistics in common.
"""

import copy

import torch
from torch import Tensor, nn

import stdl_engine
from stdl_engine import FusedLIF, fuse_norms, reset_states

from ..test_optimize import CHANNELS_LAST, assert_close


def see_inputs(model: nn.Module) -> nn.Module:
    """A hook on every neuron, which so has its input written."""
    for module in model.modules():
        if isinstance(module, stdl_engine.neurons.Neuron):
            module.register_forward_hook(lambda *_: None)
    return model


JOINED = {
    "alone": lambda y, x: y,
    "sum": lambda y, x: y + x,
    "reversed": lambda y, x: x + y,
    "over": lambda y, x: y.add_(x),
    "function": lambda y, x: torch.add(y, x),
}


class Block(nn.Module):
    """Two convolutions with norms and neurons, and a shortcut that is joined in one of several ways."""

    def __init__(self, make_neuron, join: str = "alone", make_norm=nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1, self.norm1, self.neuron1 = nn.Conv2d(8, 16, 3, padding=1), make_norm(16), make_neuron()
        self.conv2, self.norm2, self.neuron2 = nn.Conv2d(16, 16, 3, padding=1), make_norm(16), make_neuron()
        self.join = join
        self.to(memory_format=CHANNELS_LAST)

    def forward(self, x: Tensor) -> Tensor:
        """`x` is one time step, or [T, B, ...] where neurons take whole sequences."""
        steps = x.shape[:-3]
        x = self.norm1(self.conv1(x.reshape(-1, *x.shape[-3:]))).reshape(*steps, 16, *x.shape[-2:])
        spikes = self.neuron1(x)
        y = self.norm2(self.conv2(spikes.reshape(-1, *spikes.shape[-3:])))
        return self.neuron2(JOINED[self.join](y.reshape(spikes.shape), spikes))


class Read(nn.Module):
    """Does something with batch norm's output before a neuron reads it, or instead."""

    def __init__(self, read) -> None:
        super().__init__()
        self.norm, self.neuron, self.read = nn.BatchNorm2d(16), FusedLIF(step_mode="m"), read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.norm(x), self.neuron)


def shown(y: Tensor) -> Tensor:
    """In steps of two samples."""
    return y.unflatten(0, (3, 2))


def three_ways(model: nn.Module) -> list[nn.Module]:
    """The plain model, one with norms left to neurons, and one with their outputs written."""
    models = [model, copy.deepcopy(model), copy.deepcopy(model)]
    fuse_norms(models[1])
    fuse_norms(see_inputs(models[2]))
    return models


def results_of(model: nn.Module, x: Tensor, grad: Tensor, sequence: bool) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and the gradients of the input and all parameters."""
    reset_states(model)
    x = x.clone().requires_grad_()
    y = model(x) if sequence else torch.stack([model(frame) for frame in x])
    return y.detach(), list(torch.autograd.grad(y, [x, *model.parameters()], grad))


def assert_nearly_equal(first, second) -> None:
    """Of several time steps with statistics in common, sums of gradients are added up in another order."""
    assert torch.equal(first[0], second[0])
    assert_close(first, second, 2e-6)


def assert_same_buffers(first: nn.Module, second: nn.Module, exactly: bool) -> None:
    for one, other in zip(first.buffers(), second.buffers(), strict=True):
        assert torch.equal(one, other) if exactly else torch.allclose(one, other, rtol=1e-5, atol=1e-6)

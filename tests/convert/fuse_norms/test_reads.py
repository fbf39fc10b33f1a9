"""Whatever a forward does with batch norm's output finds the numbers that it would find in a plain model."""

import copy

import pytest
import torch
from spikingjelly.activation_based import layer, neuron
from torch import Tensor, nn

import stdl_engine
from stdl_engine import FusedLIF, fuse_norms, optimize

from ..test_optimize import CHANNELS_LAST, assert_close, frames
from .blocks import Read, assert_same_buffers, results_of, shown


class Cubed(torch.autograd.Function):
    """A function of somebody else's, which saves what it reads."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] ** 2 * grad


def changed(y: Tensor, neuron: nn.Module) -> Tensor:
    y.mul_(2)
    return neuron(shown(Cubed.apply(y)))


def slice_changed(y: Tensor, neuron: nn.Module) -> Tensor:
    y[1:3].add_(1)
    return neuron(shown(y))


def view_changed(y: Tensor, neuron: nn.Module) -> Tensor:
    shown(y).add_(torch.ones(3, 2, 16, 6, 6))
    return neuron(shown(y)) + y.sum()


def added_twice(y: Tensor, neuron: nn.Module) -> Tensor:
    y += 1
    y += torch.ones_like(y)
    y += torch.ones_like(y)
    return neuron(shown(y))


def hooked(y: Tensor, neuron: nn.Module) -> Tensor:
    y.register_hook(lambda grad: 3 * grad)
    return neuron(shown(y))


def detached(y: Tensor, neuron: nn.Module) -> Tensor:
    return neuron(shown(y.detach())) * y.square().mean()


READS = {
    "relu": lambda y, neuron: torch.relu(y),
    "relu before": lambda y, neuron: neuron(shown(y.relu_())),
    "twice": lambda y, neuron: neuron(shown(y)) * shown(y).sigmoid(),
    "twice, the other way": lambda y, neuron: shown(y).sigmoid() * neuron(shown(y)),
    "broadcast": lambda y, neuron: neuron(shown(y + torch.arange(6.0))),
    "scaled": lambda y, neuron: neuron(shown(torch.add(y, torch.ones_like(y), alpha=2))),
    "with itself": lambda y, neuron: neuron(shown(y + y)),
    "double": lambda y, neuron: (y + torch.ones(6, 16, 6, 6, dtype=torch.float64)).float(),
    "cat": lambda y, neuron: neuron(shown(torch.cat([y[:4], y[:2]]))),
    "transposed": lambda y, neuron: neuron(shown(y.transpose(2, 3))),
    "permuted": lambda y, neuron: neuron(y.view(3, 2, 16, 6, 6).flip(0)),
    "flattened": lambda y, neuron: neuron(shown(y).flatten(2)),
    "other view": lambda y, neuron: neuron(y.reshape(3, 2, 4, 4, 36)),
    "pooled": lambda y, neuron: nn.functional.max_pool2d(y, 2),
    "convolved": lambda y, neuron: nn.functional.conv2d(y, torch.ones(3, 16, 3, 3)),
    "a function": lambda y, neuron: Cubed.apply(y),
    "changed": changed,
    "slice changed": slice_changed,
    "view changed": view_changed,
    "added twice": added_twice,
    "hooked": hooked,
    "detached": detached,
    "output": lambda y, neuron: y,
    "indexed": lambda y, neuron: y[torch.tensor([1, 3])],
    "where": lambda y, neuron: torch.where(y > 0, y, -2 * y),
    "normed again": lambda y, neuron: nn.functional.batch_norm(y, None, None, training=True),
}


@pytest.mark.parametrize("name", READS)
def test_whatever_a_forward_does(name):
    """Twice in a row, so that states and statistics are compared, too."""
    plain = Read(READS[name])
    other = copy.deepcopy(plain)
    fuse_norms(other)
    x = torch.randn(6, 16, 6, 6).to(memory_format=CHANNELS_LAST).requires_grad_()
    results, upstream = [], None
    for model in (plain, other):
        for _ in range(2):
            y = model(x)
            upstream = torch.randn(y.shape) if upstream is None else upstream
            results.append((y, torch.autograd.grad(y, [x, *model.parameters()], upstream, retain_graph=True)))
    for before, after in zip(results[:2], results[2:], strict=True):
        assert before[0].shape == after[0].shape
        assert before[0].stride() == after[0].stride()
        assert before[0].requires_grad
        assert_close(before, after, 2e-5)
    assert_same_buffers(plain, other, exactly=False)


def residual_changed(y: Tensor, neuron: nn.Module) -> Tensor:
    residual = torch.ones(6, 16, 6, 6)
    y = y + residual
    residual.mul_(2)
    return neuron(shown(y))


def test_what_changes_before_it_is_read_is_an_error():
    model = Read(residual_changed)
    fuse_norms(model)
    x = torch.randn(6, 16, 6, 6).to(memory_format=CHANNELS_LAST)
    message = r"a tensor of shape \(6, 16, 6, 6\) that batch norm read, or that was added to its output, was changed"
    with pytest.raises(RuntimeError, match=message):
        model(x)
    with torch.no_grad():
        y = model.norm(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match=message):
            y.sum()


def test_spikes_that_are_added_may_change_afterwards():
    """Of spikes the bits are added, which stay."""

    def spikes_changed(y, neuron):
        spikes = FusedLIF(threshold=0.1)(y.detach().clone())
        spikes = stdl_engine.kernels.lif_step(y.detach().clone(), torch.zeros_like(y), 0.5, 0.1, pack=True)[0]
        y = y + spikes
        spikes.mul_(3)
        return neuron(shown(y))

    plain = Read(spikes_changed)
    other = copy.deepcopy(plain)
    fuse_norms(other)
    x = torch.randn(6, 16, 6, 6).to(memory_format=CHANNELS_LAST).requires_grad_()
    grad, results = torch.randn(3, 2, 16, 6, 6), []
    for model in (plain, other):
        y = model(x)
        results.append((y, torch.autograd.grad(y, [x, *model.parameters()], grad)))
    assert_close(*results, 1e-5)


def test_spikingjellys_container_and_a_shortcut_over_it(written):
    """Its output is a view of batch norm's, and `+=` changes that in place."""

    class Container(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
            self.container = layer.SeqToANNContainer(conv, nn.BatchNorm2d(16))
            self.node = neuron.LIFNode(step_mode="m")

        def forward(self, x):
            y = self.container(x)
            y += x
            return self.node(y)

    plain = Container().to(memory_format=CHANNELS_LAST)
    stdl_engine.convert_neurons(plain)
    other = copy.deepcopy(plain)
    optimize(other)
    x, grad = 2 * frames(3, 2, 16, 6, 6), torch.randn(3, 2, 16, 6, 6)
    assert_close(*(results_of(model, x, grad, True) for model in (plain, other)), 1e-5)
    assert written == []

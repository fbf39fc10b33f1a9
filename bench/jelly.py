"""The same ResNet-18 written with SpikingJelly's layers, and trained its way, by BPTT or SLTT.

Attributes have the same names as in our units, so that weights can be copied by `load_state_dict`. In step mode "s" the
network is run T times and batch norm sees one step at a time, as ours does. In step mode "m", SpikingJelly's usual
form, layers get [T, B, ...] and batch norm takes its statistics over all time steps: that is faster, and in training a
different network. Both are compared with ours, the second with batch norm's running statistics, with which it is the
same network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stdl_engine import FusedLIF, reset_states
from stdl_engine.memory.tracker import Tracker

from .peers import DECAY, THRESHOLD

FEWEST_CHANNELS = 8
"""The fewest input channels of a strided 1×1 convolution, which our rules never call and SpikingJelly's layers do."""


class ConvUnit(nn.Module):
    """conv - batch norm - neuron."""

    def __init__(self, in_channels: int, out_channels: int, make_neuron: Callable[[], nn.Module], mode: str) -> None:
        super().__init__()
        self.conv, self.norm = conv(in_channels, out_channels, 3, 1, mode), norm(out_channels, mode)
        self.neuron = make_neuron()

    def forward(self, x: Tensor) -> Tensor:
        return self.neuron(self.norm(self.conv(x)))


class ResidualBlock(nn.Module):
    """conv - norm - neuron - conv - norm, plus the shortcut, then a neuron."""

    def __init__(self, width: int, out: int, stride: int, make_neuron: Callable[[], nn.Module], mode: str) -> None:
        super().__init__()
        self.conv1, self.norm1, self.neuron1 = conv(width, out, 3, stride, mode), norm(out, mode), make_neuron()
        self.conv2, self.norm2 = conv(out, out, 3, 1, mode), norm(out, mode)
        self.shortcut = None
        if stride != 1 or width != out:
            self.shortcut = nn.Sequential(conv(width, out, 1, stride, mode), norm(out, mode))
        self.neuron2 = make_neuron()
        self.halves = {  # not modules of the block, so that each layer has only one name
            "first": nn.Sequential(self.conv1, self.norm1, self.neuron1),
            "second": nn.Sequential(self.conv2, self.norm2),
        }

    def forward(self, x: Tensor) -> Tensor:
        current = self.halves["second"](self.halves["first"](x))
        return self.neuron2(current + (self.shortcut(x) if self.shortcut else x))


class Head(nn.Module):
    """Global average pool and a linear classifier."""

    def __init__(self, in_features: int, num_classes: int, mode: str) -> None:
        from spikingjelly.activation_based import layer

        super().__init__()
        self.linear = layer.Linear(in_features, num_classes, step_mode=mode)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((-2, -1)))


def conv(in_channels: int, out_channels: int, kernel: int, stride: int, mode: str) -> nn.Module:
    from spikingjelly.activation_based import layer

    return layer.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False, step_mode=mode)


def norm(channels: int, mode: str) -> nn.Module:
    from spikingjelly.activation_based import layer

    return layer.BatchNorm2d(channels, step_mode=mode)


def lif(mode: str, online: bool = False) -> nn.Module:
    """LIFNode, or SLTTLIFNode if online, with our equation and surrogate."""
    from spikingjelly.activation_based import neuron, surrogate

    return (neuron.SLTTLIFNode if online else neuron.LIFNode)(
        tau=1 / (1 - DECAY),
        decay_input=False,
        v_threshold=THRESHOLD,
        v_reset=None,
        surrogate_function=surrogate.PiecewiseQuadratic(alpha=1.0),
        detach_reset=online,
        step_mode=mode,
    )


def resnet18(mode: str, *, online: bool = False, width: float = 1.0, num_classes: int = 10) -> nn.Sequential:
    """64C3, then stages of 64, 128, 256 and 512 channels with two blocks each, all times `width`."""

    def make_neuron() -> nn.Module:
        return lif(mode, online)

    channels = [max(1, round(stage * width)) for stage in (64, 128, 256, 512)]
    if channels[0] < FEWEST_CHANNELS:
        raise ValueError(
            f"width {width:g} gives SpikingJelly's network {channels[0]} channels: below {FEWEST_CHANNELS}, PyTorch's "
            "weight gradient of its strided 1×1 convolutions corrupts memory on some CPUs (docs/cpus.md). Take width "
            f"{FEWEST_CHANNELS / 64:g} or more."
        )
    units: list[nn.Module] = [ConvUnit(3, channels[0], make_neuron, mode)]
    before = channels[0]
    for number, out in enumerate(channels):
        for place in range(2):
            units.append(ResidualBlock(before, out, 2 if number and not place else 1, make_neuron, mode))
            before = out
    return nn.Sequential(*units, Head(before, num_classes, mode))


def logits(model: nn.Module, x: Tensor, T: int, mode: str) -> Tensor:
    """The logits of every step, [T, B, classes], from the reset state; one batch is shown T times."""
    from spikingjelly.activation_based import functional

    functional.reset_net(model)
    if mode == "m":
        return model(x.unsqueeze(0).expand(T, *x.shape))
    return torch.stack([model(x) for _ in range(T)])


def loss_of(steps: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each time step's logits, averaged over time steps."""
    return sum(cross_entropy(logits, y) for logits in steps) / len(steps)


class Trainer:
    """One training step with SpikingJelly's own tools: BPTT in either step mode, or SLTT."""

    def __init__(self, model: nn.Module, optimizer: Callable, mode: str, *, online: bool = False) -> None:
        self.model, self.optimizer, self.mode, self.online = model, optimizer(model.parameters()), mode, online

    def step(self, x: Tensor, y: Tensor, T: int) -> Tensor:
        """Train on one batch; returns the mean logits."""
        from spikingjelly.activation_based import functional

        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        if self.online:
            functional.reset_net(self.model)
            total = 0
            for _ in range(T):
                frame = self.model(x)
                (cross_entropy(frame, y) / T).backward()
                total = total + frame.detach()
            result = total / T
        else:
            steps = logits(self.model, x, T, self.mode)
            loss_of(steps, y).backward()
            result = steps.detach().mean(0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        functional.reset_net(self.model)
        return result


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of SpikingJelly's ways to train a network."""

    mode: str
    """The step mode, "s" or "m"."""
    online: bool = False
    """SLTT's gradient instead of BPTT's."""
    optimized: str = ""
    """With its memory optimiser: the share of the units at level 1, or the number of a higher level."""


VARIANTS = {
    "SpikingJelly BPTT": Variant(mode="m"),
    "SpikingJelly BPTT, step by step": Variant(mode="s"),
    "SpikingJelly memopt, level 1, speed": Variant(mode="m", optimized="speed"),
    "SpikingJelly memopt, level 1, balanced": Variant(mode="m", optimized="balanced"),
    "SpikingJelly memopt, level 1, memory": Variant(mode="m", optimized="memory"),
    "SpikingJelly memopt, level 2": Variant(mode="m", optimized="2"),
    "SpikingJelly memopt, level 4": Variant(mode="m", optimized="4"),
    "SpikingJelly SLTT": Variant(mode="s", online=True),
}


def peak_bytes(trainer: Trainer, x: Tensor, y: Tensor, T: int) -> int:
    """Peak memory of a training step on these tensors, fake or real, after the optimizer has its state."""
    trainer.step(x, y, 1)
    states = [t for state in trainer.optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
    tracker = Tracker()
    tracker.follow([x, y, *trainer.model.parameters(), *trainer.model.buffers(), *states])
    with tracker:
        trainer.step(x, y, T)
    return tracker.peak


def settle(model: nn.Module, x: Tensor, T: int) -> None:
    """Set batch norm's running statistics to those of this batch, so that the network fires in evaluation mode too."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # the plain mean of all batches seen
    reset_states(model)
    with torch.no_grad():
        for _ in range(T):
            model.train()(x)
    reset_states(model)
    for module in norms:
        module.momentum = 0.1


def difference(
    ours: nn.Sequential, theirs: nn.Sequential, x: Tensor, y: Tensor, T: int, mode: str, *, online: bool = False
) -> str:
    """How SpikingJelly's network differs from ours in logits or gradients, with the weights copied; empty if it does
    not. The check is in float64, where rounding hardly ever decides whether a neuron fires. `online` compares SLTT's
    gradient."""
    settle(ours, x, T)
    theirs.load_state_dict(ours.state_dict())
    for neuron in (module for module in ours.modules() if isinstance(module, FusedLIF)):
        neuron.online = online
    results = []
    for model, its_mode in ((ours, "s"), (theirs, mode)):
        model.double().train(mode == "s")
        reset_states(model)
        results.append(_logits_and_gradients(model, x.double(), y, T, its_mode, online))
    reset_states(ours)
    (our_logits, our_grads), (their_logits, their_grads) = results
    error = (our_logits - their_logits).abs().max().item()
    if not error <= 1e-8:
        return f"differs: logits by {error:.1e}"
    for (name, _), grad, other in zip(ours.named_parameters(), our_grads, their_grads, strict=True):
        error = (grad - other).abs().max().item()
        if not error <= 1e-8 * max(1.0, grad.abs().max().item()):
            return f"differs: the gradient of {name} by {error:.1e}"
    return ""


def _logits_and_gradients(
    model: nn.Module, x: Tensor, y: Tensor, T: int, mode: str, online: bool
) -> tuple[Tensor, list[Tensor]]:
    from spikingjelly.activation_based import functional

    parameters = list(model.parameters())
    if not online:
        steps = logits(model, x, T, mode)
        return steps.detach(), list(torch.autograd.grad(loss_of(steps, y), parameters))
    functional.reset_net(model)
    steps, total = [], [torch.zeros_like(parameter) for parameter in parameters]
    for _ in range(T):
        frame = model(x)
        grads = torch.autograd.grad(cross_entropy(frame, y) / T, parameters)
        total = [so_far + grad for so_far, grad in zip(total, grads, strict=True)]
        steps.append(frame.detach())
    return torch.stack(steps), total

"""Units: the smallest indivisible parts of a network. A model is an `nn.Sequential` of units that ends in a head.

Any `nn.Module` joins a model as a unit if it keeps the protocol of `Unit`: it says how many channels it gives, how
far it shrinks the image, and can build a fresh copy of itself for another input. docs/units.md shows a block of one's
own joining.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.modules.utils import _pair

from .kernels.norm_lif import Pending
from .kernels.small_form import is_spikes, mark_counts
from .memory.layers import SpikeConv2d
from .memory.pieces import (
    Carried,
    Piece,
    add_over,
    convolved,
    dense,
    fire,
    fire_dense,
    fire_over,
    normed,
    output_of,
    plus,
)
from .neurons import FusedLIF, hooks_of, reset_states

Model = TypeVar("Model", bound=nn.Module)
MakeNeuron = Callable[[], nn.Module]
"""Builds one neuron layer, for example `functools.partial(FusedLIF, decay=0.2)`."""


class Unit(nn.Module):
    """What the engine asks of a unit.

    Attributes:
        in_channels, out_channels: of the maps that go in and come out.
        stride: how much smaller the output is than the input, in each direction.
        max_stride: the largest stride `rebuild` can take; what an auxiliary network needs beyond it is average-pooled
            first.
        input_dims: dimensions of one sample; 3 for images (C, H, W), 1 for vectors.
        label: the unit in the paper's notation, for example "128R(s2)".
    """

    in_channels: int
    out_channels: int
    stride: int = 1
    max_stride: int = 1
    input_dims: int = 3

    @property
    def label(self) -> str:
        return f"{self.out_channels}{type(self).__name__}{_stride_label(self.stride)}"

    def rebuild(self, in_channels: int, stride: int) -> Unit:
        """A fresh unit of the same kind and output channels, with its own parameters, for this input."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method rebuild(in_channels, stride) to be in auxiliary networks."
        )


class ConvUnit(Unit):
    """conv - batch norm - neuron, then average pooling if the network has one here: "64C3", "64C3-AP(k2s2)"."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        make_neuron: MakeNeuron = FusedLIF,
        *,
        kernel: int = 3,
        pool: nn.AvgPool2d | None = None,
        conv_stride: int = 1,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.make_neuron, self.kernel = (
            in_channels,
            out_channels,
            make_neuron,
            kernel,
        )
        self.conv_stride = conv_stride
        self.stride = conv_stride * (_pair(pool.stride)[0] if pool else 1)
        self.conv = conv(in_channels, out_channels, kernel, conv_stride)
        self.norm = nn.BatchNorm2d(out_channels)
        self.neuron = after_norm(make_neuron)
        self.pool = pool

    @property
    def label(self) -> str:
        label = f"{self.out_channels}C{self.kernel}{_stride_label(self.conv_stride)}"
        return f"{label}-{pool_label(self.pool)}" if self.pool else label

    def forward(self, x: Tensor) -> Tensor:
        return dense(self.run(x))

    def pieces(self) -> tuple[Piece, ...]:
        last = None if self.pool else self.neuron
        return (Piece(self.run, tuple(self.children()), reads_carried=True, ends_in=last),)

    def run(self, x: Tensor | Carried) -> Tensor | Carried:
        current = normed(self.norm, self.neuron, convolved(self.conv, x))
        return self.pool(fire_dense(self.neuron, current)) if self.pool else fire(self.neuron, current)

    def rebuild(self, in_channels: int, stride: int) -> ConvUnit:
        return ConvUnit(in_channels, self.out_channels, self.make_neuron, kernel=self.kernel, conv_stride=stride)


class Shortcut(nn.Sequential):
    """conv - norm, and a neuron where spikes are added."""

    def forward(self, x: Tensor | Carried) -> Tensor:
        conv, norm, *neuron = self
        if not neuron:
            return output_of(norm, convolved(conv, x))
        return fire_dense(neuron[0], normed(norm, neuron[0], convolved(conv, x)))


class ResidualBlock(Unit):
    """conv - norm - neuron - conv - norm, plus the shortcut, then a neuron: "128R(s2)".

    The shortcut is the input itself, or 1×1 conv - norm where channels or resolution change.
    """

    max_stride = 2
    letter = "R"
    memory_form: str | None = None

    def __init__(
        self, in_channels: int, out_channels: int, make_neuron: MakeNeuron = FusedLIF, *, stride: int = 1
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.stride, self.make_neuron = (
            in_channels,
            out_channels,
            stride,
            make_neuron,
        )
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.neuron1 = after_norm(make_neuron)
        self.conv2 = conv(out_channels, out_channels, 3)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = self.build_shortcut() if stride != 1 or in_channels != out_channels else None
        self.neuron2 = after_norm(make_neuron)

    def build_shortcut(self) -> nn.Sequential:
        """The path beside the two convs where the input cannot be added as it is."""
        return Shortcut(conv(self.in_channels, self.out_channels, 1, self.stride), nn.BatchNorm2d(self.out_channels))

    @property
    def label(self) -> str:
        return f"{self.out_channels}{self.letter}{_stride_label(self.stride)}"

    def forward(self, x: Tensor) -> Tensor:
        return dense(self.second_half(self.first_half(x), x))

    def pieces(self) -> tuple[Piece, ...]:
        first = self.conv1, self.norm1, self.neuron1
        names = "conv1", "norm1", "neuron1"  # a layer that has another name too is in both pieces
        second = tuple(layer for name, layer in self._modules.items() if layer is not None and name not in names)
        return (
            Piece(self.first_half, first, reads_carried=True, ends_in=self.neuron1),
            Piece(self.second_half, second, takes=(1, 0), reads_carried=True, ends_in=self.last_neuron),
        )

    @property
    def last_neuron(self) -> nn.Module | None:
        """The neuron layer whose spikes are the block's output, if there is one."""
        return self.neuron2

    def first_half(self, x: Tensor | Carried) -> Tensor | Carried:
        return fire(self.neuron1, normed(self.norm1, self.neuron1, convolved(self.conv1, x)))

    def second_half(self, spikes: Tensor | Carried, x: Tensor | Carried) -> Tensor | Carried:
        current = normed(self.norm2, self.neuron2, convolved(self.conv2, spikes))
        shortcut = self.shortcut(x) if self.shortcut else x
        total = plus(current, shortcut) if isinstance(current, Pending) else self.add(current, shortcut)
        return fire(self.neuron2, total)

    def add(self, current: Tensor, shortcut: Tensor | Carried) -> Tensor:
        """Their sum; with memory "lean" over `current`, which batch norm does not need for its backward."""
        return add_over(current, shortcut) if self.memory_form == "lean" else current + dense(shortcut)

    def add_spikes(self, spikes: Tensor, shortcut: Tensor) -> Tensor:
        """The sum of spikes and those of the shortcut; with memory "lean" kept as the small integers that it is."""
        counted = self.memory_form == "lean" and is_spikes(spikes) and is_spikes(shortcut)
        total = self.add(spikes, shortcut)
        return mark_counts(total) if counted else total

    def rebuild(self, in_channels: int, stride: int) -> Self:
        return type(self)(in_channels, self.out_channels, self.make_neuron, stride=stride)


class SEWBlock(ResidualBlock):
    """Spike-element-wise residual block: two conv - norm - neuron, then ADD the shortcut's spikes: "128SEWR(s2)".

    The output is a sum of spikes: small integers, not binary. The shortcut is the input itself, or 1×1 conv - norm -
        neuron.
    """

    letter = "SEWR"
    last_neuron = None  # the output is a sum

    def build_shortcut(self) -> nn.Sequential:
        return Shortcut(*super().build_shortcut(), after_norm(self.make_neuron))

    def second_half(self, spikes: Tensor | Carried, x: Tensor | Carried) -> Tensor:
        current = normed(self.norm2, self.neuron2, convolved(self.conv2, spikes))
        spikes = fire_over(self.neuron2, current)
        return self.add_spikes(spikes, self.shortcut(x) if self.shortcut else dense(x))


class Head(nn.Module):
    """Global average pool and a linear classifier: "10FC". The last part of every model and of most auxiliary
    networks.
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.linear = nn.Linear(in_features, num_classes)

    @property
    def label(self) -> str:
        return f"{self.num_classes}FC"

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)) if x.ndim == 4 else x)


class PooledHead(Head):
    """Local learning's classifier: average-pool until at most 1024 features are left, halving height then width, and
    a linear layer.
    """

    def __init__(self, in_shape: tuple[int, ...], num_classes: int, max_features: int = 1024) -> None:
        channels, *size = in_shape
        axis = 0
        while size and channels * size[0] * size[1] > max_features and max(size) > 1:
            size[axis] = max(1, size[axis] // 2)
            axis = 1 - axis
        super().__init__(channels * (size[0] * size[1] if size else 1), num_classes)
        self.size = (size[0], size[1]) if size else ()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(nn.functional.adaptive_avg_pool2d(x, self.size).flatten(1) if self.size else x)


def conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution as batch norm wants it: same size at stride 1, no bias."""
    return SpikeConv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)


def after_norm(make_neuron: MakeNeuron) -> nn.Module:
    """A neuron layer behind batch norm. Nothing else reads its input, so lean memory may write the spikes over it."""
    neuron: Any = make_neuron()
    neuron.overwrite = True
    return neuron


def pool_label(pool: nn.AvgPool2d | nn.MaxPool2d) -> str:
    """An average pool in the paper's notation: "AP(k3s2p1)"."""
    padding = f"p{pool.padding}" if pool.padding else ""
    return f"AP(k{pool.kernel_size}s{pool.stride}{padding})"


def label_of(module: nn.Module) -> str:
    """The name of a unit, pool or head in the paper's notation."""
    return pool_label(module) if isinstance(module, nn.AvgPool2d) else getattr(module, "label", type(module).__name__)


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """A context in which new modules hold no numbers, only shapes (also inside FakeTensorMode)."""
    with unset_fake_temporarily(), torch.device("meta"):
        yield


def copy_of_shapes(model: Model) -> Model:
    """The model without its numbers: every tensor on the meta device, and no states."""
    with shapes_only():
        tensors = [*model.parameters(), *model.buffers()]
        memo = {id(t): torch.empty(t.shape, dtype=t.dtype) for t in tensors}
        memo |= {id(p): nn.Parameter(memo[id(p)], requires_grad=p.requires_grad) for p in model.parameters()}
        duplicate = copy.deepcopy(model, memo)
    reset_states(duplicate)
    forget_hooks(duplicate)
    return duplicate


def forget_hooks(model: nn.Module) -> None:
    """Remove the hooks of a copy: their owner wants to see the model at work, not the planner."""
    for module in model.modules():
        for hooks in hooks_of(module):
            hooks.clear()


def output_shape(module: nn.Module, in_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of one sample after `module` (which must be on the meta device), without computing anything."""
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    with shapes_only(), torch.no_grad():
        shape = tuple(module(torch.empty((2, *in_shape), dtype=dtype)).shape[1:])
    reset_states(module)
    return shape


def _stride_label(stride: int) -> str:
    return f"(s{stride})" if stride != 1 else ""

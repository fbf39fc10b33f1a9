"""Any chain of layers as a sequence of units that ends in a head, so that every learning rule can train it.

A unit ends with its neuron and the pooling and dropout after it; a layer that flattens maps begins the next unit. The
last layer with weights is the head. The units hold the model's own layers: training them trains the model.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ..kernels.norm_lif import Pending
from ..kernels.small_form import is_spikes, mark_counts
from ..memory.layers import SpikeConv2d
from ..memory.pieces import fire_dense, normed
from ..neurons import Neuron
from ..neurons.foreign import FusedNode, check_module, convert_neurons, unchanged_on_error, unit_instead_of
from ..units import Head, Unit, pool_label
from .blocks import block_unit, is_block
from .models import layers_of

WEIGHTS = (nn.Conv2d, nn.Linear)
NORMS = (nn.BatchNorm2d, nn.BatchNorm1d, nn.GroupNorm)
POOLS = (nn.AvgPool2d, nn.MaxPool2d)
FLATTENING = (nn.Flatten, nn.AdaptiveAvgPool2d)
OTHERS = (nn.Dropout, nn.Dropout2d, nn.Identity, nn.ReLU)


class Chain(Unit):
    """Layers in sequence up to a neuron, and the pooling after it: "64C3-MP(k2s2)", "4096L"."""

    memory_form: str | None = None

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(_own(layer) for layer in layers))
        weights = [layer for layer in layers if isinstance(layer, WEIGHTS)]
        first, last = weights[0], weights[-1]
        self.in_channels = first.in_channels if isinstance(first, nn.Conv2d) else first.in_features
        if isinstance(layers[0], nn.Flatten):
            # Maps of any number of channels, as long as height and width fit.
            self.in_channels = None  # type: ignore[assignment]  # other units have a number
        self.out_channels = last.out_channels if isinstance(last, nn.Conv2d) else last.out_features
        self.input_dims = 3 if isinstance(first, nn.Conv2d) or isinstance(layers[0], FLATTENING) else 1
        strided = [layer for layer in layers if isinstance(layer, (nn.Conv2d, *POOLS))]
        self.stride = math.prod(_first(layer.stride) for layer in strided)
        for before, layer in itertools.pairwise(layers):
            if isinstance(layer, Neuron) and isinstance(before, NORMS):
                layer.overwrite = True  # nothing else reads batch norm's output

    @property
    def label(self) -> str:
        return "-".join(name for layer in self.layers if (name := _label(layer)))

    def forward(self, x: Tensor) -> Tensor:
        layers, current = list(self.layers), x
        for layer, after in itertools.zip_longest(layers, layers[1:]):
            if isinstance(layer, NORMS):
                current = normed(layer, after, current)  # type: ignore[assignment]  # or what only `after` takes
            elif isinstance(current, Pending):
                current = fire_dense(layer, current)
            else:
                # The maximum of spikes is a spike, and that of sums of spikes is such a sum, so it may be kept in
                # their small form.
                counts = self.memory_form == "lean" and isinstance(layer, nn.MaxPool2d) and is_spikes(current)
                current = mark_counts(layer(current)) if counts else layer(current)
        return current

    def rebuild(self, in_channels: int, stride: int) -> Chain:
        """A fresh chain of layers of the same kinds; apart from the stride, convolutions keep the map's size."""
        fresh: list[nn.Module] = []
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                fresh.append(_fresh_conv(layer, in_channels, stride))
                in_channels, stride = layer.out_channels, 1
            elif isinstance(layer, nn.Linear):
                if not isinstance(next((m for m in reversed(fresh) if isinstance(m, WEIGHTS)), None), nn.Linear):
                    fresh.append(ToVector())
                fresh.append(nn.Linear(in_channels, layer.out_features, layer.bias is not None))
                in_channels = layer.out_features
            elif isinstance(layer, NORMS):
                fresh.append(_fresh_norm(layer))
            elif isinstance(layer, Neuron):
                fresh.append(_copy_of(layer))
            elif isinstance(layer, OTHERS):
                fresh.append(copy.deepcopy(layer))
        return Chain(fresh)


class ChainHead(Head):
    """The last layers of a model, which give its logits: "10FC"."""

    def __init__(self, layers: list[nn.Module]) -> None:
        nn.Module.__init__(self)
        self.layers = nn.Sequential(*(_own(layer) for layer in layers))
        last = next(layer for layer in reversed(layers) if isinstance(layer, nn.Linear | Head))
        self.num_classes = last.out_features if isinstance(last, nn.Linear) else last.num_classes
        for layer in layers:
            self.num_classes //= getattr(layer, "voting_size", 1)  # the votes per class of SpikingJelly's VotingLayer

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class DropoutOverTime(Neuron):
    """SpikingJelly's dropout, which keeps one mask for a whole sequence.

    The mask is held as a neuron holds its state: a rule resets both at the end of a sequence and counts both in plans.
    """

    def __init__(self, dropout: nn.Module) -> None:
        super().__init__(online=False, step_mode="s", backend="auto")
        self.dropout: Any = dropout

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if self.membrane is None:
            mask = self.dropout.create_mask(x if self.samples is None else self.first_of(x))
            self.membrane = self.dropout.mask if mask is None else mask  # versions before 2.0 do not return it
        return (x.unflatten(0, (-1, len(self.membrane))) * self.membrane).flatten(0, 1)

    def __getstate__(self) -> dict:
        """For copies: leave out the mask that SpikingJelly's layer holds if the model's own forward has run."""
        dropout = copy.copy(self.dropout)
        dropout._memories = dict(dropout._memories_rv)
        state = super().__getstate__()
        return state | {"_modules": state["_modules"] | {"dropout": dropout}}


class ToVector(nn.Module):
    """Turns each map into its mean; vectors stay as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.ndim == 4 else x


def units_from(model: nn.Module, *, backend: str = "auto") -> nn.Sequential:
    """A model as a sequence of units, for `STDL(units_from(model), ...)` and all other rules.

    Takes an `nn.Sequential` (nested ones too) of convolutions, norms, neurons, pools, dropout, flattening and linear
    layers, and SpikingJelly's `sew_resnet*`, `spiking_resnet*`, `spiking_vgg*` and the networks of its
    `parametric_lif_net`, all in step mode "s". The model's neurons are made fused in place, with kernels of this
    backend. The units compute what the model does and hold its own layers, so training them trains the model. A model
    that cannot be cut is left as it was, and the error names the layer and the reason.

    Example:
        >>> model = sew_resnet18(cnf="ADD", spiking_neuron=neuron.LIFNode, num_classes=10)
        >>> rule = STDL(units_from(model), optimizer, sample=x, budget=0.5)
    """
    check_module(model, "units_from")
    for name, module in model.named_modules():
        if instead := unit_instead_of(module):
            raise _refusal(name, module, instead)
    with unchanged_on_error(model):
        convert_neurons(model, backend=backend, strict=True)
        groups = _groups(_layers(model, ""))
        if len(groups) < 2:
            raise _refusal("", model, "it has no layer with a neuron before its classifier")
        return nn.Sequential(*(_unit(group) for group in groups[:-1]), _head(groups[-1]))


Named = tuple[str, nn.Module]
Group = list[Named]


def _layers(module: nn.Module, name: str) -> Iterator[Named]:
    """The layers of a model in order, each with its path."""
    parts = layers_of(module)
    if parts is None:
        if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
            yield name, module
            return
        parts = list(module._modules.items())  # not named_children, which lists a layer that is used twice only once
    for child, part in parts:
        yield from _layers(part, f"{name}.{child}" if name else child)


def _groups(layers: Iterator[Named]) -> list[Group]:
    """The layers of each unit, followed by those of the head."""
    groups: list[Group] = [[]]
    seen: dict[int, str] = {}
    has_fired = False
    for name, layer in layers:
        _check_layer(name, layer)
        learns = isinstance(layer, Neuron) or next(layer.parameters(), None) is not None
        if learns and seen.setdefault(id(layer), name) != name:
            raise _refusal(name, layer, f"it is {seen[id(layer)]} again, and subnetworks cannot share a layer")
        if _is_unit(layer):
            groups += [[(name, layer)], []]
            has_fired = False
            continue
        if has_fired and isinstance(layer, (*WEIGHTS, *FLATTENING, Head)):
            groups.append([])
            has_fired = False
        groups[-1].append((name, layer))
        has_fired = has_fired or isinstance(layer, Neuron)
    return [group for group in groups if group]


def _check_layer(name: str, layer: nn.Module) -> None:
    """Reject layers that no unit can be made of."""
    known = (*WEIGHTS, *NORMS, *POOLS, *FLATTENING, *OTHERS, Neuron, Head)
    if not (isinstance(layer, known) or _is_unit(layer) or _is_dropout(layer) or hasattr(layer, "voting_size")):
        raise _refusal(name, layer, _why_unknown(layer))
    if any(getattr(part, "step_mode", "s") != "s" for part in layer.modules()):
        single = _its_name(layer).removeprefix("MultiStep")  # of SpikingJelly before 0.0.0.0.13
        remedy = f"put {single} in its place" if single != _its_name(layer) else 'call set_step_mode(model, "s")'
        raise _refusal(name, layer, f"it takes whole sequences; rules run one step at a time, {remedy} first")


def _why_unknown(layer: nn.Module) -> str:
    for wrapped in ("module", "_orig_mod"):  # DataParallel and its kin, torch.compile
        if isinstance(getattr(layer, wrapped, None), nn.Module):
            return f"it wraps a model, which learning rules run themselves; pass model.{wrapped}"
    if next(layer.children(), None) is not None:
        return (
            "it runs its layers by a forward of its own; pass an nn.Sequential of them, or make it a Unit "
            "(docs/units.md)"
        )
    return (
        "units are made of 2d convolutions, linear layers, norms, fused neurons, pools, dropout and flattening; make "
        "it part of a Unit (docs/units.md)"
    )


def _is_unit(layer: nn.Module) -> bool:
    return is_block(layer) or hasattr(layer, "rebuild")


def _is_dropout(layer: nn.Module) -> bool:
    """SpikingJelly's dropout, whose mask lasts from one reset to the next."""
    return hasattr(layer, "create_mask") and hasattr(layer, "mask")


def _unit(group: Group) -> nn.Module:
    name, layer = group[0]
    if is_block(layer):
        block: Any = layer
        return block_unit(block, functools.partial(_copy_of, block.sn1))
    if _is_unit(layer):
        return layer
    layers = [layer for _, layer in group]
    if not any(isinstance(layer, WEIGHTS) for layer in layers):
        raise _refusal(name, layer, "there are no weights between it and the next unit; make it part of a Unit")
    return Chain(layers)


def _head(group: Group) -> Head:
    name, last = group[-1]
    if len(group) == 1 and isinstance(last, Head):
        return last
    layers = [layer for _, layer in group]
    if not any(isinstance(layer, nn.Linear | Head) for layer in layers):
        raise _refusal(name, last, "the model must end in a linear classifier, and here it ends")
    return ChainHead(layers)


def _own(layer: nn.Module) -> nn.Module:
    return DropoutOverTime(layer) if _is_dropout(layer) else layer


def _copy_of(neuron: Neuron) -> Neuron:
    """Another neuron with the same settings, without the state."""
    stateless = copy.copy(neuron)
    stateless.reset()
    # in a plan, deepcopy would give a fake tensor another fake mode
    memo = {id(p): nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for p in neuron.parameters()}
    return copy.deepcopy(stateless, memo)


def _fresh_conv(layer: nn.Conv2d, in_channels: int, stride: int) -> SpikeConv2d:
    padding = tuple(d * (k - 1) // 2 for k, d in zip(layer.kernel_size, layer.dilation, strict=True))
    return SpikeConv2d(
        in_channels, layer.out_channels, layer.kernel_size, stride, padding, layer.dilation,  # type: ignore[arg-type]  # pairs
        math.gcd(layer.groups, in_channels), layer.bias is not None, layer.padding_mode,
    )  # fmt: skip


def _fresh_norm(layer: nn.GroupNorm | nn.BatchNorm2d | nn.BatchNorm1d) -> nn.Module:
    if isinstance(layer, nn.GroupNorm):
        return nn.GroupNorm(layer.num_groups, layer.num_channels, layer.eps, layer.affine)
    kind = nn.BatchNorm2d if isinstance(layer, nn.BatchNorm2d) else nn.BatchNorm1d
    return kind(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)


def _label(layer: nn.Module) -> str:
    if isinstance(layer, nn.Conv2d):
        stride = _first(layer.stride)
        return f"{layer.out_channels}C{_first(layer.kernel_size)}" + (f"(s{stride})" if stride != 1 else "")
    if isinstance(layer, nn.Linear):
        return f"{layer.out_features}L"
    if isinstance(layer, POOLS):
        label = pool_label(layer)
        return "M" + label[1:] if isinstance(layer, nn.MaxPool2d) else label
    return ""


def _first(size: int | tuple[int, ...]) -> int:
    return size[0] if isinstance(size, tuple) else size


def _refusal(name: str, layer: nn.Module, reason: str) -> ValueError:
    return ValueError(f"{name or 'the model'} ({_its_name(layer)}) cannot be cut into units: {reason}.")


def _its_name(layer: nn.Module) -> str:
    """The name of a layer's class in the model as it was given."""
    return (layer.kind if isinstance(layer, FusedNode) else type(layer)).__name__

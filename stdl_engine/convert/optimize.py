"""One line for an existing model: `optimize(model)` makes it faster and smaller in the user's own training loop.

Layers stay the objects they are, with their parameters, hooks and names; some take another class. `restore(model)`
gives each the class it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from ..neurons import Neuron
from ..neurons.foreign import Left, check_module, convert_neurons, unchanged_on_error, unfuse
from ..neurons.lif import LeakyNeuron
from .lean_layers import (
    KeepsSpikesSmall,
    LeanAvgPool2d,
    LeanConv2d,
    LeanMaxPool2d,
    RecomputedConv2d,
    SpikeSum,
    lean_class,
    neurons_that_join,
    why_dense,
)
from .models import name_of
from .norms import PendingNorm2d, why_written

SHOWN = 3
"""How many names of layers a line of a report shows."""


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A layer that was changed."""

    name: str
    """Its path in the model, for example "layer1.0.conv1"; empty for the model itself."""
    was: str
    """Its class before."""
    how: str
    """What it does now."""


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """What `optimize` did; printable."""

    changed: tuple[Changed, ...]
    """In the model's order."""
    left: tuple[Left, ...]
    """The neurons, convolutions, pools and batch norms that were not changed, and why."""
    advice: str = ""
    """What would make it faster still, if anything."""

    def __str__(self) -> str:
        count = f"{len(self.changed)} of {len(self.changed) + len(self.left)} layers were changed"
        lines = [count + (":" if self.changed else ".")]
        lines += _grouped([(entry.was, entry.how, entry.name) for entry in self.changed])
        lines += ["Left as they were:"] if self.left else []
        lines += _grouped([(entry.was, entry.reason, entry.name) for entry in self.left])
        return "\n".join([*lines, *([self.advice] if self.advice else [])])


def _grouped(entries: list[tuple[str, str, str]]) -> list[str]:
    """One line for all layers of one class with the same remark."""
    groups: dict[tuple[str, str], list[str]] = {}
    for was, said, name in entries:
        groups.setdefault((was, said), []).append(name or "the model")
    if not groups:
        return []
    width = max(len(was) for was, _ in groups)
    lines = []
    for (was, said), names in groups.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"  {len(names):>3}  {was:<{width}}  {said}: {', '.join(names[:SHOWN])}{more}")
    return lines


def optimize(model: nn.Module, *, backend: str = "auto", recompute: bool = False, norms: bool = True) -> Optimized:
    """Make a model faster and smaller in your own training loop, in place.

    - Neurons of SpikingJelly and snnTorch become fused, as with `convert_neurons`. They, and layers that are fused
      already, write their spikes as bits too.
    - Spikes are kept for backward as bits, whatever layer or operation reads them, while the model's forward runs.
    - Convolutions read the bits, on a CPU with channels innermost in memory (`torch.channels_last`).
    - Batch norm is computed by the neuron after it, in one pass, as with `fuse_norms`.
    - Average pools keep nothing for backward; max pools of spikes keep only the position of each maximum, in two bytes.

    Outputs and gradients are the same within rounding, and the state_dict has the same keys. Under torch.compile the
    layers run as plain ones with fused neurons. `restore(model)` undoes it all.

    Args:
        model: any model with neurons of SpikingJelly or snnTorch, or fused layers, inside.
        backend: of the fused neurons: "auto", "triton", "cpu" or "reference".
        recompute: whether backward computes the outputs of convolutions of spikes again, so that they are not kept. The
            gradients are the same bit for bit. It takes the time of these convolutions' forward once more. Outputs of
            sums of spikes are kept.
        norms: whether neurons compute the batch norm before them, as with `fuse_norms`.

    Example:
        >>> report = stdl_engine.optimize(model)
        >>> print(report)
    """
    check_module(model, "optimize")
    with unchanged_on_error(model):
        return _optimize(model, backend, recompute, norms)


def _optimize(model: nn.Module, backend: str, recompute: bool, norms: bool) -> Optimized:
    neurons = convert_neurons(model, backend=backend)
    fused = {id(entry.layer): entry.was for entry in neurons.swapped}
    refused = {entry.name for entry in neurons.left}
    if not any(_writes_bits(module) for module in model.modules()):
        why = "None of its layers is a neuron that can write its spikes as bits, so nothing was changed."
        return Optimized(changed=(), left=neurons.left, advice=why)
    tops = {id(module) for module in _called(model)}
    wanted = Wanted(recompute=recompute, norms=norms and _fires_from_maps(model))
    done = Changes(left=list(neurons.left))
    for name, module in model.named_modules():
        if name in refused:
            continue
        was = fused.get(id(module), type(module).__name__)
        if _writes_bits(module) and "_optimized_from" not in vars(module):
            vars(module)["_optimized_from"] = module.memory_form, id(module) in fused
            module.memory_form = "lean"
            how = "fused, and writes its spikes as bits" if id(module) in fused else "writes its spikes as bits"
            done.changed.append(Changed(name=name, was=was, how=how))
        else:
            done.make(name, module, was, _change_for(module, id(module) in tops, wanted))
    return Optimized(changed=tuple(done.changed), left=tuple(done.left), advice=_advice(model))


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a user asked for."""

    recompute: bool = False
    norms: bool = False


Change = tuple[type | None, str]


@dataclass
class Changes:
    """The layers that were changed so far, and those that were not."""

    changed: list[Changed] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    def make(self, name: str, module: nn.Module, was: str, change: Change | None) -> None:
        """Give a layer the class of a change, or note why it stays."""
        if "_optimized_from" in vars(module):
            change = None, "it is optimised already"
        if change is None:
            return
        layer, said = change
        if layer is None:
            self.left.append(Left(name=name, was=was, reason=said))
            return
        vars(module)["_optimized_from"] = None
        kind: type = type(module)
        module.__class__ = lean_class(kind, layer)
        self.changed.append(Changed(name=name, was=was, how=said))


def fuse_norms(model: nn.Module) -> Optimized:
    """Let fused neurons compute the batch norm before them as they fire, so that its output is not written, in place.
    `optimize` does this too.

    It takes effect wherever the output of an `nn.BatchNorm2d`, or of SpikingJelly's, goes to a fused LIF or PLIF
    neuron, perhaps after a shortcut was added, and the map is large. For whatever else reads the output it is written.
    Outputs, gradients and running statistics are the same within rounding, and the state_dict has the same keys.
    `restore(model)` undoes it.

    Args:
        model: any model with fused neurons inside.
    """
    check_module(model, "fuse_norms")
    if not _fires_from_maps(model):
        why = "None of its layers is a fused LIF or PLIF neuron, so nothing was changed."
        return Optimized(changed=(), left=(), advice=why)
    done = Changes()
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            done.make(name, module, type(module).__name__, _change_for(module, False, Wanted(norms=True)))
    return Optimized(changed=tuple(done.changed), left=tuple(done.left))


def restore(model: nn.Module) -> None:
    """Undo `optimize` and `fuse_norms`: every layer is of the class it had, with its parameters, hooks and state."""
    check_module(model, "restore")
    mine = [(name, module) for name, module in model.named_modules() if "_optimized_from" in vars(module)]
    for name, module in mine:
        if not _writes_bits(module) and "kind" not in vars(type(module)):
            raise ValueError(
                f"{name or 'the model'} was given another class, {type(module).__name__}, after it was optimised: "
                "undo that first."
            )
    for _, module in mine:
        before: Any = vars(module).pop("_optimized_from")
        if _writes_bits(module):
            module.memory_form, was_fused = before
            if was_fused:
                unfuse(module)
            continue
        kind: Any = type(module)
        module.__class__ = kind.kind
        for attribute in ("memory_form", "still"):
            if not hasattr(kind.kind, attribute):
                vars(module).pop(attribute, None)


def _writes_bits(module: nn.Module) -> bool:
    """Whether a layer is a neuron that can write its spikes as bits."""
    return isinstance(module, Neuron) or (hasattr(module, "fused_surrogate") and hasattr(module, "memory_form"))


def _fires_from_maps(model: nn.Module) -> bool:
    """Whether there is a neuron that can compute the batch norm before it."""
    return any(isinstance(module, LeakyNeuron) for module in model.modules())


def _change_for(module: nn.Module, is_called: bool, wanted: Wanted) -> Change | None:
    """The class that a layer is given and what it does, or None and why it stays; nothing for layers of other kinds."""
    if isinstance(module, nn.BatchNorm2d) and not wanted.norms:
        return None
    for kind, choose in CHOICES.items():
        if isinstance(module, kind):
            return (None, reason) if (reason := _why_not(module, kind)) else choose(module, wanted)
    if name_of(module).startswith("sew_resnet.") and hasattr(module, "cnf") and hasattr(module, "sn2"):
        return _sum(module)
    return _whole(module) if is_called else None


def _called(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that a user calls: the model, or the entries of a ModuleList or ModuleDict, which has no forward."""
    if type(model).forward is not nn.Module.forward:
        yield model
    else:
        for part in model.children():
            yield from _called(part)


def _why_not(module: nn.Module, kind: type[nn.Module]) -> str:
    """Why a layer cannot take another class; None if it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by torch.jit"
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "it has no weights before its first input"
    if is_parametrized(module):
        return "its weights are parametrised"
    for method in ("forward", "_conv_forward"):
        owner = next((base for base in type(module).__mro__ if method in vars(base)), kind)
        if owner.__module__.partition(".")[0] not in ("torch", "spikingjelly", __package__.partition(".")[0]):
            return f"{owner.__name__} has a {method} of its own"
    return ""


def _conv(module: Any, wanted: Wanted) -> Change:
    again = "its outputs for spikes are computed again in backward"
    if not (reason := why_dense(module)):
        if wanted.recompute:
            return RecomputedConv2d, f"reads spikes as bits, and {again}"
        return LeanConv2d, "reads spikes as bits"
    if wanted.recompute and module.padding_mode == "zeros":  # others copy the spikes, and so keep them dense
        return RecomputedConv2d, again
    return None, f"it does not read bits, but what spikes it gets are kept as bits; {reason}"


def _average(module: Any, wanted: Wanted) -> Change:
    return LeanAvgPool2d, "keeps nothing for backward"


def _largest(module: Any, wanted: Wanted) -> Change:
    if module.return_indices:
        return None, "it returns its indices"
    return LeanMaxPool2d, "of spikes, keeps only where the largest were"


def _norm(module: Any, wanted: Wanted) -> Change:
    if reason := why_written(module):
        return None, reason
    return PendingNorm2d, "is computed by the fused neuron that reads it"


CHOICES: dict[type[nn.Module], Callable[[Any, Wanted], Change]] = {
    nn.BatchNorm2d: _norm,
    nn.Conv2d: _conv,
    nn.AvgPool2d: _average,
    nn.MaxPool2d: _largest,
}
"""The layers that are given one of our classes, or the reason why not."""


def _sum(block: nn.Module) -> Change:
    if not all(isinstance(neuron, Neuron) for neuron in neurons_that_join(block)):
        return None, "it adds up spikes of a neuron that is not fused"
    return SpikeSum, "has its sums of spikes kept as bytes"


def _whole(model: nn.Module) -> Change | None:
    if not any(True for _ in model.children()):
        return None
    if hasattr(model, "_orig_mod"):
        return None, "it is compiled, and compiled graphs carry no bits"
    if isinstance(model, torch.jit.ScriptModule):
        return None, "it is compiled by torch.jit"
    return KeepsSpikesSmall, "has spikes kept as bits, whatever reads them"


def _advice(model: nn.Module) -> str:
    """Advice about the layout of the weights, if there is any."""
    readers = [module for module in model.modules() if isinstance(module, LeanConv2d)]
    ordered = (conv.weight.is_contiguous(memory_format=torch.channels_last) for conv in readers)
    if all(ordered) or any(conv.weight.device.type != "cpu" for conv in readers):
        return ""
    return (
        "Convolutions read bits once the model is in the layout channels_last: "
        "model.to(memory_format=torch.channels_last)."
    )

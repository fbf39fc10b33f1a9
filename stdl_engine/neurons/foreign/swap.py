"""Neurons of other libraries, swapped in place for fused ones that compute the same spikes and gradients.

A library joins with one file and one line in `LIBRARIES`. The file has `is_neuron(module)` and `fused(node, backend)`,
which returns the replacement or raises `NotConvertible` with the reason.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType

from torch import nn

LIBRARIES = {"spikingjelly": ".spikingjelly", "snntorch": ".snntorch"}


class NotConvertible(ValueError):
    """A neuron that no fused layer computes exactly; the message says why, to go on from "it is left alone: "."""


@dataclass(frozen=True, kw_only=True)
class Swapped:
    """A neuron that was replaced."""

    name: str
    """Its path in the model, for example "layer1.0.sn1"."""
    was: str
    """Its class before."""
    layer: nn.Module
    """What is there now; the same object at every place where one neuron was shared."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """A neuron that was left as it was."""

    name: str
    """Its path in the model."""
    was: str
    """Its class."""
    reason: str
    """Why no fused layer stands in for it."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `convert_neurons` did; printable."""

    swapped: tuple[Swapped, ...]
    """In the model's order, one entry a place."""
    left: tuple[Left, ...]
    """The same for those it did not swap."""

    def __str__(self) -> str:
        count = f"{len(self.swapped)} of {len(self.swapped) + len(self.left)} neuron layers are fused now"
        rows = [(entry.name, entry.was, "-> " + repr(entry.layer).partition("\n")[0]) for entry in self.swapped]
        rows += [(entry.name, entry.was, "left alone: " + entry.reason) for entry in self.left]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
        lines = [f"  {name:<{widths[0]}}  {was:<{widths[1]}}  {then}" for name, was, then in rows]
        return "\n".join([count + (":" if rows else "."), *lines])


def convert_neurons(model: nn.Module, *, backend: str = "auto", strict: bool = False) -> Report:
    """Swap a model's SpikingJelly and snnTorch neurons for fused ones, in place.

    A neuron is swapped only where a fused layer is exactly the same function; all others stay, and the report says why.
    A neuron that is used at several places is still one neuron afterwards. Convert before the optimizer is made, and
    between sequences.

    Args:
        model: anything with neurons of SpikingJelly or snnTorch inside.
        backend: of the fused layers: "auto", "triton", "cpu" or "reference".
        strict: raise, and change nothing, if a neuron would be left.

    Example:
        >>> report = convert_neurons(model)
        >>> print(report)
    """
    libraries = _libraries()
    if any(library.is_neuron(model) for library in libraries):
        raise TypeError(
            f"the model is itself a {type(model).__name__}, which cannot be swapped in place: take "
            "fused_like(node) in its stead, or pass the model that holds it."
        )
    fused: dict[int, nn.Module | str] = {}
    swapped, left = [], []
    for name, node in list(model.named_modules(remove_duplicate=False)):
        if not any(library.is_neuron(node) for library in libraries):
            continue
        if id(node) not in fused:
            try:
                fused[id(node)] = fused_like(node, backend=backend)
            except NotConvertible as reason:
                fused[id(node)] = str(reason)
        found, was = fused[id(node)], type(node).__name__
        if isinstance(found, str):
            left.append(Left(name=name, was=was, reason=found))
        else:
            swapped.append(Swapped(name=name, was=was, layer=found))
    report = Report(swapped=tuple(swapped), left=tuple(left))
    if strict and left:
        raise NotConvertible(
            f"{left[0].name} ({left[0].was}) has no fused equal: {left[0].reason}; use a neuron that has one "
            "(docs/convert.md)."
        )
    for entry in swapped:
        parent, _, child = entry.name.rpartition(".")
        setattr(model.get_submodule(parent), child, entry.layer)
    for library in libraries:
        library.converted(model)
    return report


def fused_like(node: nn.Module, *, backend: str = "auto") -> nn.Module:
    """The fused layer that computes what this neuron does; raises `NotConvertible` if there is none."""
    for library in _libraries():
        if library.is_neuron(node):
            if any(getattr(node, hooks) for hooks in _HOOKS):
                raise NotConvertible("it has hooks, which would be lost; remove them, convert, and register them again")
            return library.fused(node, backend).train(node.training)
    raise NotConvertible(f"{type(node).__name__} is no neuron of {' or '.join(LIBRARIES)}")


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _libraries() -> list[ModuleType]:
    """Those in use: whoever has a library's neuron has imported it, so none is imported for nothing."""
    return [importlib.import_module(file, __package__) for name, file in LIBRARIES.items() if name in sys.modules]

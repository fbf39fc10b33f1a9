"""Neurons of other libraries, made fused in place where that computes the same spikes and gradients.

A new library is one file and one line in `LIBRARIES`. The file has `is_neuron(module)` and `check(node)`, which raises
`NotConvertible` with the reason. If it has neurons to convert, it also has `fuse(node, backend)`, which makes a checked
node fused, in place, `is_fused(module)`, and `unfuse(node)`, which undoes it.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from torch import nn

from ...kernels import dispatch
from .. import Neuron, hooks_of

LIBRARIES = {
    "spikingjelly": ".spikingjelly",
    "snntorch": ".snntorch",
    "norse": ".others",
    "sinabs": ".others",
    "bindsnet": ".others",
    "rockpool": ".others",
    "lava": ".others",
}
"""The packages whose neurons are known, and the file for each."""


def check_module(model: object, function: str) -> None:
    """Reject what is no model, in the name of a function that takes one."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function} takes an nn.Module, and got {type(model).__name__}.")


class NotConvertible(ValueError):
    """A neuron that no fused layer computes exactly; the message says why, and follows "left alone: " in a report."""


@dataclass(frozen=True, kw_only=True)
class Swapped:
    """A neuron that is fused now."""

    name: str
    """Its path in the model, for example "layer1.0.sn1"."""
    was: str
    """Its class before."""
    layer: nn.Module
    """The neuron itself; a neuron that is shared by several places is the same object in all of them."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """A neuron that was left as it was."""

    name: str
    """Its path in the model."""
    was: str
    """Its class."""
    reason: str
    """Why no fused layer can replace it."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `convert_neurons` did; printable."""

    swapped: tuple[Swapped, ...]
    """In the model's order, one entry per place."""
    left: tuple[Left, ...]
    """The same for neurons that were left as they were."""
    others: tuple[str, ...]
    """The classes of all other layers, to show for a model in which no neuron was found."""

    def __str__(self) -> str:
        count = f"{len(self.swapped)} of {len(self.swapped) + len(self.left)} neuron layers are fused now"
        rows = [(entry.name, entry.was, "-> " + _one_line(entry.layer)) for entry in self.swapped]
        rows += [(entry.name, entry.was, "left alone: " + entry.reason) for entry in self.left]
        if not rows:
            known = "no neuron of SpikingJelly or snnTorch is among its layers"
            return f"{count}: {known}, which are {', '.join(self.others)}." if self.others else f"{count}."
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        return "\n".join([count + ":", *(f"  {n:<{widths[0]}}  {was:<{widths[1]}}  {then}" for n, was, then in rows)])


def convert_neurons(model: nn.Module, *, backend: str = "auto", strict: bool = False) -> Report:
    """Make a model's SpikingJelly and snnTorch neurons fused, in place.

    A neuron is made fused only where a fused layer is exactly the same function; all others stay, and the report says
    why. The objects stay the same ones, with their hooks, parameters and states; only their class changes, to one
    derived from what it was.

    Args:
        model: anything with neurons of SpikingJelly or snnTorch inside, or such a neuron.
        backend: of the fused layers: "auto", "triton", "cpu" or "reference".
        strict: raise, and change nothing, if a neuron cannot be converted.

    Example:
        >>> report = convert_neurons(model)
        >>> print(report)
    """
    check_module(model, "convert_neurons")
    dispatch.check_name(backend)
    libraries: dict[int, ModuleType] = {}
    swapped, left = [], []
    others: dict[str, None] = {}
    for name, node in model.named_modules(remove_duplicate=False):
        library = _library_of(node)
        if library is None:
            if name and (isinstance(node, Neuron) or not any(node.children())):
                others[type(node).__name__] = None
            continue
        try:
            library.check(node)
        except NotConvertible as reason:
            left.append(Left(name=name, was=type(node).__name__, reason=str(reason)))
        else:
            libraries[id(node)] = library
            swapped.append(Swapped(name=name, was=type(node).__name__, layer=node))
    if strict and left:
        first, *more = [f"{entry.name or 'the model'} ({entry.was})" for entry in left]
        nor = f"; nor have {', '.join(more)}" if more else ""
        raise NotConvertible(
            f"{first} has no fused equal: {left[0].reason}{nor}. Build the model with neurons that have one, for "
            "example FusedLIF or SpikingJelly's LIFNode (docs/convert.md)."
        )
    for entry in swapped:
        if (library := libraries.pop(id(entry.layer), None)) is not None:  # None at the second place of a shared neuron
            library.fuse(entry.layer, backend)
    return Report(swapped=tuple(swapped), left=tuple(left), others=tuple(others))


def unfuse(node: nn.Module) -> None:
    """Undo `convert_neurons` for one neuron, in place, with its state."""
    for library in _libraries():
        if hasattr(library, "is_fused") and library.is_fused(node):
            library.unfuse(node)


def fused_like(node: nn.Module, *, backend: str = "auto") -> nn.Module:
    """A fused layer that computes what this neuron does, with its parameters and state but not its hooks; raises
    `NotConvertible` if there is none."""
    library = _library_of(node)
    if library is None:
        raise NotConvertible(f"{type(node).__name__} is no neuron of SpikingJelly or snnTorch")
    dispatch.check_name(backend)
    library.check(node)
    twin = copy.copy(node)
    vars(twin).update({name: copy.copy(value) for name, value in vars(node).items() if isinstance(value, dict)})
    for hooks in hooks_of(twin):
        hooks.clear()
    library.fuse(twin, backend)
    return twin


@contextlib.contextmanager
def unchanged_on_error(model: nn.Module) -> Iterator[None]:
    """After an exception inside, every module of the model has the class and the attributes that it had before."""
    before = [(module, type(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    except BaseException:
        for module, kind, attributes in before:
            if type(module) is not kind:
                module.__class__ = kind
            own = vars(module)
            for name in own.keys() - attributes.keys():
                del own[name]
            own.update(attributes)
        raise


def unit_instead_of(module: nn.Module) -> str | None:
    """For a neuron whose state no learning rule can use: why, and what to put in its place."""
    file = sys.modules.get(f"{__package__}.snntorch") or _library_of(module)
    return file.unit_instead_of(module) if file is not None and hasattr(file, "unit_instead_of") else None


def _one_line(layer: nn.Module) -> str:
    children = [f"{name}={child}" for name, child in layer.named_children()]
    return f"{type(layer).__name__}({', '.join([layer.extra_repr(), *children])})"


def _library_of(module: nn.Module) -> ModuleType | None:
    """The file for a neuron's library."""
    return next((library for library in _libraries() if library.is_neuron(module)), None)


def _libraries() -> Iterator[ModuleType]:
    """The files for the libraries that have been imported; only those can have made a neuron."""
    files = dict.fromkeys(file for name, file in LIBRARIES.items() if name in sys.modules)
    return (importlib.import_module(file, __package__) for file in files)

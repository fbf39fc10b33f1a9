"""SpikingJelly's neurons as fused layers.

They are recognised by the names of their classes, so that nothing of SpikingJelly is imported here. Its neurons are in
the package `activation_based` since 0.0.0.0.13, and were in `clock_driven` before, which has separate classes for whole
sequences (`MultiStepLIFNode`).
"""

from __future__ import annotations

from types import FunctionType

from torch import nn

from .. import FusedLIF, FusedPLIF
from . import spikingjelly_settings as settings
from .spikingjelly_classes import BASES, ParametricNode, fuse, fused_class, origin, unfuse
from .spikingjelly_node import FusedNode
from .swap import NotConvertible

__all__ = ["check", "fuse", "is_fused", "is_neuron", "unfuse"]

HARMLESS = {
    "__init__", "extra_repr", "__module__", "__qualname__", "__doc__", "__annotations__", "__orig_bases__", "__dict__",
    "__weakref__", "__parameters__", "__abstractmethods__", "_abc_impl", "__firstlineno__", "__static_attributes__",
    "__annotate__", "__annotate_func__", "__annotations_cache__",
}  # fmt: skip
"""What a class derived from SpikingJelly's may define and still compute the same."""

SHARED = {"detach_reset", "backend", "step_mode", "store_v_seq", "v_seq", "_memories"}
"""Attributes that mean the same on SpikingJelly's nodes and on fused ones."""


def is_neuron(module: nn.Module) -> bool:
    """Whether a module is one of SpikingJelly's neurons, or derived from one, and not fused."""
    return not isinstance(module, FusedNode) and origin(type(module)) is not object


def is_fused(module: nn.Module) -> bool:
    """Whether a module is one of SpikingJelly's neurons that `fuse` was given."""
    return isinstance(module, FusedNode)


def check(node: settings.Node) -> None:
    """Raise `NotConvertible` where no fused layer computes what this node does."""
    kind = origin(type(node))
    if kind.__name__.removeprefix("MultiStep") not in BASES:
        raise NotConvertible(f"{kind.__name__} has dynamics of its own; fused are {', '.join(BASES)}")
    _check_class(type(node), kind)
    _check_attributes(node)
    settings.threshold(node), settings.surrogate(node)
    settings.precision(node)
    if issubclass(fused_class(kind), ParametricNode):
        settings.check_learned_decay(node)
    elif hasattr(node, "tau"):
        settings.decay(node)
    if getattr(node, "backend", None) == "lava":
        raise NotConvertible("its backend is lava, which computes in fixed point")


def _check_class(kind: type, its: type) -> None:
    """A class derived from SpikingJelly's may have other defaults and more methods, but must compute the same."""
    for base in kind.__mro__[: kind.__mro__.index(its)]:
        for name in vars(base).keys() - HARMLESS:
            if hasattr(fused_class(its), name):
                raise NotConvertible(f"{base.__name__} has a {name} of its own, which a fused layer would not use")


def _check_attributes(node: settings.Node) -> None:
    """No attribute of the object may replace a method, or something that a fused layer holds."""
    kind: type = type(node)
    fused = fused_class(kind)
    held = {*vars(FusedPLIF()), *vars(FusedLIF())} - vars(nn.Module()).keys()
    for name in vars(node).keys() - SHARED:
        if name in held or isinstance(getattr(fused, name, None), property | FunctionType):
            raise NotConvertible(f"it has a {name} of its own on the object, which a fused layer would not use")

"""The classes of fused nodes, each derived, when it is needed, from a fused layer and a class of SpikingJelly's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ...kernels import dispatch
from .. import FusedLIF, FusedPLIF
from . import spikingjelly_settings as settings
from .spikingjelly_memories import give_back, take_over
from .spikingjelly_node import FusedNode, setting

PACKAGES = ("spikingjelly.activation_based.neuron", "spikingjelly.clock_driven.neuron")
"""The packages of SpikingJelly's neurons: from version 0.0.0.0.13 on, and before."""


class LeakyNode(FusedNode):
    """For `LIFNode`."""

    decay = setting(settings.decay)
    scale = setting(settings.scale)


class IntegratingNode(FusedNode):
    """For `IFNode`."""

    decay = 1.0
    scale = 1.0


class ParametricNode(FusedNode):
    """For `ParametricLIFNode`, whose parameter keeps its meaning, 1/tau = sigmoid(w)."""

    scale = 1.0

    @property
    def logit(self) -> Tensor:
        return -self.w

    @property
    def scale_by_decay(self) -> bool:
        return self.decay_input

    def extra_repr(self) -> str:
        with unset_fake_temporarily():  # SpikingJelly computes tau from w, which has no values in a plan
            return super().extra_repr()


class Seam:
    """A base between a fused layer and SpikingJelly's class: calls that the layer has handled end here."""

    def _apply(self: Any, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        return nn.Module._apply(self, fn, recurse)

    def _replicate_for_data_parallel(self: Any) -> nn.Module:
        return nn.Module._replicate_for_data_parallel(self)


BASES: dict[str, tuple[type, ...]] = {
    "LIFNode": (LeakyNode, FusedLIF, Seam),
    "IFNode": (IntegratingNode, FusedLIF, Seam),
    "ParametricLIFNode": (ParametricNode, FusedPLIF, Seam),
}
"""The bases to put before a class of SpikingJelly's, by its name without "MultiStep"."""


def origin(kind: type) -> type:
    """The SpikingJelly class that a class is or derives from; `object` if there is none."""
    return next((base for base in kind.__mro__ if base.__module__.startswith(PACKAGES)), object)


@functools.cache
def fused_class(kind: type) -> type[FusedNode]:
    """The fused class for one of SpikingJelly's, or for one derived from it."""
    bases = BASES[origin(kind).__name__.removeprefix("MultiStep")]
    doc = f"`{kind.__name__}` of {kind.__module__} on a fused kernel."
    members = {"kind": kind, "__module__": __name__, "__doc__": doc, "__reduce_ex__": _reduce}
    return type(f"Fused{kind.__name__}", (*bases, kind), members)


def unfuse(node: FusedNode) -> None:
    """Make a fused node a plain SpikingJelly node again, in place, with its state."""
    added = (*vars(node)["_added"], "_v", "_started", "_skips_reset", "_v_steps", "_placed_in", "_added")
    has_v_seq = vars(node)["_has_v_seq"]
    give_back(node)
    own = vars(node)
    for name in (*added, "_has_v_seq"):
        own.pop(name, None)
    if not has_v_seq and own["v_seq"] is None:
        del own["v_seq"]


def fuse(node: settings.Node, backend: str) -> None:
    """Make a node fused, in place, with its state; it must have been checked."""
    was: type = type(node)
    kind, own = fused_class(was), vars(node)
    dispatch.check_name(backend)
    layer = vars((FusedPLIF if issubclass(kind, FusedPLIF) else FusedLIF)())
    added = {name: value for name, value in layer.items() if name not in own and not hasattr(kind, name)}
    if origin(kind).__name__.startswith("MultiStep"):
        added["step_mode"] = "m"
    if not hasattr(kind, "store_v_seq"):  # an attribute of later versions
        added["store_v_seq"] = False
    added["_kernels"] = backend
    take_over(node, kind, added | {"_added": tuple(added), "_has_v_seq": "v_seq" in own})


def _reduce(node: FusedNode, protocol: int) -> tuple:
    """For copies and pickles: the class is made at run time and cannot be imported, but SpikingJelly's can."""
    return _new, (node.kind,), node.__getstate__()


def _new(kind: type) -> FusedNode:
    fused = fused_class(kind)
    return fused.__new__(fused)

"""Libraries whose neurons are not converted. They are recognised by name, so that none is overlooked."""

from __future__ import annotations

from torch import nn

from .swap import NotConvertible

NEURONS = {
    "norse": {
        "SNNCell", "SNN", "SNNRecurrentCell", "SNNRecurrent", "CobaLIFCell", "LIFCorrelation", "LILinearCell",
    },
    "sinabs": {"StatefulLayer"},
    "bindsnet": {"Nodes"},
    "rockpool": {"LIFBaseTorch", "LIFNeuronTorch", "ExpSynTorch", "RateTorch", "UpDownTorch"},
    "lava": {"Neuron"},
}  # fmt: skip
"""The classes that each library's neurons derive from."""


def is_neuron(module: nn.Module) -> bool:
    """Whether a module is a neuron of one of these libraries, or derived from one."""
    return _library(module) is not None


def check(node: nn.Module) -> None:
    """Raise `NotConvertible`: none of these libraries' neurons has a fused layer."""
    raise NotConvertible(f"it is a neuron of {_library(node)}; only those of SpikingJelly and snnTorch are converted")


def _library(module: nn.Module) -> str | None:
    for base in type(module).__mro__:
        library = base.__module__.partition(".")[0]
        if base.__name__ in NEURONS.get(library, ()):
            return library
    return None

"""Neurons of other libraries, made fused where that computes the same thing."""

from .spikingjelly_node import FusedNode
from .swap import (
    Left,
    NotConvertible,
    Report,
    Swapped,
    check_module,
    convert_neurons,
    fused_like,
    unchanged_on_error,
    unfuse,
    unit_instead_of,
)

__all__ = [
    "FusedNode",
    "Left",
    "NotConvertible",
    "Report",
    "Swapped",
    "check_module",
    "convert_neurons",
    "fused_like",
    "unchanged_on_error",
    "unfuse",
    "unit_instead_of",
]

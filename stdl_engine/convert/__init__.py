"""Other libraries' neurons and models: neurons become fused ones in place, models faster ones for a loop of the user's
own, or sequences of units for learning rules."""

from __future__ import annotations

from ..neurons.foreign import Left, Report, Swapped, convert_neurons, fused_like
from .optimize import Changed, Optimized, optimize, restore
from .units import units_from

__all__ = [
    "Changed",
    "Left",
    "Optimized",
    "Report",
    "Swapped",
    "convert_neurons",
    "fused_like",
    "optimize",
    "restore",
    "units_from",
]

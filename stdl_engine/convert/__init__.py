"""Other libraries' neurons and models: neurons become fused in place; models become faster for the user's own training
loop, or sequences of units for learning rules."""

from __future__ import annotations

from ..neurons.foreign import Left, Report, Swapped, convert_neurons, fused_like
from .optimize import Changed, Optimized, fuse_norms, optimize, restore
from .units import units_from

__all__ = [
    "Changed",
    "Left",
    "Optimized",
    "Report",
    "Swapped",
    "convert_neurons",
    "fuse_norms",
    "fused_like",
    "optimize",
    "restore",
    "units_from",
]

"""Other libraries' neurons and models: neurons become fused ones in place, whole models become sequences of units."""

from __future__ import annotations

from ..neurons.foreign import Left, Report, Swapped, convert_neurons, fused_like
from .units import units_from

__all__ = ["Left", "Report", "Swapped", "convert_neurons", "fused_like", "units_from"]

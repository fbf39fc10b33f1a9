"""Neurons of other libraries, swapped for fused ones that compute the same."""

from .swap import Left, NotConvertible, Report, Swapped, convert_neurons, fused_like

__all__ = ["Left", "NotConvertible", "Report", "Swapped", "convert_neurons", "fused_like"]

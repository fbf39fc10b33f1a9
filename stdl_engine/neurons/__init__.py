"""Spiking neuron layers on the fused kernels."""

from .alif import FusedALIF
from .base import Neuron, has_hooks, hooks_of, reset_states
from .borrow import borrowed, in_class
from .lif import FusedLIF
from .plif import FusedPLIF

__all__ = [
    "NEURONS",
    "FusedALIF",
    "FusedLIF",
    "FusedPLIF",
    "Neuron",
    "borrowed",
    "has_hooks",
    "hooks_of",
    "in_class",
    "reset_states",
]

NEURONS: dict[str, type[Neuron]] = {"lif": FusedLIF, "plif": FusedPLIF, "alif": FusedALIF}
"""The neuron layers, by the name a recipe gives them."""

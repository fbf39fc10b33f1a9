"""Adaptive leaky integrate-and-fire, whose threshold rises with each spike: see README.md for the equations."""

from .ops import alif_sequence, alif_sequence_, alif_step, alif_step_
from .reset import alif_reset

__all__ = ["alif_reset", "alif_sequence", "alif_sequence_", "alif_step", "alif_step_"]

"""Leaky integrate-and-fire: see README.md for the equations."""

from .ops import lif_sequence, lif_sequence_, lif_step, lif_step_
from .reset import lif_reset

__all__ = ["lif_reset", "lif_sequence", "lif_sequence_", "lif_step", "lif_step_"]

"""Parametric leaky integrate-and-fire, whose decay is learned: see README.md for the equations."""

from .ops import plif_sequence, plif_sequence_, plif_step, plif_step_

__all__ = ["plif_sequence", "plif_sequence_", "plif_step", "plif_step_"]

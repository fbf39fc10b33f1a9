"""Leaky integrate-and-fire: see README.md for the equations."""

from .ops import lif_step, lif_step_

__all__ = ["lif_step", "lif_step_"]
